"""Random draws of a request's drafts: from the draft's distribution, with the request's cuts.

What rejection sampling verifies has to be drawn so, and handed out with its
distribution. Two rules keep the text's distribution that of the target. Whether a place is drafted
may depend on the tokens before it and on the distribution there, but not on the token that was
drawn. And what was drawn is verified.
"""

from __future__ import annotations

import random
from dataclasses import replace

from pyllama_spec.engine.context import Context
from pyllama_spec.engine.sampler import Distribution, Sampler, SamplerParams

# Of a request those of its parameters that a draft is drawn with. Penalties and biases are of the
# target's text and ids: without them a draft is accepted less often, and nothing else.
_CUTS = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "min_keep",
)  # fmt: skip


class TokenDraws:
    """The random numbers of one request, and the sampler cuts of its drafts."""

    def __init__(self, params: SamplerParams, seed: int) -> None:
        cuts = {name: getattr(params, name) for name in _CUTS}
        self._params = replace(SamplerParams(seed=0), **cuts)
        self._random = random.Random(seed)
        self._sampler: Sampler | None = None

    def uniform(self) -> float:
        """The next random number, in [0, 1)."""
        return self._random.random()

    def choice(self, q: Distribution) -> tuple[int, float]:
        """Draws the token of the next place; returns it and how sure the draft is.

        That is the probability of the likeliest token, since it must not depend on the drawn one.
        """
        return q.draw(self.uniform()), q.largest

    def distribution(self, context: Context, row: int) -> Distribution:
        """The draft model's distribution at a row of its last batch, after the request's cuts."""
        model = context.model
        if self._sampler is None or self._sampler.model is not model:
            self.close()
            self._sampler = Sampler(model, self._params)
        return self._sampler.distribution(context, row)

    def close(self) -> None:
        """Frees the sampler. May be called twice; the object can be used again."""
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None
