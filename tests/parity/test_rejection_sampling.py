"""Promise 1 for acceptance="distribution": texts have the target's distribution.

The MARKOV model's next token depends only on the last one, by a known table: the probability of
each text of four tokens is a product. The draft is a MARKOV model with another table, so that about
a third of its draws is rejected. Pearson's statistic is used as in test_distribution.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import (
    Draft,
    Drafter,
    DraftRequest,
    NoDrafter,
    SharedNoise,
    TokenDraws,
)
from pyllama_spec.drafters.lookup_first import LookupFirst
from pyllama_spec.drafters.small_model import SmallModel
from pyllama_spec.engine import Batch, Model, Sampler, SamplerParams
from pyllama_spec.speculative import (
    Controller,
    Round,
    SequenceRun,
    SequenceState,
    Span,
    acceptance,
)
from tests.models import CONSTANT_TOKENS, model_path
from tests.oracles import tiny, tiny_context
from tests.parity.test_distribution import OFF, Array, chi_square
from tests.unit.test_rejection import always, unclipped, upside_down, whole

LETTERS = CONSTANT_TOKENS[:3]
TARGET_ROWS = ((0.5, 0.3, 0.2), (0.15, 0.6, 0.25), (0.3, 0.2, 0.5))
DRAFT_ROWS = ((0.2, 0.5, 0.3), (0.5, 0.2, 0.3), (0.15, 0.35, 0.5))
TARGET = np.array(TARGET_ROWS)
N_TOKENS = 4
TEXTS = list(product(range(3), repeat=N_TOKENS))
A = LETTERS[0]
PLAIN = SamplerParams(seed=3, **{**OFF, "temperature": 1.0})  # type: ignore[arg-type]

Chance = Callable[[Sequence[int]], Array]


def small(max_draft: int = 3, **own: Any) -> SmallModel:
    """The draft; p_min is its own, the rest is the builder's."""
    p_min = own.pop("p_min", 0.0)
    return SmallModel(model_path("markov", chances=DRAFT_ROWS, **own), max_draft, p_min=p_min)


def start(
    model: Model,
    seed: int,
    params: SamplerParams = PLAIN,
    n: int = N_TOKENS,
    prompt: Sequence[int] = (A, A),
    seq: SequenceState | None = None,
) -> SequenceRun:
    """A request whose acceptance is by shared noise where the parameters say so."""
    params = replace(params, seed=seed)
    sampler = Sampler(model, params)
    draws = SharedNoise(params, sampler) if params.shared_noise else TokenDraws(params, seed)
    return SequenceRun(seq or SequenceState(), prompt, sampler, n, draws=draws)


def finish(round_: Round, runs: Sequence[SequenceRun]) -> list[list[int]]:
    """The texts of requests that are computed together."""
    for run in runs:
        round_.begin(run)
    while left := [run for run in runs if not run.is_over]:
        round_.step(left)
    for run in runs:
        assert not run.has_failed
    return [run.state.tokens[len(run.prompt) :] for run in runs]


def texts_of(
    drafter: Drafter,
    n: int,
    params: SamplerParams = PLAIN,
    *,
    model: Model | None = None,
    controller: Controller | None = None,
    n_seqs: int = 1,
    prompt: Sequence[int] = (A, A),
    acceptance: str = "distribution",
) -> tuple[list[list[int]], int, int]:
    """So many texts, and how many of their tokens were drafted, and accepted."""
    model = model or tiny("markov", chances=TARGET_ROWS)
    out: list[list[int]] = []
    n_drafted = n_accepted = 0
    with tiny_context(model, n_ctx=64 * n_seqs, n_seq_max=n_seqs) as context:
        round_ = Round(context, drafter, None, controller)
        states = [SequenceState(i) for i in range(n_seqs)]
        while len(out) < n:
            at = len(out)
            runs = [start(model, at + s.seq_id, params, prompt=prompt, seq=s) for s in states]
            out += finish(round_, runs)
            n_drafted += sum(run.stats.drafted for run in runs)
            n_accepted += sum(run.stats.accepted for run in runs)
            assert {run.stats.acceptance for run in runs} == {acceptance}
    return out, n_drafted, n_accepted


def from_table(text: Sequence[int]) -> Array:
    row: Array = TARGET[text[-1]]
    return row


def misfit(texts: Sequence[Sequence[int]], chance: Chance = from_table) -> float:
    """Pearson's statistic over its limit: below 1 where texts have the distribution."""
    counts = Counter(tuple(LETTERS.index(token) for token in text) for text in texts)
    expected = []
    for text in TEXTS:
        p = 1.0
        for i, letter in enumerate(text):
            p *= chance((0, 0, *text[:i]))[letter]
        expected.append(p)
    found = np.array([counts.pop(text, 0) for text in TEXTS], np.float64)
    assert not counts, "a text that cannot be"
    chances = np.array(expected)
    # Texts that are too seldom count together.
    rare = chances * len(texts) < 8.0
    if rare.any():
        found = np.append(found[~rare], found[rare].sum())
        chances = np.append(chances[~rare], chances[rare].sum())
    statistic, limit = chi_square(found, chances)
    return statistic / limit


# ---- the distribution


def test_texts_have_the_targets_distribution() -> None:
    texts, _, n_accepted = texts_of(small(), 1600)
    assert misfit(texts) < 1.0
    assert 0.4 < n_accepted / (3 * len(texts)) < 0.9, "some is accepted, and some is not"


@pytest.mark.parametrize(
    "rule",
    [
        upside_down,
        *(pytest.param(rule, marks=pytest.mark.slow) for rule in (always, unclipped, whole)),
    ],
)
def test_a_wrong_rule_shows(monkeypatch: pytest.MonkeyPatch, rule: Any) -> None:
    monkeypatch.setattr(acceptance, "accept_or_redraw", rule)
    assert misfit(texts_of(small(), 1000)[0]) > 1.0


def test_the_distribution_of_the_place_before_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    accept_drawn: Any = acceptance.accept_drawn

    def stale(*arguments: Any) -> None:
        *others, drawn = arguments
        accept_drawn(*others, [drawn[0], *drawn[:-1]])

    monkeypatch.setattr("pyllama_spec.speculative.round.accept_drawn", stale)
    assert misfit(texts_of(small(), 2000)[0]) > 1.0


class Doubting(Controller):
    """Wants to leave out what it does not like, by what was drawn; that is not for it to say."""

    def verify_lengths(self, spans: Sequence[Span]) -> Sequence[int]:
        """Verifies up to the first token that is not an a."""
        return [next((i for i, id_ in enumerate(span.draft.ids) if id_ != A), 3) for span in spans]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "how"),
    [
        # Places are left out by their distributions, and none by what was drawn.
        (lambda: small(p_min=0.45), {}),
        (small, {"controller": Doubting()}),
        # The same texts under other ids: the distribution is mapped.
        (lambda: small(shuffle=5), {}),
        # What followed the last two tokens in the prompt is accepted exactly.
        (lambda: LookupFirst(small(), 2), {"prompt": [A, A + 1, A + 2, A, A + 1, A, A]}),
        (small, {"n_seqs": 4}),
        (lambda: small(2), {}),
    ],
    ids=["p_min", "controller", "mapped", "copies", "together", "two"],
)
def test_whatever_is_drafted(make: Callable[[], Drafter], how: dict[str, Any]) -> None:
    texts, _, n_accepted = texts_of(make(), 2000, **how)
    assert misfit(texts) < 1.0
    assert n_accepted > len(texts) / 3


def leave_out_what_was_drawn(choice: Any) -> tuple[int, float]:
    """A fault: a place's probability is that of the token that was drawn there."""
    token = choice.ids[0]
    return token, choice.drawn_from.of(token)


@pytest.mark.slow
def test_leaving_out_unlikely_draws_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllama_spec.drafters.draft_memory.Choice.best", leave_out_what_was_drawn)
    assert misfit(texts_of(small(p_min=0.45), 3000)[0]) > 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.7, "top_p": 0.85},
        {"presence_penalty": 0.8, "frequency_penalty": 0.3, "logit_bias": {A: 0.5}},
        {"temperature": 1.3, "min_p": 0.3, "min_tokens": 3},
    ],
)
def test_with_all_of_the_chain(values: dict[str, Any]) -> None:
    """Cuts, penalties, biases and rules, against the probabilities of sample()'s own draws."""
    model = tiny("markov", chances=TARGET_ROWS)
    params = replace(PLAIN, **values)
    known: dict[tuple[int, ...], Array] = {}
    with tiny_context(model) as context:

        def chance(text: Sequence[int]) -> Array:
            if tuple(text) not in known:
                context.memory.clear()
                batch = Batch(16)
                for i, letter in enumerate(text):
                    batch.add(LETTERS[letter], i, output=True)
                context.decode(batch)
                sampler = Sampler(model, params)
                for letter in text[2:]:
                    sampler.accept(LETTERS[letter])
                found = sampler.distribution(context, len(text) - 1)
                known[tuple(text)] = np.array([found.of(token) for token in LETTERS])
            return known[tuple(text)]

        texts, _, n_accepted = texts_of(small(), 2000, params)
        assert misfit(texts, chance) < 1.0
        assert n_accepted > len(texts) / 3


def test_an_end_ends_the_text() -> None:
    """An end token, drafted or drawn by the target, ends the text, and it comes often."""
    end = LETTERS[1]
    model = Model(
        model_path("markov", chances=TARGET_ROWS), kv_overrides={"tokenizer.ggml.eos_token_id": end}
    )
    assert model.vocab.is_eog(end)
    texts, *_ = texts_of(small(), 800, model=model)
    counts = Counter(len(text) if text[-1] == end else 0 for text in texts)
    assert all(end not in text[:-1] for text in texts)
    # The chance that no end has come, by the letter that stands last.
    alive, expected = np.array([1.0, 0.0, 0.0]), []
    for _ in range(N_TOKENS):
        alive = alive @ TARGET
        expected.append(alive[1])
        alive[1] = 0.0
    found = np.array([counts[i] for i in (1, 2, 3, 4, 0)], np.float64)
    statistic, limit = chi_square(found, np.array([*expected, alive.sum()]))
    assert statistic < limit
    model.close()


# ---- seeds


@contextmanager
def markov_round(n_seqs: int = 1) -> Iterator[Round]:
    with tiny_context(
        tiny("markov", chances=TARGET_ROWS), n_ctx=128 * n_seqs, n_seq_max=n_seqs
    ) as one:
        yield Round(one, small())


def test_a_seed_gives_the_same_text_again_alone_and_beside_others() -> None:
    model = tiny("markov", chances=TARGET_ROWS)
    with markov_round() as round_:
        alone = [finish(round_, [start(model, i, n=40)])[0] for i in range(4)]
        again = [finish(round_, [start(model, i, n=40)])[0] for i in range(4)]
    assert again == alone
    assert len({tuple(text) for text in alone}) == 4
    with markov_round(4) as round_:
        runs = [start(model, i, n=40, seq=SequenceState(i)) for i in range(4)]
        assert finish(round_, runs) == alone


# ---- through Llama, and where it is accepted exactly


def llama(**options: Any) -> Llama:
    """A Llama with a fixed draft length; by default the model drafts, without copies."""
    values: dict[str, Any] = {"controller": "fixed", "n_ctx": 256, "n_threads": 1, **options}
    if "draft" not in values:
        path = model_path("markov", chances=DRAFT_ROWS)
        values = {"draft": path, "lookup": 0, "n_draft": 3, **values}
    return Llama(model_path("markov", chances=TARGET_ROWS), **values)


def said(llm: Llama, **options: Any) -> tuple[str, dict[str, Any]]:
    values = {"max_tokens": 40, "temperature": 1.0, "seed": 7, **options}
    answer: Any = llm.create_completion("aa", **values)
    return answer["choices"][0]["text"], answer["speculation"]


def test_a_keyword_and_an_option() -> None:
    with llama() as exact, llama(draft=None) as plain, llama(acceptance="distribution") as other:
        text, stats = said(exact)
        assert (text, stats["acceptance"], stats["why_exact"]) == (said(plain)[0], "exact", None)
        drawn, stats = said(other)
        assert (stats["acceptance"], stats["why_exact"]) == ("distribution", None)
        assert stats["accepted"] > 0 and drawn != text
        assert said(exact, acceptance="distribution")[0] == drawn == said(other)[0]
        assert said(other, acceptance="exact")[0] == text
        assert said(other, seed=8)[0] != drawn
        begun, _ = said(other, stop=[drawn[20:24]])
        assert begun == drawn[: drawn.index(drawn[20:24])]
        pieces: Any = other.create_completion(
            "aa", max_tokens=40, temperature=1.0, seed=7, stream=True
        )
        assert "".join(chunk["choices"][0]["text"] for chunk in pieces) == drawn


def _same(_: Any, scores: Any) -> Any:
    return scores


class Guessing(Drafter):
    name = "guessing"
    max_draft = 3

    def propose_one(self, request: DraftRequest) -> Draft:
        assert request.draws is None
        return Draft([A] * request.n_requested)


@pytest.mark.parametrize(
    ("draft", "options", "why"),
    [
        ({}, {"temperature": 0.0}, "temperature 0"),
        ({}, {"mirostat_mode": 1}, "mirostat"),
        ({}, {"mirostat_mode": 2}, "mirostat"),
        ({}, {"grammar": "root ::= [a-b]+"}, "grammar"),
        ({}, {"logits_processor": [_same]}, "logits processors"),
        ({"draft": Guessing()}, {}, "does not draw"),
        ({"draft": NoDrafter()}, {}, "does not draw"),
        ({"draft": "prompt-lookup"}, {}, "does not draw"),
    ],
)
def test_where_there_is_no_distribution_it_is_exact(
    draft: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    with llama(acceptance="distribution", **draft) as llm, llama(draft=None) as plain:
        text, stats = said(llm, **options)
        assert text == said(plain, **options)[0]
        assert stats["acceptance"] == "exact" and why in stats["why_exact"]
        assert stats["drafted"] > 0 or draft
