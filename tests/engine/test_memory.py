"""Memory: cutting, copying, saving, restoring; and the limits of recurrent states."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pyllama_spec.engine import Batch, Context
from pyllama_spec.errors import ArgumentError, PyllamaSpecError, UnsupportedError
from tests.models import DECODERS
from tests.models.build import WITH_HEADS
from tests.oracles import Rows, forced_rows, prompt_tokens, tiny, tiny_context

ARCHS = ("llama", "gemma3", "deepseek2", "qwen35", "lfm2", "mamba2", "mamba")
EVERY = (*DECODERS, *WITH_HEADS)
RECURRENT = ("qwen35", "lfm2", "mamba2", "mamba")
TEXT = prompt_tokens(18, seed=4)


def decode(context: Context, tokens: list[int], at: int, seq: int = 0) -> Rows:
    """Decodes a run of tokens; the logits of the last one."""
    batch = Batch(len(tokens))
    batch.extend(tokens, at, seq, output_last=True)
    context.decode(batch)
    row: Rows = context.logits(len(tokens) - 1).copy()
    return row


def check_state(context: Context, text: list[int], seq: int = 0, *, tolerance: float = 0.0) -> None:
    """O6: the sequence holds exactly this text: a further token's logits are a fresh context's.

    If sequences share a buffer, only flash attention skips the cells of others.
    """
    assert context.memory.positions(seq)[1] == len(text) - 1
    got = decode(context, [99], len(text), seq)
    flash_attn = context.params.flash_attn
    expected = forced_rows(context.model, [*text, 99], flash_attn=flash_attn)[0][-1]
    assert float(np.abs(got - expected).max()) <= tolerance


def test_positions() -> None:
    with tiny_context(tiny("llama"), n_seq_max=2) as context:
        assert context.memory.positions(0) == context.memory.positions(1) == (-1, -1)
        decode(context, TEXT, 0, 1)
        assert context.memory.positions(0) == (-1, -1)
        assert context.memory.positions(1) == (0, 17)
        context.memory.clear()
        assert context.memory.positions(1) == (-1, -1)
        for seq in (-1, 2, 2**31 - 1):
            for call in (context.memory.positions, context.memory.remove):
                with pytest.raises(ArgumentError):
                    call(seq)


@pytest.mark.parametrize("arch", ARCHS)
def test_rollback(arch: str) -> None:
    for n_keep in (18, 17, 14, 9):
        with tiny_context(tiny(arch)) as context:
            decode(context, TEXT, 0)
            assert context.memory.rollback(0, n_keep)
            check_state(context, TEXT[:n_keep])


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen35", "lfm2", "mamba2"])
def test_remove_all_and_begin_again(arch: str) -> None:
    for p1 in (-1, 18, 1000):
        with tiny_context(tiny(arch)) as context:
            decode(context, TEXT, 0)
            context.memory.rollback(0, 15)
            context.memory.remove(0, 0, p1)
            assert context.memory.positions(0) == (-1, -1)
            decode(context, TEXT[::-1], 0)
            check_state(context, TEXT[::-1])


@pytest.mark.parametrize("arch", RECURRENT)
def test_a_recurrent_state_goes_back_as_far_as_its_last_batch(arch: str) -> None:
    """The engine takes rollbacks into snapshots of an earlier batch, and the state is wrong.

    Random batches and rollbacks: each is either bit-equal or refused without a change. None that
    the loop needs is refused: back to the first token of the last batch.
    """
    rng = random.Random(arch)
    n_refused = n_done = n_twice = 0
    for _ in range(60):
        with tiny_context(tiny(arch), n_rs_seq=5) as context:
            at = 0
            while at < len(TEXT):
                width = min(rng.choice([1, 2, 3, 6, 9]), len(TEXT) - at)
                decode(context, TEXT[at : at + width], at)
                at += width
            back = rng.randrange(1, 8)
            done = context.memory.rollback(0, at - back)
            assert done == (back <= min(width - 1, 5))
            n_done, n_refused = n_done + done, n_refused + (not done)
            while done and rng.random() < 0.8:  # and further back, before the next decode
                more = back + rng.randrange(1, 4)
                if not context.memory.rollback(0, at - more):
                    assert more > min(width - 1, 5)
                    break
                assert more <= min(width - 1, 5)
                back, n_twice = more, n_twice + 1
            check_state(context, TEXT[: at - back] if done else TEXT)
    assert min(n_done, n_refused) > 10
    assert n_twice > 3


@pytest.mark.parametrize("arch", RECURRENT)
@pytest.mark.parametrize("others", [(0, 2), (1, 2), (2, 0), (0, 1, 2)])
def test_a_recurrent_state_that_was_moved(arch: str, others: tuple[int, ...]) -> None:
    """Decoding sequences together moves their cells together, and displaces those in between."""
    for kv_unified in (False, True):
        options = {"kv_unified": kv_unified, "flash_attn": kv_unified}
        with tiny_context(tiny(arch), n_seq_max=4, **options) as context:
            for seq in (2, 0, 1, 3):
                decode(context, TEXT[seq:], 0, seq)
            batch = Batch(32)
            for seq in others:
                batch.extend([7, 8, 9], len(TEXT) - seq, seq)
            context.decode(batch)
            for seq in range(4):
                text = TEXT[seq:] + ([7, 8, 9] if seq in others else [])
                n_keep = len(text) - 2
                done = context.memory.rollback(seq, n_keep)
                check_state(context, text[:n_keep] if done else text, seq, tolerance=0.1)


@pytest.mark.parametrize("arch", RECURRENT)
def test_parts_of_a_recurrent_state_are_refused(arch: str) -> None:
    with tiny_context(tiny(arch), n_seq_max=2) as context:
        decode(context, TEXT, 0)
        for p0, p1 in ((0, 5), (3, 9), (1, 17), (1, -1)):
            with pytest.raises(UnsupportedError, match="cannot remove"):
                context.memory.remove(0, p0, p1)
        for p0, p1 in ((18, -1), (5, 5), (40, 50)):
            context.memory.remove(0, p0, p1)
        check_state(context, TEXT)


def test_too_small_physical_batches_for_the_snapshots() -> None:
    with pytest.raises(ArgumentError):
        tiny_context(tiny("qwen35"), n_ubatch=11)
    with tiny_context(tiny("qwen35"), n_ubatch=12) as context:
        decode(context, TEXT, 0)
        check_state(context, TEXT)
    # Others have no snapshots to keep together.
    with tiny_context(tiny("llama"), n_ubatch=1) as context:
        assert context.n_rs_seq == 0


@pytest.mark.parametrize("kv_unified", [False, True])
@pytest.mark.parametrize("arch", ARCHS)
def test_copy(arch: str, kv_unified: bool) -> None:
    options = {"kv_unified": kv_unified, "flash_attn": kv_unified}
    with tiny_context(tiny(arch), n_seq_max=3, **options) as context:
        decode(context, TEXT, 0)
        decode(context, TEXT[:4], 0, 2)
        context.memory.copy(0, 1)
        decode(context, [1, 2], 18, 0)
        check_state(context, TEXT, 1)
        check_state(context, [*TEXT, 1, 2], 0)
        check_state(context, TEXT[:4], 2)


@pytest.mark.parametrize("chosen", [0, 1], ids=["source", "copy"])
@pytest.mark.parametrize("arch", ARCHS)
def test_a_shared_state_is_not_rolled_back_for_one(arch: str, chosen: int) -> None:
    with tiny_context(tiny(arch), n_seq_max=2, kv_unified=True, flash_attn=True) as context:
        decode(context, TEXT, 0)
        context.memory.copy(0, 1)
        kept = 15 if context.memory.rollback(chosen, 15) else 18
        assert kept == (15 if arch in ("llama", "gemma3", "deepseek2") else 18)
        check_state(context, TEXT, 1 - chosen)
        check_state(context, TEXT[:kept], chosen)


@pytest.mark.parametrize("arch", RECURRENT)
@pytest.mark.parametrize("first", [0, 1], ids=["source first", "copy first"])
def test_a_copy_of_a_state_that_was_rolled_back(arch: str, first: int) -> None:
    """The copy shares a cell whose rollback is pending until the next decode."""
    for others in ([], [2]):
        with tiny_context(tiny(arch), n_seq_max=4) as context:
            decode(context, TEXT, 0, 1)
            decode(context, TEXT[::-1], 0, 2)
            assert context.memory.rollback(1, 15)
            context.memory.copy(1, 3)
            batch = Batch(8)
            for seq in [1, *others] if first == 0 else [*others, 3]:
                batch.extend([5, 6, 7], 18 if seq == 2 else 15, seq)
            context.decode(batch)
            check_state(context, [*TEXT[:15], 5, 6, 7] if first == 0 else TEXT[:15], 1)
            check_state(context, TEXT[:15] if first == 0 else [*TEXT[:15], 5, 6, 7], 3)


@pytest.mark.parametrize("arch", ARCHS)
def test_save_and_restore(arch: str) -> None:
    with tiny_context(tiny(arch), n_seq_max=2) as context:
        decode(context, TEXT, 0)
        if arch in RECURRENT:
            assert context.memory.rollback(0, 14)
        text = TEXT[: context.memory.positions(0)[1] + 1]
        saved = context.memory.save(0)
        decode(context, [5, 6, 7], len(text))
        context.memory.restore(1, saved)
        context.memory.restore(0, saved)
        if arch in RECURRENT:
            assert not context.memory.rollback(0, len(text) - 1), "no snapshots were saved"
        for seq in (0, 1):
            check_state(context, text, seq)
    with tiny_context(tiny(arch), n_seq_max=2) as other:
        decode(other, [1, 2, 3], 0)
        other.memory.restore(0, saved)
        check_state(other, text)


def test_damaged_states_are_refused() -> None:
    rng = random.Random(6)
    with tiny_context(tiny("llama")) as context:
        decode(context, TEXT, 0)
        saved = context.memory.save(0)
        for _ in range(40):
            at = rng.randrange(len(saved))
            bad = bytearray(saved)
            bad[at] ^= 1 << rng.randrange(8)
            with pytest.raises(ArgumentError):
                context.memory.restore(0, bytes(bad))
        for bad_bytes in (b"", saved[:5], saved[:-1], saved + b"\0", saved[: len(saved) // 2]):
            with pytest.raises(ArgumentError):
                context.memory.restore(0, bad_bytes)
        version = int.from_bytes(saved[4:8], "little")
        older = saved[:4] + (version - 1).to_bytes(4, "little") + saved[8:]
        with pytest.raises(ArgumentError):
            context.memory.restore(0, older)
        with pytest.raises(ArgumentError):
            context.memory.rollback(0, -1)
        check_state(context, TEXT)


def test_a_state_of_another_number_of_sequences_is_refused() -> None:
    with tiny_context(tiny("llama"), n_seq_max=2) as wide:
        decode(wide, TEXT, 0)
        saved = wide.memory.save(0)
    with tiny_context(tiny("llama")) as context:
        with pytest.raises(ArgumentError):
            context.memory.restore(0, saved)
        decode(context, TEXT, 0)
        check_state(context, TEXT)


def test_a_state_of_another_model_is_refused() -> None:
    with tiny_context(tiny("llama", n_layer=2), n_seq_max=2) as other:
        decode(other, TEXT, 0)
        saved = other.memory.save(0)
    with tiny_context(tiny("llama"), n_seq_max=2) as context:
        decode(context, TEXT, 0)
        with pytest.raises(PyllamaSpecError, match="does not fit this context"):
            context.memory.restore(1, saved)
        check_state(context, TEXT, 0)
        assert context.memory.positions(1) == (-1, -1)
        decode(context, TEXT[::-1], 0, 1)
        check_state(context, TEXT[::-1], 1)


@pytest.mark.parametrize("arch", EVERY)
def test_rows_behind_a_copy_are_those_behind_the_text(arch: str) -> None:
    """Rows after a copy equal those after the text: caches, positions and states are copied."""
    tokens = prompt_tokens(60, seed=3)
    for n_copied in (14, 33):
        rows = []
        for source in (0, 1):
            with tiny_context(tiny(arch), n_ctx=256, n_seq_max=2) as context:
                decode(context, tokens[:n_copied], 0, source)
                if source:
                    context.memory.copy_in(0, context.memory.copy_out(source))
                at = range(n_copied, len(tokens))
                rows.append([decode(context, [tokens[i]], i) for i in at])
        np.testing.assert_array_equal(rows[1], rows[0], err_msg=f"{n_copied} tokens")
