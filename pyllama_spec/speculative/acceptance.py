"""Accepts drafted tokens: while the target's own choice at each row equals the draft.

The comparison itself is in C for engine.Sampler, one call per sequence and round:
llama_spec_sample_chain() in csrc/abi/sampling.cpp. match_by_steps() is the same in Python, for
samplers written in Python and for requests that look at rows, as for log-probabilities.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from pyllama_spec.engine.context import Context

# Called with a row of the last batch and the token that was chosen there, before the next decode.
RowObserver = Callable[[int, int], None]


class TokenSampler(Protocol):
    """The interface of samplers: engine.Sampler, or a wrapper."""

    def sample(self, context: Context, i: int) -> int:
        """Samples from the logits of token i of the last batch, without advancing the state."""

    def accept(self, token: int, *, generated: bool = True) -> None:
        """Advances the state over a committed token."""

    def sample_chain(self, context: Context, row: int, draft: Sequence[int]) -> list[int]:
        """Calls sample() and accept() at row, row + 1, ... while the tokens equal the draft.

        If an error is raised, its partial_tokens has the tokens before it.
        """


class StepSampler:
    """A base for samplers written in Python, whose chain calls the single steps."""

    def sample(self, context: Context, i: int) -> int:
        """Samples from the logits of token i of the last batch."""
        raise NotImplementedError

    def accept(self, token: int, *, generated: bool = True) -> None:
        """Advances the state over a committed token."""

    def sample_chain(self, context: Context, row: int, draft: Sequence[int]) -> list[int]:
        """See TokenSampler.sample_chain."""
        out: list[int] = []
        try:
            match_by_steps(self, context, row, draft, out)
        except BaseException as error:
            with contextlib.suppress(AttributeError, TypeError):  # some take no attributes
                error.partial_tokens = tuple(out)  # type: ignore[attr-defined]
            raise
        return out


def sample_and_match(
    sampler: TokenSampler,
    target: Context,
    row: int,
    draft: Sequence[int],
    out: list[int],
    observe: RowObserver | None = None,
) -> None:
    """Samples the target's own token at each row while it equals the draft.

    Row `row` of the target's last batch is the pending token, row + 1 + i is draft[i]. For an
    argmax draft d this accepts with probability p(d) and otherwise draws from the rest: exactly
    min(1, p/q) with the residual of Leviathan et al. (arXiv 2211.17192), for any chain of
    samplers. One draw is made per committed token, in order, so that a seed gives the same text
    with any draft or none.

    Args:
        sampler: the sampler of the sequence.
        target: the context whose last batch holds the rows.
        row: the row of the pending token.
        draft: the verified tokens.
        out: takes the committed tokens: the accepted ones and one of the target's own, or those up
            to the first one that ends the generation.
        observe: called with each row and its token.
    """
    if observe is not None:
        match_by_steps(sampler, target, row, draft, out, observe)
        return
    try:
        out += sampler.sample_chain(target, row, draft)
    except BaseException as error:
        out += getattr(error, "partial_tokens", ())
        raise


def match_by_steps(
    sampler: StepSampler | TokenSampler,
    target: Context,
    row: int,
    draft: Sequence[int],
    out: list[int],
    observe: RowObserver | None = None,
) -> None:
    """Computes sample_and_match() with a call per token."""
    is_eog = target.model.vocab.is_eog
    for i in range(len(draft) + 1):
        token = sampler.sample(target, row + i)
        if observe is not None:
            observe(row + i, token)
        sampler.accept(token)
        out.append(token)
        if i == len(draft) or token != draft[i] or is_eog(token):
            break
