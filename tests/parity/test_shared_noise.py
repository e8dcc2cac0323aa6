"""Promise 1 for acceptance="noise": a seed's text is the same with any draft, and well distributed.

As in test_rejection_sampling.py, the MARKOV model's texts have known probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import Draft, Drafter, DraftRequest, NoDrafter, SharedNoise
from pyllama_spec.drafters.small_model import SmallModel
from pyllama_spec.engine.sampler import shared_noise
from tests.models import model_path
from tests.parity import test_rejection_sampling
from tests.parity.test_distribution import chi_square
from tests.parity.test_rejection_sampling import PLAIN, TARGET_ROWS, misfit, small

NOISE = replace(PLAIN, shared_noise=True)
MASK = (1 << 64) - 1


def mixed(x: int) -> int:
    """The finalizer of SplitMix64, in Python's integers."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def noise_of(seed: int, place: int, token: int) -> float:
    """The noise as csrc/abi/sampler.h defines it."""
    u = ((mixed(mixed(mixed(seed) ^ place) ^ token) >> 11) + 0.5) * 2.0**-53
    return float(-np.log(-np.log(u)))


def texts_of(drafter: Drafter, n: int, n_seqs: int = 1) -> tuple[list[list[int]], float]:
    """A text of each of the seeds 0 .. n - 1, and the share of drafted tokens accepted."""
    texts, n_drafted, n_accepted = test_rejection_sampling.texts_of(
        drafter, n, NOISE, n_seqs=n_seqs, acceptance="noise"
    )
    return texts, n_accepted / max(n_drafted, 1)


def test_the_noise_is_the_one_that_is_defined() -> None:
    ids = np.array([0, 1, 97, 151_935], np.int32)
    for seed, place in ((0, 0), (1, 0), (2**32 - 2, 5), (7, 40_000)):
        wanted = [noise_of(seed, place, int(token)) for token in ids]
        np.testing.assert_allclose(shared_noise(seed, place, ids), wanted, rtol=1e-12)


def test_it_has_gumbels_distribution() -> None:
    """Its largest sum with logits is thus a draw from their softmax."""
    g = shared_noise(3, 11, np.arange(200_000, dtype=np.int32))
    u = np.exp(-np.exp(-g))
    found = np.histogram(u, 50, (0.0, 1.0))[0].astype(np.float64)
    statistic, limit = chi_square(found, np.full(50, 1 / 50))
    assert statistic < limit
    assert abs(np.corrcoef(g[:-1], g[1:])[0, 1]) < 0.01, "neighbours are independent"
    there = np.array([float(shared_noise(3, i, np.array([5], np.int32))[0]) for i in range(2000)])
    assert abs(np.corrcoef(there[:-1], there[1:])[0, 1]) < 0.08


def test_texts_have_the_targets_distribution() -> None:
    texts, _ = texts_of(NoDrafter(), 1600)
    assert misfit(texts) < 1.0


@pytest.mark.parametrize("n_seqs", [1, 4])
def test_a_seed_has_one_text_with_any_draft(n_seqs: int) -> None:
    plain, _ = texts_of(NoDrafter(), 120)
    drafted, share = texts_of(small(), 120, n_seqs)
    assert drafted == plain
    assert 0.3 < share < 0.9


class Likeliest(SmallModel):
    """A small model that drafts its likeliest tokens: its chances are not the noise's."""

    draws_tokens = False

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        return super().propose([request._replace(draws=None) for request in requests])


def test_the_noise_accepts_more_than_the_likeliest_token() -> None:
    _, shared = texts_of(small(), 400)
    path = small().model.path
    _, likeliest = texts_of(Likeliest(path, 3), 400)
    assert shared > likeliest + 0.1


def test_a_draft_of_the_same_model_is_always_right() -> None:
    _, share = texts_of(SmallModel(model_path("markov", chances=TARGET_ROWS), 3), 100)
    assert share == 1.0


class OffByOne(SharedNoise):
    """The noise of the place after the one that is drafted."""

    def begin(self) -> None:
        super().begin()
        self._place += 1


def test_another_places_noise_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault reduces a perfect draft's acceptance to chance."""
    monkeypatch.setattr(test_rejection_sampling, "SharedNoise", OffByOne)
    _, share = texts_of(SmallModel(model_path("markov", chances=TARGET_ROWS), 3), 200)
    assert share < 0.6


@contextmanager
def opened(draft: str | Path | None) -> Iterator[Llama]:
    with Llama(
        model_path("llama"), draft=draft, n_ctx=256, controller="fixed" if draft else None,
        n_threads=1, n_parallel=2, acceptance="noise",
    ) as llm:  # fmt: skip
        yield llm


def answer(llm: Llama, prompt: str = "x", **options: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {"temperature": 0.9, "seed": 5, "max_tokens": 24, **options}
    found = llm.create_completion(prompt, **kept)
    assert isinstance(found, dict)
    return found


def text_of(found: dict[str, Any]) -> str:
    return str(found["choices"][0]["text"])


def _forbid(ids: npt.NDArray[np.int32], row: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    out: npt.NDArray[np.float32] = row.copy()
    out[:150] = -np.inf
    return out


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.4, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"repeat_penalty": 1.3, "frequency_penalty": 0.2},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"logit_bias": {100: 4.0, 101: -100.0}},
    {"logits_processor": [_forbid]},
    {"grammar": 'root ::= ("ab" | "cd" | "ef")+'},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_through_llama(options: dict[str, Any]) -> None:
    itself, texts = model_path("llama"), []
    for draft in (None, itself, "prompt-lookup"):
        with opened(draft) as llm:
            answers = [answer(llm, "Hello there,", **options) for _ in range(2)]
            texts += [text_of(one) for one in answers]
            told = answers[0]["speculation"]
            assert (told["acceptance"], told["why_exact"]) == ("noise", None)
            # A draft knows neither these rules nor the numbers that XTC draws.
            unknown = {"xtc_probability", "grammar", "logits_processor"}
            if draft == itself and not options.keys() & unknown:
                assert told["accepted"] >= 0.5 * told["drafted"] > 0
    assert len(set(texts)) == 1
