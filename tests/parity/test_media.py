"""Prompts with pictures through the loop: the text of plain decoding, with every drafter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyllama_spec.drafters import Drafter, SmallModel, Suffix
from pyllama_spec.drafters.base import NoDrafter
from pyllama_spec.drafters.prompt_lookup import PromptLookup
from pyllama_spec.engine import Context, Sampler
from pyllama_spec.engine.media import Part, joined
from pyllama_spec.errors import ArgumentError, ContextFullError
from pyllama_spec.speculative import Round, SequenceState, SpeculativeLoop
from pyllama_spec.speculative.sequence import SequenceRun
from tests.media_tools import KINDS, picture, plain_text, prompt_of, seeing
from tests.models import model_path
from tests.oracles import GREEDY, tiny_context
from tests.scripted import Pattern, ScriptedDrafter

N = 24
Parts = tuple[Part, ...]
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "none": NoDrafter, "lookup": PromptLookup, "pattern": lambda: Pattern([], [3, 0, 8, 1]),
    "suffix": Suffix, "small": lambda: SmallModel(model_path("llama", seed=9), 4, p_min=0.0),
}  # fmt: skip


def opened(kind: str, **params: Any) -> Context:
    sizes = {"n_ctx": 1024, "n_batch": 512, "n_ubatch": 512}
    return tiny_context(seeing(kind), **{**sizes, **params})


def text_of(loop: SpeculativeLoop, state: SequenceState, kind: str, parts: Parts) -> list[int]:
    """The loop's text after a prompt, which is that of plain decoding."""
    tokens, media = joined(parts)
    expected = plain_text(kind, parts, N)
    drafter = loop.drafter._drafter
    if isinstance(drafter, ScriptedDrafter):
        drafter.reference = [*tokens, *expected]
    loop.prefill(state, tokens, media=media)
    out: list[int] = []
    for step in loop.generate(state, Sampler(loop.target.model, GREEDY), N):
        out += step.tokens
    assert out == expected
    return out


def after(kind: str, parts: Parts, answer: list[int], *more: str | np.ndarray) -> Parts:
    """The prompt of the next turn."""
    return (*parts, tuple(answer), *prompt_of(kind, *more))


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("kind", ["gemma3", "qwen3vl", "idefics3"])
def test_same_text(kind: str, name: str) -> None:
    for sizes in ([(40, 50)], [(20, 90)], [(64, 64), (33, 47)]):
        pictures = [picture(*size, seed=i) for i, size in enumerate(sizes)]
        parts = prompt_of(kind, "see the thing", *pictures, " what is the thing")
        with DRAFTERS[name]() as drafter:
            context = opened(kind, target_layers=drafter.target_layers)
            loop = SpeculativeLoop(context, drafter)
            text_of(loop, SequenceState(), kind, parts)
            assert loop.stats.reason_off is None or name == "none"
            assert name != "pattern" or loop.stats.accepted
            assert name != "small" or loop.stats.drafted


@pytest.mark.parametrize("kind", KINDS)
def test_later_turns_read_a_picture_once(kind: str) -> None:
    parts = prompt_of(kind, "see ", picture(40, 50), " the thing")
    with opened(kind) as context:
        loop, state = SpeculativeLoop(context, DRAFTERS["pattern"]()), SequenceState()
        answer = text_of(loop, state, kind, parts)
        for more in ([" and then"], [" beside ", picture(33, 20, 5), " it"], [" so"]):
            n_before = len(joined(parts)[0])
            parts = after(kind, parts, answer, *more)
            answer = text_of(loop, state, kind, parts)
            assert loop._run.n_cached >= n_before
        # Another picture in its place: what stands before it is kept, and nothing after it.
        parts = prompt_of(kind, "see ", picture(40, 50, 7), " the thing")
        text_of(loop, state, kind, parts)
        n_before = joined(parts)[1][0].start
        assert loop._run.n_cached == (0 if kind == "qwen3vl" else n_before)
        # Only its end is asked for again.
        text_of(loop, state, kind, parts)
        assert loop._run.n_cached == len(joined(parts)[0]) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_text_takes_the_place_of_a_later_picture(kind: str) -> None:
    first = prompt_of(kind, "see ", picture(40, 50), " the thing")
    with opened(kind, n_batch=32, n_ubatch=32, n_rs_seq=0) as context:
        loop, state = SpeculativeLoop(context, NoDrafter()), SequenceState()
        answer = text_of(loop, state, kind, first)
        text_of(loop, state, kind, after(kind, first, answer, " and ", picture(33, 20, 5)))
        more = "what is in all the things here? " * 3
        text_of(loop, state, kind, after(kind, first, [answer[0] ^ 1], more))


@pytest.mark.parametrize("kind", ["qwen3vl", "idefics3", "colours"])
@pytest.mark.parametrize("n_batch", [13, 40])
def test_rows_are_read_in_pieces(kind: str, n_batch: int) -> None:
    parts = prompt_of(kind, "see ", picture(44, 56), " what", picture(32, 32, 1), " is")
    with opened(kind, n_batch=n_batch, n_ubatch=n_batch) as context:
        text_of(SpeculativeLoop(context, DRAFTERS["pattern"]()), SequenceState(), kind, parts)


def test_a_picture_that_fits_no_batch_or_context_is_refused() -> None:
    parts = prompt_of("gemma3", "see ", picture(40, 50), " what")
    tokens, media = joined(parts)
    with opened("gemma3", n_ubatch=8) as context, pytest.raises(ArgumentError):
        SpeculativeLoop(context, NoDrafter()).prefill(SequenceState(), tokens, media=media)
    with opened("gemma3", n_ctx=20) as context, pytest.raises(ContextFullError):
        SpeculativeLoop(context, NoDrafter()).prefill(SequenceState(), tokens, media=media)


@pytest.mark.parametrize("kv_unified", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_pictures_beside_other_sequences(kind: str, kv_unified: bool) -> None:
    """Three requests, one with a picture that another has had, and one text."""
    prompts = [
        prompt_of(kind, "see ", picture(40, 50), " what"), prompt_of(kind, "only a text"),
        prompt_of(kind, "see ", picture(40, 50), " where"),
    ]  # fmt: skip
    context = opened(kind, n_ctx=2048, n_seq_max=3, kv_unified=kv_unified)
    with context:
        round_ = Round(context, PromptLookup(), store_bytes=1 << 24)
        runs = []
        for seq, parts in enumerate(prompts):
            tokens, media = joined(parts)
            sampler = Sampler(context.model, GREEDY)
            run = SequenceRun(SequenceState(seq), tokens, sampler, N, media=media)
            round_.begin(run)
            runs.append(run)
        while live := [run for run in runs if not run.is_over]:
            round_.step(live)
        for run, parts in zip(runs, prompts, strict=True):
            assert not run.has_failed
            text = run.state.tokens[len(run.prompt) :]
            assert text == plain_text(kind, parts, N) or kv_unified


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_sequence_continues(kind: str) -> None:
    parts = prompt_of(kind, "see all that is in here: ", picture(40, 50), " what")
    tokens, media = joined(parts)
    context = opened(kind, n_ctx=2048, n_seq_max=2, swa_full=True)
    with context:
        round_ = Round(context, PromptLookup(), store_bytes=1 << 24)
        run = SequenceRun(
            SequenceState(0), tokens, Sampler(context.model, GREEDY), N, media=media
        )  # fmt: skip
        round_.begin(run)
        while run.n_generated < 9:
            round_.step([run])
        saved = round_.sequences.save(run.state)
        round_.sequences.forget(run.state)
        state = SequenceState(1)
        round_.sequences.restore(state, saved)
        run = SequenceRun(
            state, saved.tokens, Sampler(context.model, GREEDY), N - run.n_generated, media=media
        )  # fmt: skip
        round_.begin(run)
        assert run.n_cached == saved.n_decoded == len(saved.tokens) - 1
        while not run.is_over:
            round_.step([run])
        assert run.state.tokens[len(tokens) :] == plain_text(kind, parts, N)
        # The store has what the sequence held, and gives it to the other one.
        round_.sequences.put_away(run.state)
        again = SequenceRun(
            SequenceState(0), tokens, Sampler(context.model, GREEDY), N, media=media
        )  # fmt: skip
        round_.begin(again)
        assert again.n_cached > media[0].start or kind == "qwen3vl"
        while not again.is_over:
            round_.step([again])
        assert again.state.tokens[len(tokens) :] == plain_text(kind, parts, N)
