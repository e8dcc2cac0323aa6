"""Promise 1: the text equals plain decoding, whatever is drafted.

Plain decoding is checked by O2 (every row equals that of a single-token decode in a fresh context).
Every drafted run is checked against it: the tokens and their rows (O2 and O6), with O1, O5 and the
statistics' invariants. Everything here is bit-exact on a CPU, so there is no tolerance.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from pyllama_spec.drafters import Drafter, PromptLookup
from pyllama_spec.engine import Context, Model, SamplerParams
from pyllama_spec.speculative import Round, SequenceState, SpeculativeLoop
from tests import models
from tests.models import STATES, STATES_WITHOUT_SNAPSHOTS
from tests.oracles import (
    GREEDY,
    LoopRun,
    check_same_rows,
    check_teacher_forced,
    generate,
    prompt_tokens,
    run_once,
    sampled,
    text_by_hand,
    tiny,
    tiny_context,
)
from tests.scripted import Hostile, Intermittent, Pattern, Perfect, ScriptedDrafter, Wrong
from tests.suffix_tools import knowing
from tests.tiers import release_except

ARCHS = ("llama", "qwen3", "qwen3moe", "gemma3", *STATES)
PROMPT = prompt_tokens(21, seed=5)
N_TOKENS = 40
SAMPLINGS = {"greedy": GREEDY, "seeded": sampled(7)}

Make = Callable[[Sequence[int], Model, int], Drafter]


def _hostile(p_raise: float) -> Make:
    def make(text: Sequence[int], model: Model, k: int) -> Drafter:
        eos = model.vocab.eos
        assert eos is not None
        return Hostile(text, model.info.n_vocab, eos, max(k, 1), p_raise, seed=k)

    return make


DRAFTERS: dict[str, Make] = {
    "perfect": lambda text, _, k: Perfect(text, max(k, 1)),
    "wrong": lambda text, _, k: Wrong(text, max(k, 1)),
    "pattern": lambda text, _, k: Pattern(text, [k]),
    "pattern-mixed": lambda text, _, k: Pattern(text, [3, 0, k, 8, 1]),
    "intermittent": lambda text, _, k: Intermittent(Pattern(text, [k, 8, 2])),
    "hostile": _hostile(0.0),
    "failing": _hostile(0.15),
    "prompt-lookup": lambda _text, _, k: PromptLookup(max(k, 1), max_ngram=2, min_ngram=1),
    "suffix": lambda text, _, k: knowing(text, max_draft=max(k, 1)),
}


@cache
def context_of(arch: str) -> Context:
    """One context per architecture, cleared before each run.

    Small output matrices make the seeded draws random instead of mostly the argmax.
    """
    return tiny_context(tiny(arch, output_scale=3.0))


@cache
def plain(arch: str, sampling: str) -> LoopRun:
    """The text without drafts, each row of it checked against single-token decodes."""
    context = context_of(arch)
    run = run_once(context, None, PROMPT, N_TOKENS, SAMPLINGS[sampling], keep_rows=True)
    check_teacher_forced(context.model, run)
    assert run.text == text_by_hand(context.model, PROMPT, N_TOKENS, SAMPLINGS[sampling])
    assert run.finish_reason == "length"
    assert len(run.tokens) == N_TOKENS
    assert (run.stats.drafted, run.stats.reason_off) == (0, None)
    return run


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("arch", release_except(ARCHS, ("llama", "qwen35")))
def test_the_text_is_that_of_plain_decoding(arch: str, sampling: str, kind: str) -> None:
    expected, context = plain(arch, sampling), context_of(arch)
    for k in range(9):
        drafter = DRAFTERS[kind](expected.text, context.model, k)
        run = run_once(
            context, drafter, PROMPT, N_TOKENS, SAMPLINGS[sampling], n_draft=k, keep_rows=True
        )
        assert run.tokens == expected.tokens, f"k = {k}"
        assert run.finish_reason == "length"
        check_same_rows(run, expected)
        if kind != "failing":
            assert (run.stats.reason_off is None) == (k > 0)
            if isinstance(drafter, ScriptedDrafter):
                assert drafter.history() == run.text, "the drafter was told the text"
        if k == 0:
            assert run.stats.drafted == 0


def test_the_seeded_text_is_not_the_greedy_one() -> None:
    """The seeded half of the test above would otherwise show nothing."""
    for arch in ARCHS:
        assert plain(arch, "seeded").tokens != plain(arch, "greedy").tokens
        other = run_once(context_of(arch), None, PROMPT, N_TOKENS, sampled(8))
        assert other.tokens != plain(arch, "seeded").tokens


@pytest.mark.parametrize("k", range(9))
@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_a_pattern_accepts_exactly_k(arch: str, k: int) -> None:
    expected, context = plain(arch, "greedy"), context_of(arch)
    drafter = Pattern(expected.text, [k])
    run = run_once(context, drafter, PROMPT, N_TOKENS)
    # The last round is cut to what max_tokens leaves.
    for step in run.steps[1:-1]:
        assert (step.n_drafted, step.n_accepted) == (min(8, step.n_drafted), k)
    assert run.stats.accepted_histogram[k] >= run.stats.rounds - 1


GRAMMAR = r"""
root  ::= "{" pair ("," pair)* "}"
pair  ::= "\"" [a-f]+ "\":" value
value ::= [0-9]+ | "[" [0-9]+ ("," [0-9]+)* "]" | root
"""


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_a_grammar_advances_over_committed_tokens_alone(arch: str, temperature: float) -> None:
    """The grammar forbids drafts at every place of a block."""
    context = context_of(arch)
    for seed in range(4):
        params = SamplerParams(temperature=temperature, seed=seed, top_k=0, grammar=GRAMMAR)
        expected = run_once(context, None, PROMPT, 60, params)
        said = context.model.vocab.detokenize(expected.tokens).decode()
        assert re.fullmatch(r'[\[\]{}",:a-f0-9]+', said)
        assert said.startswith('{"')
        for drafter in (
            Perfect(expected.text),
            Wrong(expected.text),
            Pattern(expected.text, [3, 0, 8, 1]),
            Hostile(expected.text, context.model.info.n_vocab, models.EOS, seed=seed),
        ):
            run = run_once(context, drafter, PROMPT, 60, params)
            assert run.tokens == expected.tokens
            assert run.finish_reason == expected.finish_reason


@pytest.mark.parametrize("arch", [*STATES_WITHOUT_SNAPSHOTS, "qwen35"])
def test_a_state_without_snapshots_drafts_nothing(arch: str) -> None:
    expected = plain(arch, "greedy")
    with tiny_context(tiny(arch, output_scale=3.0), n_rs_seq=0) as context:
        round_ = Round(context, Perfect(expected.text))
        run = generate(SpeculativeLoop.of(round_), SequenceState(), PROMPT, N_TOKENS)
    assert run.tokens == expected.tokens
    assert run.stats.drafted == 0
    assert round_.max_draft == 0
    assert "snapshots" in (run.stats.reason_off or "")


def test_snapshots_limit_the_draft() -> None:
    expected = plain("qwen35", "greedy")
    with tiny_context(tiny("qwen35", output_scale=3.0), n_rs_seq=3) as context:
        run = run_once(context, Pattern(expected.text, [0, 3, 1]), PROMPT, N_TOKENS)
    assert run.tokens == expected.tokens
    assert max(step.n_drafted for step in run.steps) == 3


@pytest.mark.parametrize(
    ("options", "n_rows"),
    [
        ({"n_outputs_max": 1}, 1), ({"n_outputs_max": 4}, 4), ({"n_outputs_max": 40}, 9),
        ({"n_batch": 1}, 1), ({"n_batch": 5}, 5), ({"n_ubatch": 2}, 9),
    ],
)  # fmt: skip
def test_a_verify_batch_fits_the_context(options: dict[str, int], n_rows: int) -> None:
    text = plain("llama", "greedy").text
    with tiny_context(tiny("llama", output_scale=3.0), **options) as context:
        run = run_once(context, Perfect(text), PROMPT, N_TOKENS)
    assert run.text == text
    assert max(step.n_drafted for step in run.steps) == n_rows - 1


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
@pytest.mark.parametrize("n_draft", [2, 5, 8])
def test_an_end_in_mid_block_ends_the_text(arch: str, n_draft: int) -> None:
    """Nothing after EOS in a draft is emitted, and the next turn is right."""
    context = tiny_context(tiny(arch, output_scale=3.0, suppress_special=False))
    offsets: set[int] = set()
    for seed in range(10):
        params = sampled(seed, logit_bias={models.EOS: 5.0})
        expected = run_once(context, None, PROMPT, 60, params)
        if expected.finish_reason != "stop":
            continue
        ends = [context.model.vocab.is_eog(token) for token in expected.tokens]
        assert ends.index(True) == len(ends) - 1
        drafter = Perfect(expected.text + prompt_tokens(20), n_draft)
        context.memory.clear()
        loop, seq = SpeculativeLoop(context, drafter), SequenceState()
        run = generate(loop, seq, PROMPT, 60, params)
        assert (run.tokens, run.finish_reason) == (expected.tokens, "stop")
        offsets.add(len(run.steps[-1].tokens) - 1)
        following = [*run.text, *prompt_tokens(5, seed)]
        cold = run_once(tiny_context(context.model), None, following, 8, params)
        drafter.reference = cold.text
        assert generate(loop, seq, following, 8, params).tokens == cold.tokens
    assert len(offsets) >= 2, "the end has to fall on several places of a block"


REPETITIVE = "def add(a, b):\n    return a + b\n\ndef add(a, b):\n    return a"


@pytest.mark.parametrize("name", ["smollm2_q4_0", "smollm2_bf16"])
def test_smollm2_says_the_same(name: str, request: pytest.FixtureRequest) -> None:
    """Uses one thread: with another test beside this one, two would wait for each other."""
    path: Path = request.getfixturevalue(name)
    with Model(path) as model, tiny_context(model, n_ctx=128, n_ubatch=64) as context:
        prompt = model.vocab.tokenize(REPETITIVE)
        for params in (GREEDY, sampled(3)):
            expected = run_once(context, None, prompt, 46, params, keep_rows=True)
            check_teacher_forced(model, expected)
            text = expected.text
            # How many tokens of it, at most how many drafted, by whom. Widths of 1 to 9 rows occur.
            cases: list[tuple[int, int, Drafter]] = [
                (46, 8, Pattern(text, range(9))),
                (16, 8, Hostile(text, model.info.n_vocab, model.vocab.eos or 0)),
                (46, 8, PromptLookup()),
                (10, 6, Wrong(text)),
                (20, 8, Intermittent(Pattern(text, [8, 2, 5]))),
                *((2 * k + 3, k, Perfect(text)) for k in range(1, 9)),
            ]
            for n, n_draft, drafter in cases if params.is_greedy else cases[:3]:
                run = run_once(context, drafter, prompt, n, params, n_draft=n_draft)
                assert run.tokens == expected.tokens[:n], (drafter.name, n_draft)
                assert run.stats.reason_off is None
