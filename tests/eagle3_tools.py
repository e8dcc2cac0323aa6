"""Helpers for tests of EAGLE-3 drafts: heads with their targets, cold drafts, wrong rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyllama_spec.drafters import Draft, Drafter, DraftRequest, Eagle3
from pyllama_spec.engine import Context, Model
from tests.models import model_path


def head(kind: str = "eagle3", max_draft: int = 8, **options: Any) -> Eagle3:
    window = options.pop("n_ctx", None)
    return Eagle3(model_path(kind, **options), max_draft, n_ctx=window)


def target_context(model: Model, drafter: Drafter, **overrides: Any) -> Context:
    """A small context of the target on one thread that keeps what the drafter reads."""
    values: dict[str, Any] = {"n_ctx": 256, "n_batch": 64, "n_ubatch": 32, "n_threads": 1}
    values |= {"target_layers": drafter.target_layers, **overrides}
    return Context(model, **values)


@dataclass(frozen=True)
class Proposal:
    """A draft, to be compared number by number."""

    ids: tuple[int, ...]
    probabilities: tuple[float, ...]


def proposal(draft: Draft) -> Proposal:
    assert draft.probabilities is not None
    assert all(np.isfinite(draft.probabilities))
    return Proposal(tuple(draft.ids), tuple(draft.probabilities))


def ask(drafter: Drafter, seq: int, tokens: Sequence[int], n: int = 8) -> Proposal:
    return proposal(drafter.propose([DraftRequest(seq, list(tokens), n)])[0])
