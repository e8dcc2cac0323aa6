"""Requests that share a prefix with their sequence: the text of a cold run, for less work."""

from __future__ import annotations

import random

import pytest

from pyllama_spec.drafters import Drafter, PromptLookup
from pyllama_spec.engine import Context, SamplerParams
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.oracles import (
    GREEDY,
    LoopRun,
    check_same_rows,
    generate,
    prompt_tokens,
    run_once,
    sampled,
    tiny,
    tiny_context,
)
from tests.scripted import Intermittent, Pattern, ScriptedDrafter

ARCHS = ("llama", "qwen3moe", "gemma3", "gpt-oss", "qwen35", "lfm2", "mamba2", "jamba", "rwkv7")
DRAFTERS = ("prompt-lookup", "pattern", "intermittent")
PARAMS = sampled(4)


def make(kind: str) -> Drafter:
    if kind == "prompt-lookup":
        return PromptLookup(6, max_ngram=3, min_ngram=1)
    pattern = Pattern([], [3, 0, 8, 1])
    return pattern if kind == "pattern" else Intermittent(pattern)


class Session:
    """One loop on one sequence, beside a context in which every request starts cold."""

    def __init__(self, arch: str, drafter: Drafter, params: SamplerParams, **options: int) -> None:
        model = tiny(arch, output_scale=3.0)
        self.context, self.cold = (tiny_context(model, n_ctx=512, **options) for _ in range(2))
        self.drafter, self.params = drafter, params
        self.loop, self.seq = SpeculativeLoop(self.context, drafter), SequenceState()

    def request(self, prompt: list[int], n: int) -> LoopRun:
        """The same text and rows as a cold run without drafts."""
        expected = run_once(self.cold, None, prompt, n, self.params, keep_rows=True)
        if isinstance(self.drafter, ScriptedDrafter):
            self.drafter.reference = expected.text
        run = generate(self.loop, self.seq, prompt, n, self.params, keep_rows=True)
        assert run.tokens == expected.tokens
        check_same_rows(run, expected)
        if isinstance(self.drafter, ScriptedDrafter) and run.stats.reason_off is None:
            assert self.drafter.history() == run.text
        return run


def count_decoded(context: Context) -> list[int]:
    """A list that grows by the size of each batch that the context decodes from now on."""
    sizes: list[int] = []
    decode = context.decode

    def counting(*args: object, **options: object) -> None:
        sizes.append(args[0].n_tokens)  # type: ignore[attr-defined]
        decode(*args, **options)  # type: ignore[arg-type]

    context.decode = counting  # type: ignore[method-assign]
    return sizes


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("arch", ARCHS)
def test_a_conversation_of_five_turns(arch: str, kind: str) -> None:
    session = Session(arch, make(kind), PARAMS)
    prompt = prompt_tokens(30)
    for turn in range(5):
        run = session.request(prompt, 14)
        prompt = [*run.text, *prompt_tokens(9, seed=turn)]


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("arch", ARCHS)
def test_two_conversations_in_turns_on_one_sequence(arch: str, kind: str) -> None:
    session = Session(arch, make(kind), PARAMS)
    system = prompt_tokens(20)
    prompts = [system + prompt_tokens(7, seed) for seed in (1, 2)]
    for turn in range(6):
        run = session.request(prompts[turn % 2], 10)
        prompts[turn % 2] = [*run.text, *prompt_tokens(5, seed=turn)]


@pytest.mark.parametrize("kind", ["pattern", "intermittent"])
@pytest.mark.parametrize("arch", ARCHS)
def test_any_prefix_can_be_returned_to(arch: str, kind: str) -> None:
    """Branches off any point of the text, also just before and after a round's rollback.

    For recurrent states: the engine takes a rollback into snapshots that an earlier batch wrote and
    then computes from a wrong state, which csrc/abi/memory.cpp refuses.
    """
    session = Session(arch, make(kind), GREEDY)
    rng = random.Random(arch)
    text = session.request(prompt_tokens(24), 12).text
    for i in range(14):
        # Near the end more often: recurrent snapshots reach no further than n_rs_seq.
        cut = max(1, len(text) - rng.choice([1, 2, 3, 4, 6, 9, 11, 20, 40]))
        prompt = text[:cut] + prompt_tokens(rng.randrange(3), seed=i)
        text = session.request(prompt, rng.choice([1, 2, 9, 14])).text


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen35", "lfm2"])
def test_a_growing_prompt_is_not_decoded_again(arch: str) -> None:
    session = Session(arch, make("pattern"), GREEDY)
    run = session.request(prompt_tokens(60), 9)
    sizes = count_decoded(session.context)
    following = [*run.text, *prompt_tokens(6)]
    session.request(following, 1)
    # The pending token of the last round, and the new ones.
    assert sum(sizes) == 7


@pytest.mark.parametrize("swa_full", [True, False])
@pytest.mark.parametrize("arch", ["gemma3", "gpt-oss", "gemma2"])
def test_a_sliding_window_that_forgot_is_decoded_again(arch: str, swa_full: bool) -> None:
    """Text much longer than the window of 16, with rejections at its edge, and any rollback."""
    session = Session(arch, make("pattern"), GREEDY, swa_full=swa_full)
    text = session.request(prompt_tokens(440), 30).text
    first, _ = session.context.memory.positions(0)
    assert (first == 0) == swa_full, "without swa_full it must have forgotten something"
    for cut in (len(text) - 1, len(text) - 15, len(text) - 17, first + 15, first + 17, 40, 300):
        text = session.request(text[:cut], 20).text
