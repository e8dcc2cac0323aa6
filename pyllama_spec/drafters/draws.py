"""Random draws of a request's drafts: from the draft's distribution, with the request's cuts.

TokenDraws are for rejection sampling. What it verifies has to be drawn so, and handed out with its
distribution. Two rules keep the text's distribution that of the target. Whether a place is drafted
may depend on the tokens before it and on the distribution there, but not on the token that was
drawn. And what was drawn is verified.

SharedNoise is for targets that draw by SamplerParams.shared_noise. It changes no text, so no rule
has to be kept.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np

from pyllama_spec.engine.context import Context
from pyllama_spec.engine.sampler import Distribution, Sampler, SamplerParams, shared_noise

# Of a request those of its parameters that a draft is drawn with. Penalties and biases are of the
# target's text and ids: without them a draft is accepted less often, and nothing else.
_CUTS = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "min_keep",
)  # fmt: skip


class TokenDraws:
    """The random numbers of one request, and the sampler cuts of its drafts."""

    acceptance, verifies_all = "distribution", True

    def __init__(self, params: SamplerParams, seed: int) -> None:
        cuts = {name: getattr(params, name) for name in _CUTS}
        self._params = replace(SamplerParams(seed=0), **cuts)
        self._random = random.Random(seed)
        self._sampler: Sampler | None = None

    def uniform(self) -> float:
        """The next random number, in [0, 1)."""
        return self._random.random()

    def begin(self) -> None:
        """Begins a draft: the next choice() is for the place after the pending token."""

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


class SharedNoise(TokenDraws):
    """Draws with the noise that the target's sampler will draw with, so that both often agree."""

    acceptance, verifies_all = "noise", False

    def __init__(self, params: SamplerParams, sampler: Sampler) -> None:
        super().__init__(params, sampler.seed)
        self._target, self._place = sampler, 0

    def begin(self) -> None:
        """Begins a draft: the next choice() is for the place after the pending token."""
        self._place = self._target.place

    def choice(self, q: Distribution) -> tuple[int, float]:
        """The id with the largest sum of log-probability and noise at the next place.

        Returns:
            The id, and how sure the draft is. The target chooses another one if its log-probability
            differs by more than the largest sum is ahead of the second; the farther ahead it is,
            the less likely that is: 1 - exp(-ahead) / 2, which is 1/2 for two equal sums.
        """
        ids = np.ascontiguousarray(q.ids)
        scores = np.log(q.p) + shared_noise(self._target.seed, self._place, ids)
        self._place += 1
        best = int(scores.argmax())
        ahead = scores[best] - np.delete(scores, best).max(initial=-np.inf)
        return int(ids[best]), 1.0 - 0.5 * math.exp(-float(ahead))
