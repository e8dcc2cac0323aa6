"""After an early end of a generation, the next request finds everything ready.

After a closed generator, a KeyboardInterrupt at any place, or a failing drafter, the same loop on
the same sequence gives the next request the text, and the drafter the history, of a fresh start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pyllama_spec.engine import Context
from pyllama_spec.errors import EngineError
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.oracles import (
    generate,
    prompt_tokens,
    run_once,
    sampled,
    tiny,
    tiny_context,
)
from tests.scripted import Interrupting, Perfect, ScriptedDrafter
from tests.tiers import release_except

ARCHS = ("llama", "gemma3", "qwen35", "lfm2")
PROMPT = prompt_tokens(40, seed=9)
PARAMS = sampled(11)
N_TOKENS = 30


def other_prompts(text: list[int]) -> list[list[int]]:
    """The same again, a longer one, a branch off the middle, and something else altogether."""
    more = prompt_tokens(6, seed=3)
    return [PROMPT, text + more, text[:-9] + more, text[: len(PROMPT) - 7] + more, more]


def check_next_requests(
    context: Context, loop: SpeculativeLoop, seq: SequenceState, first: int = 0
) -> None:
    """The next requests, from other_prompts()[first] on, give what those of a new loop would."""
    # O5 at rest: nothing is left over of what was under way.
    assert context.memory.positions(seq.seq_id)[1] == seq.n_decoded - 1
    assert seq.n_decoded <= len(seq.tokens)
    text = list(seq.tokens)
    drafter = loop.drafter._drafter
    assert isinstance(drafter, ScriptedDrafter)
    prompts = other_prompts(text)
    for prompt in prompts[first:] + prompts[:first]:
        with tiny_context(context.model) as fresh:
            expected = run_once(fresh, None, prompt, 12, PARAMS)
        drafter.reference = expected.text
        run = generate(loop, seq, prompt, 12, PARAMS)
        assert run.tokens == expected.tokens
        assert drafter.history() == run.text, "the drafter knows the text, and nothing else"
        assert run.stats.reason_off is None


@contextmanager
def failing_decode(context: Context, at: int, *, before: bool) -> Iterator[None]:
    """Lets the at-th decode from here raise, before or after it has done its work."""
    decode: Callable[..., None] = context.decode
    n_left = at

    def decode_or_fail(*args: object, **options: object) -> None:
        nonlocal n_left
        n_left -= 1
        if n_left == 0 and before:
            raise EngineError("made to fail")
        decode(*args, **options)
        if n_left == 0:
            raise KeyboardInterrupt

    context.decode = decode_or_fail  # type: ignore[method-assign]
    try:
        yield
    finally:
        context.decode = decode  # type: ignore[method-assign]


def reference_of(context: Context) -> list[int]:
    return run_once(context, None, PROMPT, N_TOKENS, PARAMS).text


def fresh_loop(context: Context, drafter: ScriptedDrafter) -> tuple[SpeculativeLoop, SequenceState]:
    context.memory.clear()
    return SpeculativeLoop(context, drafter), SequenceState()


each_arch = pytest.mark.parametrize("arch", ARCHS)


@pytest.mark.parametrize("first", release_except(range(4), (1,)))
@pytest.mark.parametrize("where", ["read", "propose", "commit"])
@pytest.mark.parametrize("at", [1, 2, 4])
@each_arch
def test_an_interrupt_in_the_drafter(arch: str, at: int, where: str, first: int) -> None:
    """The prompt is read in three parts, and "read" is in the second or third one."""
    at = at // 2 + 1 if where == "read" else at
    with tiny_context(tiny(arch), n_ubatch=16) as context:
        drafter = Interrupting(reference_of(context), where, at)
        loop, seq = fresh_loop(context, drafter)
        with pytest.raises(KeyboardInterrupt):
            generate(loop, seq, PROMPT, N_TOKENS, PARAMS)
        assert where == "read" or seq.tokens == drafter.reference[: len(seq.tokens)]
        check_next_requests(context, loop, seq, first)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 4])
@each_arch
def test_a_failure_in_the_decode(arch: str, at: int, before: bool) -> None:
    """The first two decodes read the prompt; after a decode the whole draft is in the memory."""
    with tiny_context(tiny(arch)) as context:
        loop, seq = fresh_loop(context, Perfect(reference_of(context)))
        with (
            failing_decode(context, at, before=before),
            pytest.raises((EngineError, KeyboardInterrupt)),
        ):
            generate(loop, seq, PROMPT, N_TOKENS, PARAMS)
        check_next_requests(context, loop, seq)
