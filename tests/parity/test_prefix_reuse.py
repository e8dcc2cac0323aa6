"""Requests that share a prefix with their sequence: the text of a cold run, for less work."""

from __future__ import annotations

import random

import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import Drafter
from pyllama_spec.engine import Context, SamplerParams
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.models import STATES, STATES_WITHOUT_SNAPSHOTS, model_path
from tests.oracles import (
    GREEDY,
    LoopRun,
    check_same_rows,
    generate,
    prompt_tokens,
    run_once,
    tiny,
    tiny_context,
)
from tests.scripted import Intermittent, Pattern, ScriptedDrafter
from tests.tiers import release_except

ARCHS = ("llama", "qwen3moe", "gemma3", "gpt-oss", "qwen35", "lfm2", "mamba2", "jamba", "rwkv7")


def make(kind: str = "pattern") -> Drafter:
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


@pytest.mark.parametrize("swa_full", [True, False])
@pytest.mark.parametrize("arch", ["gemma3", "gpt-oss", "gemma2"])
def test_a_sliding_window_that_forgot_is_decoded_again(arch: str, swa_full: bool) -> None:
    """Text much longer than the window of 16, with rejections at its edge, and any rollback."""
    session = Session(arch, make(), GREEDY, swa_full=swa_full)
    text = session.request(prompt_tokens(440), 30).text
    first, _ = session.context.memory.positions(0)
    assert (first == 0) == swa_full, "without swa_full it must have forgotten something"
    for cut in (len(text) - 1, len(text) - 15, len(text) - 17, first + 15, first + 17, 40, 300):
        text = session.request(text[:cut], 20).text


QUICK = ("qwen35", "mamba2", "rwkv7")
all_states = pytest.mark.parametrize("arch", release_except(STATES, QUICK))


@pytest.mark.parametrize("arch", ["llama", "gemma3", *release_except(STATES, (*QUICK, "lfm2"))])
def test_a_second_turn_on_the_whole_text(arch: str) -> None:
    session = Session(arch, make(), GREEDY)
    run = session.request(prompt_tokens(60), 9)
    sizes = count_decoded(session.context)
    session.request([*run.text, *prompt_tokens(6)], 1)
    assert sum(sizes) == 7  # the pending token of the last round, and the new ones


@all_states
def test_a_turn_that_leaves_the_answer_in_its_middle(arch: str) -> None:
    """Templates that drop thoughts do so: the text is reread from the end of the prompt on."""
    session = Session(arch, make(), GREEDY)
    prompt = prompt_tokens(60)
    for turn in range(4):
        run = session.request(prompt, 25)
        following = [*run.text[: len(prompt) + 3], *prompt_tokens(7, seed=turn)]
        sizes = count_decoded(session.context)
        session.request(following, 1)
        # The border lies behind the prompt, or one token before where a snapshot allows.
        assert 0 <= sum(sizes) - (len(following) - len(prompt)) <= 1
        prompt = following


@all_states
def test_an_answer_that_is_asked_for_again(arch: str) -> None:
    session = Session(arch, make(), GREEDY)
    for n, n_read in ((60, 60), (140, 12)):
        prompt = prompt_tokens(n, seed=n)
        session.request(prompt, 25)
        for _ in range(2):
            sizes = count_decoded(session.context)
            session.request(prompt, 20)
            # Without snapshots the last copy lies behind the token whose row is wanted, and the one
            # before that at the end of a part of the prompt, of 32 tokens each.
            assert sizes[0] == (min(n_read, 32) if arch in STATES_WITHOUT_SNAPSHOTS else 1)
            n_prompt = sizes[: -(-n_read // 32)]
            assert arch not in STATES_WITHOUT_SNAPSHOTS or sum(n_prompt) == n_read
        following = [*prompt[: n - 3], 5]
        session.request(following, 3)


@all_states
@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_with_a_draft_model_an_answer_is_read_again_from_the_end_of_its_prompt(
    arch: str, kind: str
) -> None:
    """After a long answer, the draft's newest rows all belong to it; another question follows."""
    path, draft = model_path(arch, output_scale=3.0), model_path(kind)
    prompt = prompt_tokens(60)

    def ask(llm: Llama, prompt: list[int]) -> list[int]:
        sizes = count_decoded(llm._runtime.context)
        done = llm.create_completion(prompt, max_tokens=60, temperature=0.0)
        texts.append(done["choices"][0]["text"])
        return sizes

    texts: list[str] = []
    with Llama(str(path), draft=str(draft), n_ctx=512, n_threads=1, seed=1) as llm:
        is_exact = llm._runtime.context.n_rs_seq > 0
        ask(llm, prompt)
        # Without snapshots the copy lies behind the last token, whose row is wanted: the second
        # time the state is copied before it.
        for n_first in (1, 1) if is_exact else (59, 1):
            assert ask(llm, prompt)[0] == n_first
        assert ask(llm, [*prompt, 7, 8])[0] <= 3
        other = texts[-1]
        ask(llm, [9, *prompt])
        ask(llm, [*prompt, 7, 8])
    assert texts[0] == texts[1] == texts[2]
    assert other == texts[-1]
