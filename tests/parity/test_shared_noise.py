"""Promise 1 for acceptance="noise": a seed's text is the same with any draft, and well distributed.

As in test_rejection_sampling.py, the MARKOV model's texts have known probabilities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import Draft, Drafter, DraftRequest, NoDrafter, SharedNoise
from pyllama_spec.drafters.small_model import SmallModel
from pyllama_spec.engine import Model, Sampler
from pyllama_spec.engine.sampler import shared_noise
from pyllama_spec.llama_cpp import LlamaGrammar
from pyllama_spec.speculative import Controller, Round, SequenceRun, SequenceState, Span
from tests.models import model_path
from tests.oracles import tiny, tiny_context
from tests.parity.test_distribution import chi_square
from tests.parity.test_rejection_sampling import (
    LETTERS,
    PLAIN,
    TARGET_ROWS,
    A,
    finish,
    misfit,
    small,
)

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


def start(model: Model, seed: int, seq: SequenceState, n: int = 4) -> SequenceRun:
    params = replace(NOISE, seed=seed)
    sampler = Sampler(model, params)
    return SequenceRun(seq, (A, A), sampler, n, noise=SharedNoise(params, sampler))


def texts_of(drafter: Drafter, n: int, n_seqs: int = 1) -> tuple[list[list[int]], float]:
    """A text of each of the seeds 0 .. n - 1, and the share of drafted tokens accepted."""
    model = tiny("markov", chances=TARGET_ROWS)
    out: list[list[int]] = []
    n_drafted = n_accepted = 0
    with tiny_context(model, n_ctx=64 * n_seqs, n_seq_max=n_seqs) as context:
        round_ = Round(context, drafter)
        states = [SequenceState(i) for i in range(n_seqs)]
        while len(out) < n:
            runs = [start(model, len(out) + state.seq_id, state) for state in states]
            out += finish(round_, runs)
            n_drafted += sum(run.stats.drafted for run in runs)
            n_accepted += sum(run.stats.accepted for run in runs)
            assert {run.stats.acceptance for run in runs} == {"noise"}
    return out[:n], n_accepted / max(n_drafted, 1)


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
    monkeypatch.setattr(f"{__name__}.SharedNoise", OffByOne)
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


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.4, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"repeat_penalty": 1.3, "frequency_penalty": 0.2},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"logit_bias": {100: 4.0, 101: -100.0}},
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
            # XTC draws numbers of its own, which a draft does not know.
            if draft == itself and "xtc_probability" not in options:
                assert told["accepted"] >= 0.5 * told["drafted"] > 0
    assert len(set(texts)) == 1


def test_a_grammar_and_a_processor_do_not_hinder_it() -> None:
    grammar = LlamaGrammar.from_string('root ::= ("ab" | "cd" | "ef")+')
    texts = []
    for draft in (None, model_path("llama")):
        with opened(draft) as llm:
            ruled = answer(llm, grammar=grammar)
            changed = answer(llm, logits_processor=[_forbid])
            assert ruled["speculation"]["acceptance"] == "noise"
            texts.append((text_of(ruled), text_of(changed)))
    assert texts[0] == texts[1]


def _forbid(ids: npt.NDArray[np.int32], row: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    out: npt.NDArray[np.float32] = row.copy()
    out[:150] = -np.inf
    return out


def test_where_nothing_is_drawn_the_text_is_the_exact_one() -> None:
    with opened(None) as llm:
        ways: tuple[tuple[dict[str, Any], str], ...] = (
            ({"temperature": 0.0}, "temperature 0"), ({"mirostat_mode": 2}, "mirostat"),
        )  # fmt: skip
        for options, why in ways:
            both = [answer(llm, acceptance=way, **options) for way in ("exact", "noise")]
            assert text_of(both[0]) == text_of(both[1])
            assert why in both[1]["speculation"]["why_exact"]


def test_seeds_differ_and_a_copy_continues() -> None:
    model = tiny("markov", chances=TARGET_ROWS)
    row = np.full(model.info.n_vocab, -np.inf, np.float32)
    row[list(LETTERS)] = np.log(TARGET_ROWS[0])
    drawn: Counter[tuple[int, ...]] = Counter()
    for seed in range(60):
        sampler = Sampler(model, replace(NOISE, seed=seed))
        tokens = []
        for _ in range(6):
            tokens.append(sampler.sample_row(row))
            assert sampler.sample_row(row) == tokens[-1], "nothing was accepted in between"
            sampler.accept(tokens[-1])
        assert sampler.place == 6
        with closing(sampler.clone()) as other:
            assert other.place == 6
            assert other.sample_row(row) == sampler.sample_row(row)
        with closing(Sampler(model, replace(NOISE, seed=seed))) as again:
            again.accept(A, generated=False)
            assert again.sample_row(row) == tokens[0], "a prompt's tokens are not counted"
        drawn[tuple(tokens)] += 1
        sampler.close()
    assert len(drawn) > 50


class Two(Controller):
    name = "two"

    def verify_lengths(self, spans: Sequence[Span]) -> list[int]:
        return [min(len(span.draft.ids), 2) for span in spans]


def test_what_the_noise_drew_need_not_be_verified() -> None:
    """The controller may cut such drafts, unlike those of rejection sampling."""
    with Llama(
        model_path("llama"), draft=model_path("llama"), n_ctx=256, n_threads=1, controller=Two(),
        acceptance="noise",
    ) as llm:  # fmt: skip
        told = answer(llm)["speculation"]
    assert told["proposed"] > told["drafted"] > 0
    assert told["accepted"] >= 0.5 * told["drafted"]
