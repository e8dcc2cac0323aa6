"""The time saved by drafts is reported once its sign is certain."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from pyllama_spec.speculative.stats import RealisedGain


def _of(gains: Sequence[float]) -> RealisedGain:
    gain = RealisedGain()
    for one in gains:
        gain.count(one)
    return gain


@pytest.mark.parametrize(
    ("gains", "known"),
    [
        ([], None), ([3.0], None), ([0.0] * 50, None),
        ([0.5] * 2, 1.0), ([-0.75] * 3, -2.25),
        ([1.0, 0.9, 1.1], 3.0), ([1.0, -0.9, 1.1], None),
        # One round that waited for another program, among few and among many.
        ([1.0] * 4 + [-20.0], None), ([1.0] * 400 + [-20.0], 380.0),
    ],
)  # fmt: skip
def test_a_sum_is_known_once_the_rounds_agree(gains: Sequence[float], known: float | None) -> None:
    assert _of(gains).known == (None if known is None else pytest.approx(known))


@pytest.mark.parametrize("n", [2, 3, 5, 11, 12, 40])
def test_noise_has_a_sign_in_one_text_of_twenty(n: int) -> None:
    random = Random(n)
    texts = [_of([random.gauss(0.0, 2.0) for _ in range(n)]) for _ in range(4000)]
    n_known = sum(text.known is not None for text in texts)
    # 5% with a standard deviation of 14 texts; from 12 rounds on the quantile is above its own.
    assert n_known < 200 + 4 * 14
    assert n_known > 40, "the rule is not so strict that nothing is ever known"


@pytest.mark.parametrize("mean", [-0.5, 0.5])
def test_a_true_gain_is_known_in_a_long_text(mean: float) -> None:
    random = Random(7)
    for _ in range(200):
        known = _of([random.gauss(mean, 1.0) for _ in range(200)]).known
        assert known is not None
        assert known * mean > 0
