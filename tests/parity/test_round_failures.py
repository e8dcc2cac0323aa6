"""After an interrupted round of several sequences, the sequences without a fault continue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pyllama_spec.drafters import Draft, Drafter, DraftRequest, Eagle3
from pyllama_spec.engine import Batch, Context
from pyllama_spec.errors import CancelledError, ContextFullError
from pyllama_spec.speculative import Round, SequenceRun, SequenceState
from tests.eagle3_tools import head
from tests.models import perm_continuation, perm_next
from tests.oracles import GREEDY, make_sampler, prompt_tokens, run_once, tiny, tiny_context
from tests.scripted import Perfect

N_TOKENS = 40
PROMPTS = [prompt_tokens(20, seed=3), prompt_tokens(33, seed=4), prompt_tokens(7, seed=5)]


class PerfectForAll(Perfect):
    """Knows the texts of several sequences."""

    def __init__(self, texts: list[list[int]]) -> None:
        super().__init__([])
        self.texts = texts

    def coming(self, seq: int, n: int) -> list[int]:
        at = len(self.history(seq))
        return self.texts[seq][at : at + n]


def texts_of(arch: str) -> list[list[int]]:
    if arch == "perm":
        return [[*p, *perm_continuation(p[-1], N_TOKENS, perm_next())] for p in PROMPTS]
    with tiny_context(tiny(arch)) as context:
        return [run_once(context, None, prompt, N_TOKENS).text for prompt in PROMPTS]


def begun(context: Context, drafter: Drafter) -> tuple[Round, list[SequenceRun]]:
    round_ = Round(context, drafter)
    runs = [
        SequenceRun(SequenceState(i), p, make_sampler(context.model, GREEDY, p), N_TOKENS)
        for i, p in enumerate(PROMPTS)
    ]
    for run in runs:
        round_.begin(run)
    while min(run.n_generated for run in runs) < 3:
        round_.step(runs)
    return round_, runs


def finish(round_: Round, runs: list[SequenceRun]) -> None:
    while going := [run for run in runs if not run.is_over]:
        round_.step(going)


def patched(context: Context, action: Callable[[], None], *, before: bool = True) -> None:
    decode = context.decode

    def once(batch: Batch, *, encode: bool = False) -> None:
        context.decode = decode  # type: ignore[method-assign]
        if before:
            action()
        decode(batch, encode=encode)
        if not before:
            action()

    context.decode = once  # type: ignore[method-assign]


def opened(arch: str) -> tuple[Context, Drafter, list[list[int]]]:
    """A context for three sequences, and a drafter that is always right."""
    texts = texts_of(arch)
    drafter = head("perm_eagle3", 4) if arch == "perm" else PerfectForAll(texts)
    layers = drafter.target_layers
    context = tiny_context(tiny(arch), n_ctx=768, n_seq_max=3, target_layers=layers)
    return context, drafter, texts


ARCHS = ("llama", "gemma3", "qwen35", "perm")


@pytest.mark.parametrize("arch", ARCHS)
def test_anothers_cancel_in_a_common_decode(arch: str) -> None:
    context, drafter, texts = opened(arch)
    with context:
        round_, runs = begun(context, drafter)

        def cancel() -> None:
            runs[1].is_cancelled = True
            context.cancel()

        patched(context, cancel)
        steps = round_.step(runs)
        context.cancel(False)
        assert [(run.seq_id, type(step.error)) for run, step in steps] == [(1, CancelledError)]
        n_drafted = [run.stats.drafted for run in runs]
        finish(round_, runs)
        for i in (0, 2):
            assert runs[i].state.tokens == texts[i]
            assert i not in round_.drafter.failures, "it was told all"
            assert runs[i].stats.drafted > n_drafted[i]
            assert runs[i].stats.accepted == runs[i].stats.drafted
        again = SequenceRun(
            runs[1].state, PROMPTS[1], make_sampler(context.model, GREEDY, PROMPTS[1]), N_TOKENS
        )
        round_.begin(again)
        finish(round_, [again])
        assert again.state.tokens == texts[1]
        assert again.stats.accepted == again.stats.drafted > 0


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupted(requests: Sequence[DraftRequest]) -> Sequence[Draft]:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["before", "behind", "propose"])
@pytest.mark.parametrize("arch", ARCHS)
def test_an_interrupt_leaves_every_sequence_where_it_was(arch: str, where: str) -> None:
    context, drafter, texts = opened(arch)
    with context:
        round_, runs = begun(context, drafter)
        before = [list(run.state.tokens) for run in runs]
        if where == "propose":
            propose = drafter.propose
            drafter.propose = interrupted  # type: ignore[method-assign]
        else:
            patched(context, interrupt, before=where == "before")
        with pytest.raises(KeyboardInterrupt):
            round_.step(runs)
        if where == "propose":
            drafter.propose = propose  # type: ignore[method-assign]
        assert [list(run.state.tokens) for run in runs] == before
        finish(round_, runs)
        for run, text in zip(runs, texts, strict=True):
            assert not run.has_failed
            assert run.state.tokens == text
            assert run.stats.reason_off is None
            assert run.stats.accepted == run.stats.drafted > 0
        if isinstance(drafter, PerfectForAll):
            assert [drafter.history(i) for i in range(3)] == texts
        else:
            assert isinstance(drafter, Eagle3)


class Eights(Drafter):
    """Drafts eight tokens that are hardly ever right, so that a round leaves one in the memory."""

    def propose_one(self, request: DraftRequest) -> Draft:
        return Draft([3] * 8)


def test_sequences_without_room_for_both_drafts_are_decoded_one_by_one() -> None:
    prompts = [prompt_tokens(n, seed=n) for n in (120, 119)]  # 17 cells are left
    failed: list[int] = []
    with tiny_context(tiny("llama"), n_ctx=256, n_seq_max=2, kv_unified=True) as context:
        round_, decode = Round(context, Eights()), context.decode

        def noted(batch: Batch, *, encode: bool = False) -> None:
            try:
                decode(batch, encode=encode)
            except ContextFullError:
                failed.append(batch.n_tokens)
                raise

        runs = [
            SequenceRun(SequenceState(i), p, make_sampler(context.model, GREEDY, p), N_TOKENS)
            for i, p in enumerate(prompts)
        ]
        for run in runs:
            round_.begin(run)
        while not all(run.n_generated for run in runs):
            round_.step(runs)
        context.decode = noted  # type: ignore[method-assign]
        steps = round_.step(runs)
    assert [(run.seq_id, step.error) for run, step in steps] == [(0, None), (1, None)]
    assert failed == [18]
