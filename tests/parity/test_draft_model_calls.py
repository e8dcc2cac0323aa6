"""A draft model's engine calls, and the keywords of Llama for it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import DraftRequest
from pyllama_spec.drafters.small_model import SmallModel
from pyllama_spec.engine import quantize
from pyllama_spec.errors import CancelledError
from pyllama_spec.speculative import SequenceState
from tests.eagle3_tools import ask
from tests.models import model_path
from tests.oracles import generate, prompt_tokens
from tests.parity.test_draft_model import (
    HOT,
    check_all_right,
    check_says_the_same,
    draft_of,
    loop_of,
    memory_of,
)
from tests.tampering import interrupt_guess


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
@pytest.mark.parametrize("n_vocab", [320, 400], ids=["", "padded"])
def test_a_draft_is_two_calls_of_the_engine(arch: str, n_vocab: int) -> None:
    """One call reads the new tokens, and one drafts all that follows, as single calls would."""
    drafter = draft_of(arch, 8, seed=9, n_vocab=n_vocab)
    loop, seq = loop_of("llama", drafter), SequenceState()
    generate(loop, seq, prompt_tokens(21), 20, HOT)
    memory, calls = memory_of(loop), []

    def noted(name: str) -> Callable[..., Any]:
        call = getattr(memory.context, name)

        def noting(*args: Any, **keywords: Any) -> Any:
            calls.append(name)
            return call(*args, **keywords)

        return noting

    for name in ("decode", "draft_chains"):
        setattr(memory.context, name, noted(name))
    for n in (2, 5, 8):
        calls.clear()
        n_calls = memory.n_calls
        at_once = ask(drafter, 0, seq.tokens, n)
        # A state that was asked of this text before reads it anew, in two batches.
        n_reads = calls.index("draft_chains")
        assert n_reads == 1 or (arch == "qwen35" and n_reads == 2)
        assert calls == ["decode"] * n_reads + ["draft_chains"]
        assert memory.n_calls == n_calls + n_reads + n - 1
        assert len(at_once.ids) == n
        calls.clear()
        singly = ask(drafter, 0, seq.tokens, n, lambda drafted: ())
        assert calls.count("decode") == len(calls) >= n
        assert at_once.ids == singly.ids
        assert at_once.probabilities == pytest.approx(singly.probabilities, rel=1e-6)


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_signal_among_the_guesses_of_one_call(arch: str, at: int, is_before: bool) -> None:
    loop, seq = loop_of(arch, draft_of(arch)), SequenceState()
    interrupt_guess(memory_of(loop), at, is_before=is_before)
    # A program that a shell began in the background is told to ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            generate(loop, seq, prompt_tokens(25), 40)
    finally:
        signal.signal(signal.SIGINT, before)
    check_all_right(generate(loop, seq, [*seq.tokens, 5, 6], 12))


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_cancel_among_the_guesses_of_one_call(arch: str, at: int) -> None:
    drafter = draft_of(arch, seed=9)
    loop, seq = loop_of("llama", drafter), SequenceState()
    generate(loop, seq, prompt_tokens(21), 5, HOT)
    context, n_told = memory_of(loop).context, 0

    def cancels(_p: float) -> bool:
        nonlocal n_told
        n_told += 1
        context.cancel(n_told == at)
        return False

    with pytest.raises(CancelledError):
        drafter.propose([DraftRequest(0, seq.tokens, 4, stop=cancels)])
    context.cancel(False)
    check_says_the_same(loop, seq)


@pytest.mark.parametrize(("kind", "is_told"), [("Q8_0", False), ("Q4_0", True), ("Q5_0", True)])
def test_a_draft_of_few_bits_is_told(kind: str, is_told: bool, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    quantize(model_path("llama", seed=9), path, kind)
    with Llama(model_path("llama"), draft=path, controller="fixed", n_threads=1) as llm:
        told = llm.create_completion([3, 4, 5], max_tokens=3)["speculation"]["note"]
    assert (told is not None) == is_told
    if told is not None:
        # It is not a head: nobody trained it to be right about the target.
        assert told == (
            f"the weights of the draft are {kind}: below 6 bits it may agree with the target less "
            "often than with 8 bits"
        )
    with SmallModel(path) as drafter:
        assert drafter.describe()["weights"] == kind


@pytest.mark.parametrize("n_draft", [2, 5])
def test_a_window_by_its_keyword(n_draft: int) -> None:
    """The text does not depend on it, and a copy of the target errs once it has forgotten."""
    texts, accepted = [], []
    with Llama(model_path("llama"), n_threads=1, n_ctx=256) as llm:
        said = llm.create_completion(prompt_tokens(40), max_tokens=40, temperature=0)
        texts.append(said["choices"][0]["text"])
    for n_ctx in (None, 8, 4096):
        with Llama(
            model_path("llama"), draft=model_path("llama"), n_draft=n_draft, lookup=0,
            controller="fixed", n_threads=1, n_ctx=256, draft_n_ctx=n_ctx,
        ) as llm:  # fmt: skip
            said = llm.create_completion(prompt_tokens(40), max_tokens=40, temperature=0)
        texts.append(said["choices"][0]["text"])
        accepted.append(said["speculation"]["accepted"])
    assert len(set(texts)) == 1
    assert accepted[0] == accepted[2] > accepted[1] > 0
