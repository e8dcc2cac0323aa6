"""Drafts that choose among a part of the vocabulary: their numbers, the choice, and its use."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import DFlash, Eagle3, Mtp, SmallModel, output_part
from pyllama_spec.drafters.output_part import DraftIds, reduced_output, rows_of
from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.dflash_tools import add_block
from tests.eagle3_tools import target_context
from tests.models import ENDOFTEXT, model_path, perm_continuation, perm_next
from tests.mtp_tools import ARCHS, mtp_context, with_head
from tests.oracles import LoopRun, generate, tiny
from tests.tiers import release_except

N_SLOTS, N_VOCAB, N_GUESSES = 64, 320, 4
SHARED = {"own_embedding": False, "own_output": False}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle3": ("eagle3", {}),
    "eagle3, shared": ("eagle3", SHARED),
    "dflash": ("dflash", {}),
    "dflash, shared": ("dflash", SHARED),
    "dflash, q8_0": ("dflash", {"weight_type": "q8_0", "softcap": 8.0, "logit_scale": 0.5}),
    "dflash2": ("dflash", {"variant": "dflash2"}),
    "dspark": ("dflash", {"variant": "dspark"}),
    "dspark, no anchor": ("dflash", {"variant": "dspark", "sample_from_anchor": False}),
}
# Heads in the target's file: the matrix is its output, of several types.
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"mtp, {arch}": (arch, {}) for arch in ARCHS},
    "mtp, Q8_0": ("qwen35", {"quantised": "Q8_0"}),
    "mtp, Q4_0": ("qwen35", {"quantised": "Q4_0"}),
    "mtp, Q4_K": ("qwen35", {"quantised": "Q4_K", "n_embd": 256}),
}
Draft = Eagle3 | DFlash | Mtp | SmallModel
each_draft = pytest.mark.parametrize(
    "kind", [*KINDS, *release_except(HEADS, ("mtp, qwen35", "mtp, cohere2moe", "mtp, Q4_K"))]
)


def opened(kind: str, n_output: int | None = None, **options: Any) -> Draft:
    """A draft of random weights for the tiny llama, or a model's own head."""
    if kind in HEADS:
        return Mtp(n_output=n_output)
    arch, own = KINDS[kind]
    path = model_path(arch, **own, **options)
    return Eagle3(path, n_output=n_output) if arch == "eagle3" else DFlash(path, n_output=n_output)


@contextmanager
def drafting(kind: str, n_seqs: int = 1) -> Iterator[tuple[Draft, Context, Model]]:
    """A draft of a kind, its context, and the target."""
    params: dict[str, Any] = {"n_seq_max": n_seqs, "n_ctx": 256 * n_seqs, "kv_unified": True}
    with opened(kind) as draft:
        if kind in HEADS:
            arch, own = HEADS[kind]
            model = with_head(arch, n_heads=1, **own)
            with Context(model, n_batch=64, n_threads=1, is_head=True, **params) as context:
                yield draft, context, model
        else:
            with target_context(tiny("llama"), draft, **params) as target:
                draft.attach(target)
                assert draft.context is not None
                yield draft, draft.context, target.model


def said(
    draft: Draft, context: Context, n_seqs: int = 1
) -> tuple[np.ndarray, list[list[tuple[int, float]]]]:
    """Logits of pairs, or of the guesses of a block of each sequence; and what may be chosen."""
    if not isinstance(draft, DFlash):
        n_row = context.n_row
        batch, rng = Batch(N_GUESSES * n_seqs, n_row=n_row), np.random.default_rng(1)
        rows = list(range(N_GUESSES * n_seqs))
        for i in rows:
            row = rng.standard_normal(n_row).astype(np.float32)
            batch.add(40 + i, i % N_GUESSES, i // N_GUESSES, output=True, row=row)
    else:
        batch, rows = Batch(n_seqs * draft.block.n_slots), []
        for seq in range(n_seqs):
            first = add_block(batch, draft.block, 40 + seq, N_GUESSES, 0, seq)
            rows += range(first, first + N_GUESSES)
    context.decode(batch)
    logits, found, before = np.array([context.logits(i) for i in rows]), [], -1
    for i in rows:
        ids, p, _ = context.draft_candidates(i, before)
        found.append(list(zip(ids, p, strict=True)))
        before = ids[0]
    for seq in range(n_seqs):
        context.memory.remove(seq)
    return logits, found


@pytest.mark.parametrize("n_seqs", [1, 3])
@each_draft
def test_logits_are_those_of_the_whole_matrix(kind: str, n_seqs: int) -> None:
    """The logits of ids with a slot are equal, turned on, off and with other ids."""
    with drafting(kind, n_seqs) as (draft, context, target):
        whole, chosen = said(draft, context, n_seqs)
        ids = reduced_output(context, N_SLOTS, target)
        assert ids is not None
        # With them a chain goes on as it did.
        always = [id_ for row in chosen for id_, _ in row]
        for seen in ((), (319, 200, 201), range(100, 120)):
            ids.see([*seen, *always])
            part, found = said(draft, context, n_seqs)
            has = np.array([i in ids for i in range(N_VOCAB)])
            assert has.sum() == N_SLOTS
            assert np.all(np.isneginf(part[:, ~has]))
            np.testing.assert_allclose(part[:, has], whole[:, has], rtol=0, atol=2e-4)
            assert [[i for i, _ in row] for row in found] == [[i for i, _ in row] for row in chosen]
            for row, wanted, logits in zip(found, chosen, part, strict=True):
                p = [one for _, one in row]
                if kind == "dflash2":  # of its own choices alone
                    np.testing.assert_allclose(p, [one for _, one in wanted], atol=1e-4)
                    continue
                shares = np.exp(logits[has] - logits[has].max())
                shares = np.sort(shares / shares.sum())[::-1]
                np.testing.assert_allclose(p, shares[: len(p)], atol=1e-4)
        context.draft_output(0)
        again, _ = said(draft, context, n_seqs)
        np.testing.assert_array_equal(again, whole)


@pytest.mark.parametrize("arch", ["llama", "qwen35", "granite", "gemma2"])
def test_logits_of_a_small_model(arch: str) -> None:
    """Ids without a slot have no chance; where a cap follows the product, all ids are computed."""
    model = tiny(arch)
    with Context(model, n_ctx=64, n_threads=1) as context:
        whole = plain_logits(context)
        ids = reduced_output(context, N_SLOTS, model)
        assert ids is not None
        ids.see(range(100, 120))
        part = plain_logits(context)
        has = np.array([i in ids for i in range(N_VOCAB)])
        assert np.all(np.isneginf(part[:, ~has])) == (arch != "gemma2")
        np.testing.assert_allclose(part[:, has], whole[:, has], rtol=0, atol=2e-4)
        context.draft_output(0)
        np.testing.assert_array_equal(plain_logits(context), whole)


def plain_logits(context: Context) -> np.ndarray:
    batch = Batch(N_GUESSES)
    batch.extend(range(40, 40 + N_GUESSES), 0, 0, output_last=True)
    context.decode(batch)
    logits = np.array([context.logits(N_GUESSES - 1)])
    context.memory.remove(0)
    return logits


FOR_PERM = pytest.mark.parametrize("kind", ["eagle3", "dflash", "mtp", "small"])


def perm_path(kind: str) -> Path:
    if kind == "mtp":
        return model_path("perm_mtp", arch="qwen35", n_cycles=16)
    return model_path("perm", n_cycles=16)


def perm_draft(kind: str, n_output: int | None) -> Draft:
    if kind == "mtp":
        return Mtp(max_draft=4, n_output=n_output)
    if kind == "small":
        return SmallModel(model_path("perm", n_cycles=16), 4, n_output=n_output)
    if kind == "eagle3":
        path = model_path("perm_eagle3", n_cycles=16)
        return Eagle3(path, 4, n_output=n_output)
    path = model_path("perm_dflash", read="newest", mask_token=ENDOFTEXT, n_cycles=16)
    return DFlash(path, 4, n_output=n_output)


def perm_runs(draft: Draft, prompt: list[int], n: int) -> tuple[LoopRun, LoopRun]:
    if isinstance(draft, Mtp):
        model = with_head("perm_mtp", arch="qwen35", n_cycles=16)
        opened_context = mtp_context(model, draft)
    else:
        opened_context = target_context(tiny("perm", n_cycles=16), draft)
    with opened_context as context:
        loop, seq = SpeculativeLoop(context, draft), SequenceState()
        runs = generate(loop, seq, prompt, n), generate(loop, seq, prompt, n)
        for run in runs:
            assert run.tokens == perm_continuation(prompt[-1], n, perm_next(n_cycles=16))
            assert run.stats.reason_off is None
        draft.close()
    return runs


@pytest.fixture
def by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the tests' small vocabulary is chosen."""
    values = {"LEAST_VOCAB": 1, "SHARE": 5, "_N_COUNTED": 16}
    for name, value in values.items():
        monkeypatch.setattr(output_part, name, value)


@FOR_PERM
@pytest.mark.usefixtures("by_itself")
def test_what_a_text_has_said_is_drafted(kind: str) -> None:
    draft = perm_draft(kind, N_SLOTS)
    first, second = perm_runs(draft, [150, 151, 152], 60)
    assert draft.note == "", "a number that was given stays"
    assert 0 < first.stats.accepted < first.stats.drafted, "its tokens are new at first"
    assert second.stats.accepted == second.stats.drafted > 0
    whole, _ = perm_runs(perm_draft(kind, 0), [150, 151, 152], 60)
    assert whole.stats.accepted == whole.stats.drafted


@FOR_PERM
@pytest.mark.usefixtures("by_itself")
def test_a_text_with_too_few_slots_is_drafted_over_all_ids(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = perm_draft(kind, None)
    first, second = perm_runs(draft, [150, 151, 152], 60)
    part, _ = perm_runs(perm_draft(kind, N_SLOTS), [150, 151, 152], 60)
    assert part.stats.accepted < first.stats.accepted < first.stats.drafted
    assert second.stats.accepted == second.stats.drafted > 0
    assert "the draft chooses among all ids: a part of them did not have" in draft.note
    monkeypatch.setattr(output_part, "MOST_MISSING", 1.0)
    draft = perm_draft(kind, None)
    first, _ = perm_runs(draft, [150, 151, 152], 60)
    assert (first.stats.accepted, draft.note) == (part.stats.accepted, "")


@FOR_PERM
@pytest.mark.usefixtures("by_itself")
@pytest.mark.parametrize("n_output", [None, N_SLOTS])
def test_what_a_prompt_says_is_drafted(kind: str, n_output: int | None) -> None:
    """No miss is counted for ids of the prompt, which all have a slot once the text uses them."""
    prompt = [150, *perm_continuation(150, 30, perm_next(n_cycles=16))]
    draft = perm_draft(kind, n_output)
    first, _ = perm_runs(draft, prompt, 30)
    assert first.stats.accepted == first.stats.drafted > 0
    assert draft.note == ""


@FOR_PERM
def test_a_restored_text_is_drafted(kind: str) -> None:
    def open_llama() -> Llama:
        return Llama(
            perm_path(kind), draft=perm_draft(kind, N_SLOTS), n_ctx=256,
            controller="fixed", n_threads=1,
        )  # fmt: skip

    with open_llama() as llm, open_llama() as other:
        llm.create_completion([150], max_tokens=60, temperature=0)
        state = llm.save_state()
        other.load_state(state)
        tokens = [*state.tokens, int(perm_next(n_cycles=16)[state.tokens[-1]])]
        answer = other.create_completion(tokens, max_tokens=20, temperature=0)["speculation"]
        assert answer["accepted"] == answer["drafted"] > 0


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_a_vocabulary_of_its_own_stays_whole(kind: str) -> None:
    for n_output in (None, 0, N_SLOTS):
        draft = opened(kind, n_output, n_draft_vocab=200)
        with target_context(tiny("llama"), draft) as target:
            if n_output:
                with pytest.raises(UnsupportedError, match="a part of the vocabulary"):
                    draft.attach(target)
                assert draft.context is None
            else:
                draft.attach(target)
                assert draft.n_choices == N_VOCAB
            draft.close()


@pytest.mark.parametrize("n_vocab", [300, 384])
@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_ids_that_one_of_the_two_lacks(kind: str, n_vocab: int) -> None:
    """A padding id that one side lacks has no slot, and the text continues."""
    options = {"n_vocab": n_vocab} | ({"mask_token": 290} if kind == "dflash" else {})
    draft = opened(kind, N_SLOTS, **options)
    with target_context(tiny("llama"), draft) as target:
        draft.attach(target)
        assert draft.n_choices == N_SLOTS
        ids = draft._draft_ids
        assert ids is not None
        ids.see([*range(290, N_VOCAB)])
        assert {i for i in range(400) if i in ids} & {*range(290, 400)} == {
            *range(290, min(n_vocab, N_VOCAB))
        }
        draft.close()
    draft = opened(kind, min(n_vocab, N_VOCAB) + 1, **options)
    with (
        target_context(tiny("llama"), draft) as target,
        pytest.raises(ArgumentError),
    ):
        draft.attach(target)
    draft.close()


def head_context(model: Model, **options: Any) -> Context:
    return Context(model, n_ctx=64, n_batch=8, n_threads=1, is_head=True, **options)


def test_the_ids_that_were_not_seen_for_longest_make_room() -> None:
    model = with_head("qwen35", n_heads=1)
    with head_context(model) as context:
        matrix = context.draft_output(16)
        ids = DraftIds(context, model, rows_of(model.path, matrix.name, matrix.row_bytes), 16)
        control = {i for i in range(320) if model.vocab.is_control(i)}
        first = {i for i in range(320) if i in ids}
        assert len(first) == 16
        assert len(first & control) == min(len(control), 8)
        assert set(first - control) == set(range(16 - min(len(control), 8)))
        ids.see(range(100, 116))
        assert {i for i in range(320) if i in ids} == set(range(100, 116))
        ids.see([100, 101, 100])
        ids.see([200, 201])
        assert {i for i in range(320) if i in ids} == {100, 101, *range(104, 116), 200, 201}
        ids.see(range(300))  # more than there is room for: the last of them
        assert {i for i in range(320) if i in ids} == set(range(284, 300))


def test_a_file_that_is_cut_off_later(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(model_path("perm_mtp", arch="qwen35", n_cycles=16), path)
    drafter = Mtp(max_draft=3, n_output=N_SLOTS)
    with Llama(
        path, draft=drafter, n_ctx=256, controller="fixed", n_threads=1, use_mmap=False
    ) as llm:
        path.write_bytes(b"GGUF")
        answer = llm.create_completion([150], max_tokens=40, temperature=0)
        told = answer["speculation"]
    assert told["accepted"] == told["drafted"] > 0
    assert "the draft chooses among all ids" in drafter.note
    assert "was cut off since it was loaded" in drafter.note
