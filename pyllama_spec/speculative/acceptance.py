"""Accepts drafted tokens: which of them count, and the target's token after them.

Exactly: while the target's own choice at each row equals the draft. The comparison itself is in C
for engine.Sampler, one call per sequence and round: llama_spec_sample_chain() in
csrc/abi/sampling.cpp. sample_and_match() does it itself for samplers written in Python and for
requests that look at rows, as for log-probabilities.

By rejection: a token x that was drawn from the draft's distribution q is accepted with the chance
min(1, p(x) / q(x)), where p is the target's distribution. Where it is rejected, the target's token
is drawn from max(0, p - q), normalised (Leviathan et al., arXiv 2211.17192; Chen et al.,
arXiv 2302.01318). Both together have the distribution p. The token after an accepted draft is drawn
from p itself. It accepts more tokens of a draft with a distribution like the target's than exact
acceptance does of the likeliest ones, and gives up the equal text: a seed gives another one than
without a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyllama_spec.drafters.draws import SharedNoise, TokenDraws
from pyllama_spec.engine import Context, Model, Sampler, SamplerParams
from pyllama_spec.engine.sampler import Distribution
from pyllama_spec.errors import PyllamaSpecError

# Called with a row of the last batch and the token that was chosen there, before the next decode.
RowObserver = Callable[[int, int], None]


class StepSampler:
    """A base for samplers written in Python, which are called for each token."""

    def sample(self, context: Context, i: int) -> int:
        """Samples from the logits of token i of the last batch, without advancing the state."""
        raise NotImplementedError

    def accept(self, token: int, *, generated: bool = True) -> None:
        """Advances the state over a committed token."""


TokenSampler = Sampler | StepSampler


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
    if observe is None and isinstance(sampler, Sampler):
        try:
            out += sampler.sample_chain(target, row, draft)
        except PyllamaSpecError as error:
            out += error.partial_tokens
            raise
        return
    is_eog = target.model.vocab.is_eog
    for i in range(len(draft) + 1):
        token = sampler.sample(target, row + i)
        if observe is not None:
            observe(row + i, token)
        sampler.accept(token)
        out.append(token)
        if i == len(draft) or token != draft[i] or is_eog(token):
            break


BY_GRAMMAR = "a grammar may refuse a token after it is drawn"


def why_exact(params: SamplerParams, acceptance: str = "distribution") -> str | None:
    """The reason why a request accepts exactly in spite of its option; None without one."""
    if params.is_greedy:
        return "at temperature 0 there is nothing to draw"
    if params.mirostat:
        return "mirostat chooses by what it has chosen before"
    if params.grammar is not None and acceptance == "distribution":
        return BY_GRAMMAR
    return None


def accepting_sampler(
    model: Model, params: SamplerParams, acceptance: str, why: str | None
) -> tuple[Sampler, TokenDraws | None]:
    """A request's sampler, and the random draws of its drafts if it does not accept exactly."""
    if acceptance == "exact" or why is not None:
        return Sampler(model, params), None
    if acceptance == "noise":
        params = replace(params, shared_noise=True)
        sampler = Sampler(model, params)
        return sampler, SharedNoise(params, sampler)
    sampler = Sampler(model, params)
    return sampler, TokenDraws(params, sampler.seed)


def accept_or_redraw(
    p: Distribution, q: Distribution, token: int, u: float, v: float
) -> tuple[int, bool]:
    """Accepts a drawn token, or draws the target's token in its place.

    u decides whether it is accepted, v draws another one. Over q, u and v the token has the
    distribution p. Also says whether it is the drawn one.
    """
    if u * q.of(token) < p.of(token):
        return token, True
    rest = p.beyond(q)
    # Nothing is left where p and q are one: then rounding alone has rejected it.
    return (p if rest is None else rest).draw(v), False


def accept_drawn(
    sampler: TokenSampler,
    target: Context,
    row: int,
    draft: Sequence[int],
    out: list[int],
    observe: RowObserver | None,
    draws: TokenDraws,
    drawn_from: Sequence[Distribution],
) -> None:
    """Accepts a drawn draft by rejection sampling, with the arguments of sample_and_match().

    `draws` has the request's random numbers, drawn_from [len(draft) or more] the distribution that
    each token was drawn from.
    """
    assert isinstance(sampler, Sampler)
    is_eog = target.model.vocab.is_eog
    for i in range(len(draft) + 1):
        p = sampler.distribution(target, row + i)
        if i < len(draft):
            numbers = draws.uniform(), draws.uniform()
            token, is_accepted = accept_or_redraw(p, drawn_from[i], draft[i], *numbers)
        else:
            token, is_accepted = p.draw(draws.uniform()), False
        if observe is not None:
            observe(row + i, token)
        sampler.accept(token)
        out.append(token)
        if not is_accepted or is_eog(token):
            break
