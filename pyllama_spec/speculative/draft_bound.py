"""The maximum draft length of a sequence, and the bound that sets it.

A controller may want fewer and a drafter give fewer; neither can raise the number.
"""

from __future__ import annotations

from typing import NamedTuple

from pyllama_spec.drafters.base import Drafter
from pyllama_spec.engine.checks import count

SNAPSHOTS = "the number of snapshots of the target's state"
_ROWS = "the number of rows that a decode verifies (n_batch, n_outputs_max or max_rows)"


class DraftBound(NamedTuple):
    """The maximum number of tokens that a sequence may draft in a round."""

    max_draft: int
    reason: str


def drafter_bound(drafter: Drafter) -> DraftBound:
    """The drafter's own maximum, which a user may have set."""
    what = f"the drafter {drafter.name} cannot be used: max_draft"
    return DraftBound(count(drafter.max_draft, what, 0), "max_draft of the drafter")


def draft_bound(
    bound: DraftBound,
    *,
    n_draft: int | None = None,
    n_snapshots: int | None = None,
    snapshots: str = SNAPSHOTS,
    n_rows: int | None = None,
    n_seqs: int = 1,
    n_left: int | None = None,
    n_free: int | None = None,
) -> DraftBound:
    """The smallest of the given bounds; the first of equal ones.

    n_snapshots and snapshots hold as long as a context is open, n_seqs, n_left and n_free for one
    round.
    """
    max_draft, reason = bound
    if n_draft is not None and (n := count(n_draft, "n_draft", 0)) < max_draft:
        max_draft, reason = n, "n_draft"
    if n_snapshots is not None and n_snapshots < max_draft:
        max_draft, reason = n_snapshots, snapshots
    if n_rows is not None and n_rows // n_seqs <= max_draft:
        max_draft, reason = n_rows // n_seqs - 1, _ROWS
    if n_left is not None and n_left <= max_draft:
        max_draft, reason = n_left - 1, "max_tokens"
    if n_free is not None and n_free <= max_draft:
        max_draft, reason = n_free - 1, "the room in the context"
    if max_draft == bound.max_draft:
        return bound
    return DraftBound(max(max_draft, 0), reason)
