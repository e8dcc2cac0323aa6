"""How a request has a draft drawn at random: from the draft's own distribution, with its own cuts.

What is verified by rejection sampling has to be drawn so, and handed out with its distribution. Two
rules keep the text's distribution that of the target. Whether a place is drafted may depend on the
tokens before it and on the distribution there, but not on the token that was drawn. And what was
drawn is verified.
"""

from __future__ import annotations

import random
from dataclasses import replace

from pyllama_spec.engine.context import Context
from pyllama_spec.engine.distribution import Distribution
from pyllama_spec.engine.sampler import Sampler, SamplerParams

# Of a request those of its parameters that a draft is drawn with. Penalties and biases are of the
# target's text and ids: without them a draft is accepted less often, and nothing else.
_CUTS = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "min_keep",
)  # fmt: skip


class TokenDraws:
    """The random numbers of one request, and the cuts that its drafts are drawn behind.

    Args:
        params: of the request, with a temperature above 0.
        seed: of the random numbers. They are not those of the target's sampler.

    """

    def __init__(self, params: SamplerParams, seed: int) -> None:
        cuts = {name: getattr(params, name) for name in _CUTS}
        self._params = replace(SamplerParams(seed=0), **cuts)
        self._random = random.Random(seed)
        self._sampler: Sampler | None = None

    def uniform(self) -> float:
        """The next random number: from 0 to 1, without 1."""
        return self._random.random()

    def distribution(self, context: Context, row: int) -> Distribution:
        """What a draft model says of a row of its last batch, behind the request's cuts.

        Raises:
            PyllamaSpecError: the row has no logits, or some of them are NaN.

        """
        model = context.model
        if self._sampler is None or self._sampler.model is not model:
            self.close()
            self._sampler = Sampler(model, self._params)
        return self._sampler.distribution(context, row)

    def close(self) -> None:
        """Frees what draws. May be called twice; it can be used again."""
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None
