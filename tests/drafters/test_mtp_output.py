"""A head with a part of the vocabulary: its numbers, the choice of the part, and its use."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from pyllama_spec import Llama
from pyllama_spec.drafters import Mtp, output_part
from pyllama_spec.drafters.output_part import DraftIds, OutputRows
from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.errors import ArgumentError, ModelLoadError, UnsupportedError
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.models import model_path
from tests.mtp_tools import ARCHS, mtp_context, with_head, without
from tests.oracles import generate, tiny
from tests.tiers import release_except

N_SLOTS = 64
TYPES: dict[str, dict[str, Any]] = {
    "F32": {}, "Q8_0": {"quantised": "Q8_0"}, "Q4_0": {"quantised": "Q4_0"},
    "Q4_K": {"quantised": "Q4_K", "n_embd": 256},
}  # fmt: skip


def head_context(model: Model, **options: Any) -> Context:
    """A context of a model's head."""
    return Context(model, n_ctx=64, n_batch=8, n_threads=1, is_head=True, **options)


def reduced(context: Context, n_slots: int | None) -> DraftIds | None:
    """reduced_output() of a head whose model is the target."""
    batch, row = Batch(1, n_row=context.n_row), np.zeros(context.n_row, np.float32)

    def one(i: int) -> None:
        batch.clear()
        batch.add(0, i, output=True, row=row)
        context.decode(batch)

    return output_part.reduced_output(context, n_slots, context.model, one)


def step(context: Context, pos: int = 0) -> np.ndarray:
    """Logits of three pairs of noise."""
    rng, batch = np.random.default_rng(pos), Batch(3, n_row=context.n_row)
    for i in range(3):
        row = rng.standard_normal(context.n_row).astype(np.float32)
        batch.add(40 + i, pos + i, output=True, row=row)
    context.decode(batch)
    return np.array([context.logits(i) for i in range(3)])


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35", "cohere2moe")))
@pytest.mark.parametrize("kind", TYPES)
def test_logits_are_those_of_the_whole_matrix(arch: str, kind: str) -> None:
    """The logits of ids with a slot are equal, turned on, off and with other ids."""
    model = with_head(arch, n_heads=1, **TYPES[kind])
    with head_context(model) as context:
        whole = step(context)
        matrix = context.draft_output(N_SLOTS)
        assert (matrix.name, matrix.is_targets) == ("output.weight", False)
        rows = OutputRows(model.path, matrix.name, matrix.row_bytes)
        ids = DraftIds(context, model, rows, N_SLOTS)
        for seen in ((), (319, 200, 201), range(100, 140)):
            ids.see(seen)
            assert all(i in ids for i in seen)
            context.memory.remove(0)
            part = step(context)
            has = np.array([i in ids for i in range(model.info.n_vocab)])
            assert has.sum() == N_SLOTS
            assert np.all(np.isneginf(part[:, ~has]))
            np.testing.assert_allclose(part[:, has], whole[:, has], rtol=0, atol=1e-4)
            best, p, _ = context.draft_candidates(2)
            assert best[0] == np.flatnonzero(has)[np.argmax(part[2][has])]
            shares = np.exp(part[2][has] - part[2][has].max())
            assert p[0] == pytest.approx(1.0 / shares.sum(), rel=1e-4)
        context.draft_output(0)
        context.memory.remove(0)
        np.testing.assert_array_equal(step(context), whole)


def test_the_ids_that_were_not_seen_for_longest_make_room() -> None:
    model = with_head("qwen35", n_heads=1)
    with head_context(model) as context:
        matrix = context.draft_output(16)
        ids = DraftIds(context, model, OutputRows(model.path, matrix.name, matrix.row_bytes), 16)
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


def test_rows_are_read_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adjacent rows are read in one call."""
    monkeypatch.setattr(output_part, "_N_READ", 7)
    path, row_bytes = model_path("qwen35", n_heads=1), 4 * 64
    rows, rng = OutputRows(path, "output.weight", row_bytes), np.random.default_rng(2)
    tensor = next(t for t in GGUFReader(path).tensors if t.name == "output.weight")
    whole = np.array(tensor.data).view(np.uint8).reshape(320, -1)
    for ids in ([], [5], [319, 0], [9, 8, 7], [4, 4, 5], range(320), rng.permutation(320)[:200]):
        chosen = np.array(ids, np.int32)
        np.testing.assert_array_equal(rows.read(chosen), whole[chosen])


def test_several_heads_share_it() -> None:
    model = with_head("step35", n_heads=3)
    texts = []
    for n_output in (0, N_SLOTS):
        drafter = Mtp(max_draft=3, n_output=n_output)
        with mtp_context(model, drafter) as context:
            run = generate(
                SpeculativeLoop(context, drafter), SequenceState(), list(range(40, 60)), 40
            )
            texts.append(run.tokens)
            assert run.stats.drafted > 0
            assert drafter.describe()["n_output"] == (n_output or 320)
            drafter.close()
    assert texts[0] == texts[1]


def test_heads_with_matrices_of_their_own_use_them_whole() -> None:
    model = with_head("perm_mtp", arch="step35", n_heads=3)
    for n_output in (None, 0):
        drafter = Mtp(n_output=n_output)
        with mtp_context(model, drafter) as context:
            drafter.attach(context)
            assert drafter.describe()["n_output"] == 320
    drafter = Mtp(n_output=N_SLOTS)
    with (
        mtp_context(model, drafter) as context,
        pytest.raises(UnsupportedError, match="among a part of the vocabulary"),
    ):
        drafter.attach(context)
    assert drafter.context is None


def test_numbers_out_of_range() -> None:
    with pytest.raises(ArgumentError, match="n_output=-1"):
        Mtp(n_output=-1)
    model = with_head("qwen35", n_heads=1)
    drafter = Mtp(n_output=321)
    with (
        mtp_context(model, drafter) as context,
        pytest.raises(ArgumentError, match="n_output=321 is more than the 320 ids"),
    ):
        drafter.attach(context)
    with head_context(model) as context:
        one, row = np.zeros(1, np.int32), np.zeros((1, 256), np.uint8)
        with pytest.raises(ArgumentError, match="call draft_output"):
            context.set_draft_rows(one, one, row)
        context.draft_output(8)
        with pytest.raises(ArgumentError, match="255 bytes are not 1 rows of 256"):
            context.set_draft_rows(one, one, row[:, :255].copy())
        for slot, id_ in ((8, 0), (-1, 0), (0, 320), (0, -1)):
            with pytest.raises(ArgumentError, match=r"out of range|outside the vocabulary"):
                context.set_draft_rows(one + slot, one + id_, row)
        with pytest.raises(ArgumentError, match="1 slots, 2 ids and 1 rows"):
            context.set_draft_rows(one, np.zeros(2, np.int32), row)
    with (
        Context(tiny("llama"), n_ctx=32, n_threads=1) as context,
        pytest.raises(UnsupportedError, match="no draft that could choose"),
    ):
        context.draft_output(8)


def test_a_small_vocabulary_is_left_whole() -> None:
    with head_context(with_head("qwen35", n_heads=1)) as context:
        assert reduced(context, None) is None
        assert reduced(context, 0) is None
        assert reduced(context, 320) is not None


@pytest.mark.parametrize(("part_s", "is_part"), [(0.5, True), (0.95, False)])
def test_the_cost_of_a_step_decides(
    monkeypatch: pytest.MonkeyPatch, part_s: float, is_part: bool
) -> None:
    times = iter((1.0, part_s))
    monkeypatch.setattr(output_part, "LEAST_VOCAB", 320)
    monkeypatch.setattr(output_part, "_step_s", lambda context, step: next(times))
    with head_context(with_head("qwen35", n_heads=1)) as context:
        assert (reduced(context, None) is not None) == is_part
        assert np.isneginf(step(context)).any() == is_part


def test_a_step_is_measured_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_part, "LEAST_VOCAB", 320)
    with head_context(with_head("qwen35", n_heads=1)) as context:
        reduced(context, None)  # whatever it makes of it
        assert context.memory.positions(0) == (-1, -1)


def test_what_cannot_be_used_in_part_is_left_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(output_part, "LEAST_VOCAB", 320)
    with head_context(with_head("perm_mtp", arch="step35", n_heads=3)) as context:
        assert reduced(context, None) is None
        step(context)
    path = tmp_path / "model.gguf"
    shutil.copy(model_path("qwen35", n_heads=1), path)
    torso = without(path, tmp_path / "torso.gguf", "output.weight")
    with Model(path, load_mtp=True, use_mmap=False) as model, head_context(model) as context:
        whole = step(context)
        for gone in (b"GGUF", torso.read_bytes()):
            path.write_bytes(gone)
            for n_slots in (None, 16):
                context.memory.remove(0)
                if n_slots is None:
                    assert reduced(context, n_slots) is None
                else:
                    with pytest.raises((UnsupportedError, ModelLoadError), match="model"):
                        reduced(context, n_slots)
                np.testing.assert_array_equal(step(context), whole)


def test_a_large_vocabulary_through_llama() -> None:
    """The text equals plain decoding, whatever the steps cost."""
    path = model_path("qwen35", n_heads=1, n_vocab=70000, output_scale=3.0)
    texts = []
    for draft in (None, Mtp(max_draft=3)):
        with Llama(path, draft=draft, n_ctx=256, n_threads=1, controller="fixed") as llm:
            answer = llm.create_completion("Hello there,", max_tokens=24, temperature=0)
            texts.append(answer["choices"][0]["text"])
            if draft is not None:
                assert answer["speculation"]["drafted"] > 0
                assert answer["speculation"]["reason_off"] is None
                assert draft.describe()["n_output"] in (70000 // output_part.SHARE, 70000)
    assert texts[0] == texts[1]


def test_a_file_that_is_cut_off_later(tmp_path: Path) -> None:
    """The head continues with the whole matrix, and reports it."""
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
