"""Which drafted tokens count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pyllama_spec.engine.context import Context


class TokenSampler(Protocol):
    """Chooses tokens: engine.Sampler, or something of the same shape around it."""

    def sample(self, context: Context, i: int) -> int:
        """A token from the logits of token i of the last batch, with no state advanced."""
        ...

    def accept(self, token: int, *, generated: bool = True) -> None:
        """Advances the state over a committed token."""
        ...


# Called with a row of the last batch and the token that was chosen there, before the next decode.
RowObserver = Callable[[int, int], None]


def sample_and_match(
    sampler: TokenSampler,
    target: Context,
    draft: Sequence[int],
    ends: Callable[[int], bool],
    observe: RowObserver | None = None,
) -> list[int]:
    """Draws the target's own token at each row and goes on while it equals the draft.

    Row 0 of the target's last batch is the pending token, row i + 1 is draft[i]. For an argmax
    draft d this accepts with probability p(d) and otherwise draws from the rest: exactly
    min(1, p/q) with the residual of Leviathan et al. (arXiv 2211.17192), for any chain of
    samplers. One draw is made per committed token, in order, so that a seed gives the same text
    with any draft or none.

    Returns:
        The committed tokens: the accepted ones and then one of the target's own, or up to the
        first one that ends the generation.

    """
    committed: list[int] = []
    for row in range(len(draft) + 1):
        token = sampler.sample(target, row)
        if observe is not None:
            observe(row, token)
        sampler.accept(token)
        committed.append(token)
        if row == len(draft) or token != draft[row] or ends(token):
            break
    return committed
