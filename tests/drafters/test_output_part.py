"""Drafts that choose among a part of the vocabulary; for the numbers of MTP, test_mtp_output.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import DFlash, Eagle3, Mtp, output_part
from pyllama_spec.drafters.output_part import DraftIds, reduced_output
from pyllama_spec.engine import Batch
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.dflash_tools import add_block
from tests.eagle3_tools import target_context
from tests.models import ENDOFTEXT, model_path, perm_continuation, perm_next
from tests.mtp_tools import mtp_context, with_head
from tests.oracles import LoopRun, generate, tiny
from tests.perm_tools import check_restored_is_drafted
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
Draft = Eagle3 | DFlash


def opened(kind: str, n_output: int | None = None, **options: Any) -> Draft:
    """A draft of random weights for the tiny llama."""
    arch, own = KINDS[kind]
    path = model_path(arch, **own, **options)
    return Eagle3(path, n_output=n_output) if arch == "eagle3" else DFlash(path, n_output=n_output)


def said(draft: Draft, n_seqs: int) -> tuple[np.ndarray, list[list[tuple[int, float]]]]:
    """Logits of pairs, or of the guesses of a block of each sequence; and what may be chosen."""
    context = draft.context
    assert context is not None
    if isinstance(draft, Eagle3):
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
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_whole_matrix(kind: str, n_seqs: int) -> None:
    """The logits of ids with a slot are equal, turned on, off and with other ids."""
    draft = opened(kind)
    with target_context(
        tiny("llama"), draft, n_seq_max=n_seqs, n_ctx=256 * n_seqs, kv_unified=True
    ) as target:
        draft.attach(target)
        context = draft.context
        assert context is not None
        whole, chosen = said(draft, n_seqs)
        ids = reduced_output(context, N_SLOTS, target.model, lambda _: None)
        assert ids is not None
        # With them a chain goes on as it did.
        always = [id_ for row in chosen for id_, _ in row]
        for seen in ((), (319, 200, 201), range(100, 120)):
            ids.see([*seen, *always])
            part, found = said(draft, n_seqs)
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
        again, _ = said(draft, n_seqs)
        np.testing.assert_array_equal(again, whole)
        draft.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_no_slot_is_never_chosen(kind: str) -> None:
    draft = opened(kind)
    with target_context(tiny("llama"), draft) as target:
        draft.attach(target)
        assert draft.context is not None
        _, chosen = said(draft, 1)
        ids = reduced_output(draft.context, N_SLOTS, target.model, lambda _: None)
        assert isinstance(ids, DraftIds)
        taken = {id_ for row in chosen for id_, _ in row}
        ids.see([i for i in range(N_VOCAB) if i not in taken][:N_SLOTS])
        _, found = said(draft, 1)
        assert all(id_ in ids and id_ not in taken for row in found for id_, _ in row)
        draft.close()


FOR_PERM = pytest.mark.parametrize("kind", ["eagle3", "dflash", "mtp"])


def perm_path(kind: str) -> Path:
    """A target of PERM with short cycles; of MTP with its head."""
    if kind == "mtp":
        return model_path("perm_mtp", arch="qwen35", n_cycles=16)
    return model_path("perm", n_cycles=16)


def perm_draft(kind: str, n_output: int | None) -> Eagle3 | DFlash | Mtp:
    """A draft that is right for PERM with short cycles."""
    if kind == "mtp":
        return Mtp(max_draft=4, n_output=n_output)
    if kind == "eagle3":
        path = model_path("perm_eagle3", n_cycles=16)
        return Eagle3(path, 4, n_output=n_output)
    path = model_path("perm_dflash", read="newest", mask_token=ENDOFTEXT, n_cycles=16)
    return DFlash(path, 4, n_output=n_output)


def perm_runs(draft: Eagle3 | DFlash | Mtp, prompt: list[int], n: int) -> tuple[LoopRun, LoopRun]:
    """The same prompt twice."""
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
    """A fifth of the tests' small vocabulary is chosen, whatever the steps take."""
    values = {"LEAST_VOCAB": 1, "SHARE": 5, "_WORTH_IT": 1e9, "_N_COUNTED": 16}
    for name, value in values.items():
        monkeypatch.setattr(output_part, name, value)


@FOR_PERM
def test_what_a_text_has_said_is_drafted(kind: str) -> None:
    first, second = perm_runs(perm_draft(kind, N_SLOTS), [150, 151, 152], 60)
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
def test_a_number_of_slots_that_was_given_stays(kind: str) -> None:
    draft = perm_draft(kind, N_SLOTS)
    perm_runs(draft, [150, 151, 152], 60)
    assert draft.note == ""


@FOR_PERM
@pytest.mark.usefixtures("by_itself")
def test_what_was_given_does_not_count(kind: str) -> None:
    """No miss is counted for ids of the prompt, which all have a slot once the text uses them."""
    draft, prompt = (
        perm_draft(kind, None),
        [150, *perm_continuation(150, 30, perm_next(n_cycles=16))],
    )
    first, _ = perm_runs(draft, prompt, 30)
    assert first.stats.accepted == first.stats.drafted > 0
    assert draft.note == ""


@FOR_PERM
@pytest.mark.usefixtures("by_itself")
def test_the_part_is_used_again_when_it_fits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_part, "_N_AWAY", 16)
    draft = perm_draft(kind, None)
    _, second = perm_runs(draft, [150, 151, 152], 120)
    assert draft.note == "the draft chooses among a part of the ids again"
    assert draft.n_choices == N_VOCAB // 5
    assert second.stats.accepted == second.stats.drafted > 0


def test_a_switch_back_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_N_COUNTED": 16, "_N_AWAY": 16}.items():
        monkeypatch.setattr(output_part, name, value)
    draft = opened("eagle3")
    with target_context(tiny("llama"), draft) as target:
        draft.attach(target)
        assert draft.context is not None
        ids = reduced_output(draft.context, N_SLOTS, target.model, lambda _: None)
        assert ids is not None
        waits = []
        for first in (100, 180, 250, 140):
            new = range(first, first + 40)
            ids.count(i for i in new if i not in ids)
            assert ids.is_too_small
            ids.leave()
            ids.see(new)
            part, _ = said(draft, 1)
            assert np.isfinite(part).all(), "all ids have logits"
            n = 0
            while not ids.fits_again:
                ids.count([first])
                n += 1
            ids.use_again()
            waits.append(n)
            part, _ = said(draft, 1)
            has = np.isfinite(part).all(axis=0)
            assert has.sum() == N_SLOTS
            assert has[list(new)].all(), "what was seen meanwhile has a slot"
        assert waits[2:] == [64, 128]
        draft.close()


@pytest.mark.usefixtures("by_itself")
def test_a_file_that_cannot_be_read_leaves_all_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_part, "_N_AWAY", 16)

    def fail(*_: object) -> None:
        raise OSError("the file is gone")

    monkeypatch.setattr(output_part.DraftIds, "use_again", fail)
    draft = perm_draft("eagle3", None)
    _, second = perm_runs(draft, [150, 151, 152], 120)
    assert draft.note == "the draft chooses among all ids: the file is gone"
    assert second.stats.accepted == second.stats.drafted > 0


@FOR_PERM
def test_what_a_prompt_says_is_drafted(kind: str) -> None:
    prompt = [150, *perm_continuation(150, 30, perm_next(n_cycles=16))]
    first, _ = perm_runs(perm_draft(kind, N_SLOTS), prompt, 30)
    assert first.stats.accepted == first.stats.drafted > 0


@FOR_PERM
def test_a_restored_text_is_drafted(kind: str) -> None:
    def open_llama() -> Llama:
        return Llama(
            perm_path(kind), draft=perm_draft(kind, N_SLOTS), n_ctx=256,
            controller="fixed", n_threads=1,
        )  # fmt: skip

    check_restored_is_drafted(open_llama)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", release_except(tuple(KINDS), ("eagle3", "dspark")))
def test_the_text_does_not_depend_on_it(kind: str, temperature: float) -> None:
    texts = []
    for n_output in (None, N_SLOTS, N_VOCAB):
        with Llama(
            model_path("llama"), draft=opened(kind, n_output), n_ctx=256, controller="fixed",
            n_threads=1, n_parallel=2,
        ) as llm:  # fmt: skip
            answer = llm.create_completion(
                ["Hello there,", "one two one two"], max_tokens=30, temperature=temperature, seed=4
            )
            assert answer["speculation"]["drafted"] > 0
            texts.append([choice["text"] for choice in answer["choices"]])
    assert texts[0] == texts[1] == texts[2]


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
        draft._see([*range(290, N_VOCAB)])
        ids = draft._draft_ids
        assert ids is not None
        assert {i for i in range(400) if i in ids} & {*range(290, 400)} == {
            *range(290, min(n_vocab, N_VOCAB))
        }
        draft.close()
    draft = opened(kind, min(n_vocab, N_VOCAB) + 1, **options)
    with (
        target_context(tiny("llama"), draft) as target,
        pytest.raises(ArgumentError, match=f"more than the {min(n_vocab, N_VOCAB)} ids"),
    ):
        draft.attach(target)
    draft.close()


def test_a_selector_has_choices() -> None:
    draft = opened("dflash2", 3)
    with (
        target_context(tiny("llama"), draft) as target,
        pytest.raises(ArgumentError, match="choose among at least 4 ids"),
    ):
        draft.attach(target)
    draft.close()
    with pytest.raises(ArgumentError, match="n_output=-1"):
        opened("eagle3", -1)
    with pytest.raises(ArgumentError, match="n_output=-1"):
        opened("dflash", -1)
