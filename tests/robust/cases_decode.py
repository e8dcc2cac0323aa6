"""Contexts, batches and memories used wrongly."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec.drafters import NoDrafter
from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.errors import (
    ArgumentError,
    BusyError,
    ClosedError,
    ContextFullError,
    ContextOpenError,
    OutOfMemoryError,
    PyllamaSpecError,
    UnsupportedError,
)
from pyllama_spec.speculative import SequenceState, SpeculativeLoop

from .harness import CaseList
from .tools import N_VOCAB, PROMPT, batch_of, decoded, opened, opened_file, tiny

CASES = CaseList()

Call = Callable[[Path], object]


def _open(arch: str = "llama", **params: Any) -> Call:
    return lambda _: opened(arch, **params)


CASES.table(
    "open",
    {
        "n_ctx_0": (_open(n_ctx=0), ArgumentError, "n_ctx=0"),
        "n_ctx_negative": (_open(n_ctx=-1), ArgumentError, "n_ctx=-1"),
        "n_ctx_text": (_open(n_ctx="64"), ArgumentError, "n_ctx='64'"),
        "n_ctx_float": (_open(n_ctx=64.0), ArgumentError, "n_ctx=64.0"),
        "n_ctx_billion": (_open(n_ctx=10**9), OutOfMemoryError, "n_ctx = 1000000000"),
        "n_ctx_2_31": (_open(n_ctx=2**31), ArgumentError, "n_ctx=2147483648"),
        "n_ctx_billion_recurrent": (
            _open("mamba", n_ctx=10**9, n_seq_max=256), ArgumentError, "n_seq_max = 256",
        ),
        "n_batch_0": (_open(n_batch=0), ArgumentError, "n_batch=0"),
        "n_batch_huge": (
            _open(n_ctx=2**20, n_batch=2**31 - 1, n_ubatch=2**30), OutOfMemoryError, "1048576",
        ),
        "n_ubatch_0": (_open(n_ubatch=0), ArgumentError, "n_ubatch=0"),
        "n_threads_0": (_open(n_threads=0), ArgumentError, "n_threads=0"),
        "n_seq_max_0": (_open(n_seq_max=0), ArgumentError, "n_seq_max=0"),
        "n_seq_max_many": (_open(n_seq_max=10**6), ArgumentError, "n_seq_max"),
        "n_seq_max_above_n_ctx": (_open(n_ctx=8, n_seq_max=9), ArgumentError, "n_seq_max"),
        "snapshots_huge": (
            _open("qwen35", n_rs_seq=10**8), OutOfMemoryError, "n_rs_seq = 100000000",
        ),
        "snapshots_above_ubatch": (_open("qwen35", n_rs_seq=64), ArgumentError, "n_ubatch"),
        "kv_type": (_open(type_k="q9_0"), ArgumentError, "'q9_0'"),
        "kv_type_none": (_open(type_v=None), ArgumentError, "type_v=None"),
        "kv_type_too_wide": (
            _open(type_k="q8_0", flash_attn=True), ArgumentError, "blocks of 32",
        ),
        "kv_type_too_wide_plain": (
            _open(type_k="q8_0", flash_attn=False), ArgumentError, "heads of",
        ),
        "quantised_v": (_open(type_v="q8_0", flash_attn=False), ArgumentError, "flash_attn"),
        "v_type_too_wide": (_open(type_v="q8_0"), ContextOpenError, "does not divide"),
        "flash_attn_text": (_open(flash_attn="on"), ArgumentError, "flash_attn='on'"),
        "rope_base_text": (_open(rope_freq_base="x"), ArgumentError, "rope_freq_base='x'"),
        "rope_base_nan": (_open(rope_freq_base=float("nan")), ArgumentError, "rope_freq_base=nan"),
        "rope_scale_negative": (_open(rope_freq_scale=-1.0), ArgumentError, "rope_freq_scale=-1.0"),
        "rope_scaling": (_open(rope_scaling="cubic"), ArgumentError, "'cubic'"),
        "unknown_keyword": (_open(n_contex=5), ArgumentError, "n_contex"),
        "layer_negative": (_open(target_layers=(-1,)), ArgumentError, "-1"),
        "layer_past_the_last": (_open(target_layers=(3,)), ArgumentError, "0 .. 2"),
        "layer_huge": (_open(target_layers=(2**40,)), ArgumentError, str(2**40)),
        "layer_text": (_open(target_layers=("last",)), ArgumentError, "'last'"),
        "layers_int": (_open(target_layers=1), ArgumentError, "target_layers=1"),
        "layers_of_encoder": (_open("bert", target_layers=(1,)), UnsupportedError, "'bert'"),
        "model_none": (lambda _: Context(None), ArgumentError, "NoneType"),  # type: ignore[arg-type]
        "model_path": (lambda _: Context(str(tiny())), ArgumentError, "str"),  # type: ignore[arg-type]
        "params_int": (lambda _: Context(Model(tiny()), 5), ArgumentError, "int"),  # type: ignore[arg-type]
        "target_is_a_model": (
            lambda _: Context(Model(tiny()), target=Model(tiny())),  # type: ignore[arg-type]
            ArgumentError, "Model",
        ),
        "vocab_only": (
            lambda _: Context(Model(tiny(), vocab_only=True)), PyllamaSpecError, "vocab_only",
        ),
    },
)  # fmt: skip


def _decode(*ids: Any, pos: int = 0, seq: int = 0, **params: Any) -> Call:
    return lambda _: opened(**params).decode(batch_of(ids, pos, seq))


def _extend(ids: Any, pos: Any = 0, seq: Any = 0) -> Call:
    return lambda _: Batch(64).extend(ids, pos, seq)


def _after(*ids: int, pos: int, arch: str = "llama", **params: Any) -> Call:
    """Decodes once more after PROMPT."""
    return lambda _: decoded(arch, **params).decode(batch_of(ids, pos))


CASES.table(
    "batch",
    {
        "id_negative": (_decode(-1), ArgumentError, "id -1"),
        "id_past_the_last": (_decode(5, N_VOCAB), ArgumentError, f"id {N_VOCAB} of token 1"),
        "id_2_31": (_decode(2**31), ArgumentError, "2147483648"),
        "id_2_64": (_decode(2**64), ArgumentError, str(2**64)),
        "id_float": (_decode(1.5), ArgumentError, "1.5"),
        "id_text": (_decode("a"), ArgumentError, "'a'"),
        "id_list": (_decode([1]), ArgumentError, "[1]"),
        "id_none": (_decode(None), ArgumentError, "id or a row"),
        "position_negative": (_decode(5, pos=-1), ArgumentError, "-1"),
        "position_2_31": (_decode(5, pos=2**31), ArgumentError, "2147483648"),
        "position_past_n_ctx": (_decode(5, pos=64), ContextFullError, "n_ctx"),
        "position_gap": (_after(1, pos=9), ArgumentError, "position"),
        "position_taken": (_after(1, pos=2), ArgumentError, "position"),
        "position_taken_recurrent": (_after(1, pos=2, arch="mamba"), ArgumentError, "position"),
        "sequence_negative": (_decode(5, seq=-1), ArgumentError, "sequence -1"),
        "sequence_past_the_last": (_decode(5, seq=1), ArgumentError, "sequence 1"),
        "sequence_2_31": (_decode(5, seq=2**31), ArgumentError, "2147483648"),
        "too_long": (_decode(*[5] * 40), ArgumentError, "n_batch = 32"),
        "empty": (_decode(), ArgumentError, "empty"),
        "none": (lambda _: opened().decode(None), ArgumentError, "NoneType"),  # type: ignore[arg-type]
        "list": (lambda _: opened().decode([1, 2]), ArgumentError, "list"),  # type: ignore[arg-type]
        "size_0": (lambda _: Batch(0), ArgumentError, "n_max=0"),
        "size_text": (lambda _: Batch("9"), ArgumentError, "'9'"),  # type: ignore[arg-type]
        "size_huge": (lambda _: Batch(2**60), PyllamaSpecError, str(2**60)),
        "row_size_negative": (lambda _: Batch(1, n_row=-4), ArgumentError, "n_row=-4"),
        "extend_text": (_extend("abc"), ArgumentError, "token id='a'"),
        "extend_none": (_extend(None), ArgumentError, "None"),
        "extend_position_none": (_extend([1], None), ArgumentError, "None"),
        "extend_position_huge": (_extend([1, 2], 2**31 - 1), ArgumentError, "int32"),
        "extend_too_many": (_extend([1] * 65), ArgumentError, "64"),
        "row_without_room": (
            lambda _: Batch(1).add(None, 0, row=np.zeros(64, np.float32)), ArgumentError, "n_row",
        ),
        "row_of_other_width": (
            lambda _: Batch(1, n_row=64).add(None, 0, row=np.zeros(9, np.float32)),
            ArgumentError, "(9,)",
        ),
        "row_none": (lambda _: Batch(1, n_row=64).add(None, 0, row=[0.0]), ArgumentError, "list"),  # type: ignore[arg-type]
        "sequences_none": (lambda _: Batch(1).add(1, 0, ()), ArgumentError, "at least one"),
    },
)  # fmt: skip


@CASES.add(ArgumentError, "9 numbers")
def rows_of_another_model(folder: Path) -> None:
    batch = Batch(4, n_row=9)
    batch.add(None, 0, row=np.zeros(9, np.float32), output=True)
    opened().decode(batch)


@CASES.add(ArgumentError, "ids")
def tokens_with_and_without_ids(folder: Path) -> None:
    batch = Batch(4, n_row=64)
    batch.add(None, 0, row=np.zeros(64, np.float32))
    batch.add(7, 1, output=True)
    opened().decode(batch)


@CASES.add(ContextFullError, "n_ctx")
def context_full(folder: Path) -> None:
    context = opened(n_ctx=64)
    for pos in range(65):
        context.decode(batch_of([7], pos))


@CASES.add(ContextFullError)
def context_full_of_sequences(folder: Path) -> None:
    context = opened(n_ctx=512, n_seq_max=4, kv_unified=True)
    for seq in range(4):
        for pos in range(0, 480, 32):
            context.decode(batch_of([7] * 32, pos, seq))


@CASES.add(None)
def sequence_named_twice(folder: Path) -> None:
    batch = Batch(4)
    batch.add(7, 0, (0, 0), output=True)
    opened(n_seq_max=2, kv_unified=True).decode(batch)


@CASES.add(ArgumentError, "kv_unified")
def shared_token_without_shared_memory(folder: Path) -> None:
    batch = Batch(4)
    batch.add(7, 0, (0, 1), output=True)
    opened(n_seq_max=2).decode(batch)


CASES.table(
    "read",
    {
        "before_decode": (lambda _: opened().logits(0), ArgumentError, "row 0"),
        "row_negative": (lambda _: decoded().logits(-1), ArgumentError, "-1"),
        "row_past_the_last": (lambda _: decoded().logits(5), ArgumentError, "5 tokens"),
        "row_huge": (lambda _: decoded().logits(2**40), ArgumentError, str(2**40)),
        "row_text": (lambda _: decoded().logits("0"), ArgumentError, "'0'"),  # type: ignore[arg-type]
        "embeddings_not_kept": (lambda _: decoded().embeddings(0), ArgumentError, "embeddings"),
        "layer_not_kept": (lambda _: decoded().layer_input(1), ArgumentError, "layer 1"),
        "layer_text": (
            lambda _: decoded(target_layers=(1,)).layer_input("1"), ArgumentError, "'1'",  # type: ignore[arg-type]
        ),
        "encoder_of_decoder": (
            lambda _: opened().decode(batch_of([1]), encode=True), UnsupportedError, "encoder",
        ),
    },
)  # fmt: skip


@CASES.add(ArgumentError, "row 0")
def logits_of_a_row_without_output(folder: Path) -> None:
    context = opened()
    batch = Batch(4)
    batch.extend([1, 2], 0, output_last=True)
    context.decode(batch)
    context.logits(0)


def _closed_model() -> Model:
    model = Model(tiny())
    model.close()
    model.close()
    return model


def _closed_context() -> Context:
    context = decoded()
    context.close()
    context.close()
    return context


CASES.table(
    "closed",
    {
        "model_opened": (lambda _: Context(_closed_model()), ClosedError, "load it again"),
        "model_tokenize": (lambda _: _closed_model().vocab.tokenize("a"), ClosedError, "is closed"),
        "model_metadata": (lambda _: _closed_model().metadata, ClosedError, "is closed"),
        "model_piece": (lambda _: _closed_model().vocab.piece(1), ClosedError, "is closed"),
        "context_decode": (
            lambda _: _closed_context().decode(batch_of([1])), ClosedError, "is closed",
        ),
        "context_logits": (lambda _: _closed_context().logits(0), ClosedError, "is closed"),
        "context_memory": (lambda _: _closed_context().memory.save(), ClosedError, "is closed"),
        "context_cancel": (lambda _: _closed_context().cancel(), ClosedError, "is closed"),
        "target": (
            lambda _: Context(Model(tiny()), target=_closed_context()), ClosedError, "is closed",
        ),
    },
)  # fmt: skip


@CASES.add(None)
def views_outlive_their_context(folder: Path) -> None:
    context = decoded(target_layers=(1,))
    rows = [context.logits(4), context.layer_input(1)]
    context.model.close()
    context.close()
    assert all(np.isfinite(row).all() for row in rows)


def _in_threads(act: Callable[[], object], n: int = 4) -> list[Exception]:
    """Several threads do the same thing at once."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - which it is, is looked at by the case
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@CASES.add(BusyError, "another thread")
def decode_from_two_threads(folder: Path) -> None:
    context = opened(n_ctx=512, n_batch=512, n_ubatch=512)
    batch = Batch(512)
    batch.extend([7] * 500, 0)

    def decode() -> None:
        for _ in range(20):
            context.memory.clear()
            context.decode(batch)

    errors = _in_threads(decode)
    raise next(e for e in errors if isinstance(e, BusyError))


@CASES.add(ClosedError, "is closed")
def closed_during_a_decode(folder: Path) -> None:
    context = opened(n_ctx=4096, n_batch=4096, n_ubatch=512)
    batch = Batch(4000)
    batch.extend([7] * 4000, 0)
    worker = threading.Thread(target=lambda: _quietly(lambda: context.decode(batch)))
    worker.start()
    context.close()
    context.model.close()
    worker.join()
    context.decode(batch)


def _quietly(act: Callable[[], object]) -> None:
    with contextlib.suppress(PyllamaSpecError):
        act()


def _loop(context: Context, n_draft: int | None = None) -> SpeculativeLoop:
    return SpeculativeLoop(context, NoDrafter(), n_draft)


def _prefill(prompt: Any, **params: Any) -> Call:
    return lambda _: _loop(opened(**params)).prefill(SequenceState(), prompt)


CASES.table(
    "loop",
    {
        "prompt_empty": (_prefill([]), ArgumentError, "no tokens"),
        "prompt_too_long": (_prefill([7] * 65), ContextFullError, "65 tokens"),
        "prompt_negative": (_prefill([1, -1]), ArgumentError, "id -1"),
        "prompt_past_the_last": (_prefill([N_VOCAB]), ArgumentError, str(N_VOCAB)),
        "sequence": (
            lambda _: _loop(opened()).prefill(SequenceState(seq_id=4), PROMPT),
            ArgumentError, "sequence 4",
        ),
        "n_draft_negative": (lambda _: _loop(opened(), -1), ArgumentError, "n_draft=-1"),
        "of_an_encoder": (
            lambda _: _loop(opened("bert")).prefill(SequenceState(), PROMPT),
            UnsupportedError, "memory",
        ),
        "closed_context": (
            lambda _: _loop(_closed_context()).prefill(SequenceState(), PROMPT),
            ClosedError, "is closed",
        ),
    },
)  # fmt: skip


@CASES.add(None)
def encoder_encodes(folder: Path) -> None:
    opened_file(tiny("bert"), embeddings=True).decode(batch_of([1, 2, 3]), encode=True)
