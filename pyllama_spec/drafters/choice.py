"""The candidates of a draft model for one position, and the choice among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import TokenPrior
from pyllama_spec.engine.distribution import Distribution
from pyllama_spec.errors import EngineError


@dataclass(slots=True)
class Choice:
    """The draft model's candidates for one position.

    Attributes:
        ids: the likeliest tokens, as ids of the target, likeliest first.
        p: their probabilities in the model's own distribution.
        row: float32, further outputs for the token: see Context.draft_candidates().
        drawn_from: if the token was drawn at random, its distribution. `p` is then the probability
            of the likeliest token, which does not depend on the drawn one.
    """

    ids: Sequence[int]
    p: Sequence[float]
    row: npt.NDArray[np.float32]
    drawn_from: Distribution | None = None

    @property
    def candidates(self) -> list[tuple[int, float]]:
        """The tokens with their probabilities."""
        return list(zip(self.ids, self.p, strict=True))


def choose(choice: Choice, prior: TokenPrior | None, drafted: Sequence[int]) -> tuple[int, float]:
    """The token to draft and its probability.

    With a prior it is the likeliest of a linear mixture, of which the model's distribution is known
    at its likeliest tokens: another one is hardly ever chosen.
    """
    token, p = choice.ids[0], choice.p[0]
    if math.isnan(p):
        raise EngineError("the draft computed NaN: the target's rows or its own weights are NaN")
    # A token that was drawn stays what it is: others have no say in it.
    votes = () if prior is None or choice.drawn_from is not None else prior(drafted)
    if not votes:
        return token, p
    scores = dict(zip(choice.ids, choice.p, strict=True))
    for vote in votes:
        scores[vote.token] = scores.get(vote.token, 0.0) + vote.weight * vote.p
    # Among equals the model's own choice.
    best = max(scores, key=lambda id_: (scores[id_], id_ == token))
    return best, scores[best] / (1.0 + sum(vote.weight for vote in votes))
