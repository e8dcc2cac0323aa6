"""A draft model alone: architectures, what is read and when, vocabularies, one call of the engine.

For tests of every draft that a model computes, see test_row_draft_acceptance.py and _paths.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from pyllama_spec.drafters.model_drafter import ModelDrafter
from pyllama_spec.drafters.small_model import SmallModel, VocabMap
from pyllama_spec.engine import Batch
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.eagle3_tools import ask, target_context
from tests.models import STATES, model_path, perm_continuation
from tests.oracles import generate, prompt_tokens, sampled, tiny, tiny_context
from tests.row_drafts import PATHS, ROW_DRAFTS, SUCCESSOR, Way, check_accepted
from tests.tiers import release_except

ARCHS = ("qwen3moe", "gemma3", *STATES)
QUICK = ("gemma3", "qwen35", "mamba")
SMALL: Any = ROW_DRAFTS["draft-model"]
HOT = sampled(5, temperature=1.5)


def draft_of(arch: str, max_draft: int = 4, **own: Any) -> SmallModel:
    """A drafter with a tiny model; n_ctx and p_min are its own, the rest is the builder's."""
    n_ctx, p_min = own.pop("n_ctx", None), own.pop("p_min", 0.0)
    return SmallModel(model_path(arch, **own), max_draft, n_ctx=n_ctx, p_min=p_min)


def loop_of(arch: str, drafter: SmallModel, **params: Any) -> SpeculativeLoop:
    return SpeculativeLoop(target_context(tiny(arch), drafter, n_rs_seq=10, **params), drafter)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("arch", release_except(ARCHS, QUICK))
def test_a_copy_of_the_target_is_always_right(arch: str, path: Way) -> None:
    kind = replace(SMALL, arch=arch)
    path(kind, kind.perm)


def memory_of(loop: SpeculativeLoop) -> Any:
    drafter: Any = loop.drafter._drafter
    return drafter.memory_or_fail()


def test_nothing_is_read_before_a_draft_is_asked_for() -> None:
    drafter = draft_of("llama", seed=9)
    loop, seq = loop_of("llama", drafter), SequenceState()
    loop.prefill(seq, prompt_tokens(60))
    assert memory_of(loop).n_read == 0
    assert drafter.n_unread(0) == 60
    run = generate(loop, seq, [*seq.tokens, 3], 9, HOT)
    assert drafter.n_unread(0) <= 1 + len(run.steps[-1].tokens)
    # A chat that goes on: its last answer is known.
    loop.prefill(seq, [*run.text, 4, 5])
    assert drafter.n_unread(0) <= len(run.steps[-1].tokens) + 3


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen35"])
@pytest.mark.parametrize("window", [8, 30, 64])
def test_a_window(arch: str, window: int) -> None:
    drafter = draft_of(arch, n_ctx=window, seed=9)
    loop, seq = loop_of("llama", drafter), SequenceState()
    text = prompt_tokens(150)
    for size in (150, 20, 90):
        run = generate(loop, seq, text[:size], 40, HOT)
        assert run.stats.reason_off is None
        assert run.stats.drafted > 20
        assert drafter.context is not None
        first, last = drafter.context.memory.positions(0)
        assert last - first < window + drafter.max_draft
        # Of a text that was cut the draft reads enough.
        assert last + 1 - first >= min(size, window // 3) or arch == "qwen35"


# ---- other vocabularies


@pytest.mark.parametrize("n_draft", [1, 2, 4, 7])
def test_the_same_texts_under_other_ids(n_draft: int) -> None:
    """PERM with permuted ids accepts drafts only if every id is mapped, both ways."""
    drafter = draft_of("perm", n_draft, shuffle=3)
    loop, seq = loop_of("perm", drafter), SequenceState()
    text = prompt_tokens(20)
    for _ in range(3):
        run = generate(loop, seq, text, 25)
        assert run.tokens == perm_continuation(text[-1], 25, SUCCESSOR)
        check_accepted(run)
        text = [*run.text[:-5], 65, 66]
    assert drafter.describe()["shared_tokens"] == 320


def test_what_the_draft_lacks_becomes_its_text() -> None:
    """The draft reads words of the target that it has no token for in pieces."""
    target, small = tiny("llama", n_vocab=640), tiny("llama", n_vocab=320, seed=9)
    vocab = VocabMap(target.vocab, small.vocab)
    assert not vocab.is_identity
    assert vocab.n_shared == 320
    for token in (5, 64, 265, 319):
        assert vocab.to_draft(token) == (token,)
        assert vocab.of_draft(token) == token
    for token in (320, 500, 639):
        assert small.vocab.detokenize(vocab.to_draft(token)) == target.vocab.piece(token)
    tokens = [5, 320, 66, 639]
    assert small.vocab.detokenize(
        i for one in tokens for i in vocab.to_draft(one)
    ) == target.vocab.detokenize(tokens)


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_the_text_of_a_target_with_more_words(arch: str) -> None:
    drafter = draft_of(arch, seed=9)
    with target_context(tiny("llama", n_vocab=640), drafter, n_ctx=1024) as context:
        loop, seq = SpeculativeLoop(context, drafter), SequenceState()
        prompt = np.random.default_rng(1).integers(260, 640, 30).tolist()
        run = generate(loop, seq, prompt, 60, HOT)
        assert run.stats.reason_off is None
        assert run.stats.drafted > 40
        s = memory_of(loop).of(0)
        assert s.ids == [i for one in seq.tokens for i in memory_of(loop).vocab.to_draft(one)]
        assert s.held[: len(s.ids) - 1] == s.ids[: len(s.held)][: len(s.ids) - 1]
        generate(loop, seq, run.text[:33], 9, HOT)
        assert s.ids == [i for one in seq.tokens for i in memory_of(loop).vocab.to_draft(one)]
        # What it says is what one says that reads this text anew.
        expected = cold_of_ids(drafter, s.ids)
        assert ask(drafter, 0, seq.tokens, 1).ids == (expected,)


def cold_of_ids(drafter: SmallModel, ids: Sequence[int]) -> int:
    with tiny_context(drafter.model, n_ctx=1024, n_batch=512, n_ubatch=32) as context:
        batch = Batch(len(ids))
        batch.extend(ids, 0, output_last=True)
        context.decode(batch)
        return int(context.logits(len(ids) - 1).argmax())


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
@pytest.mark.parametrize("n_vocab", [320, 400], ids=["", "padded"])
def test_a_draft_is_two_calls_of_the_engine(
    monkeypatch: pytest.MonkeyPatch, arch: str, n_vocab: int
) -> None:
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
        with monkeypatch.context() as patched:
            patched.setattr(drafter, "go_on", partial(ModelDrafter.go_on, drafter))
            singly = ask(drafter, 0, seq.tokens, n)
        assert calls.count("decode") == len(calls) >= n
        assert at_once.ids == singly.ids
        assert at_once.probabilities == pytest.approx(singly.probabilities, rel=1e-6)
