"""benchmarks/draft_overlap.py computes the same probabilities as random draws."""

from __future__ import annotations

import numpy as np

from benchmarks.draft_overlap import chances
from pyllama_spec.engine import Distribution

N = 200_000
P = Distribution([5, 3, 8, 1], [0.5, 0.3, 0.15, 0.05])
Q = Distribution([3, 5, 9, 8], [0.45, 0.25, 0.2, 0.1])


def test_equal_distributions_agree_but_for_the_likeliest() -> None:
    assert np.allclose(chances(P, P), (0.5, 1.0, 1.0, 1.0))


def test_distributions_without_a_common_token_never_agree() -> None:
    assert chances(P, Distribution([2, 4], [0.5, 0.5])) == (0.0, 0.0, 0.0, 0.0)


def test_drawing_agrees_as_often() -> None:
    rng = np.random.default_rng(3)
    likeliest, rejection, one_number, noise = chances(P, Q)
    assert likeliest == P.of(3)
    drawn = rng.choice(Q.ids, N, p=Q.p)
    p_of = {i: P.of(i) / Q.of(i) for i in Q.ids.tolist()}
    ratio = np.array([p_of[i] for i in drawn.tolist()])
    assert abs((rng.random(N) < ratio).mean() - rejection) < 0.006
    u = rng.random(N)
    by_number = [d.ids[np.searchsorted(np.cumsum(d.p), u)] for d in (P, Q)]
    assert abs((by_number[0] == by_number[1]).mean() - one_number) < 0.006
    g = rng.gumbel(size=(N, 10))
    by_noise = [d.ids[(np.log(d.p) + g[:, d.ids]).argmax(axis=1)] for d in (P, Q)]
    assert abs((by_noise[0] == by_noise[1]).mean() - noise) < 0.006
