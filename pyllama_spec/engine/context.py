"""A context: the working memory of a model, and what its last decode gave."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.binding import check, ffi, lib
from pyllama_spec.engine.checks import instance, int32, real
from pyllama_spec.engine.closeable import Closeable
from pyllama_spec.engine.handle import Handle
from pyllama_spec.engine.memory import Memory
from pyllama_spec.engine.model import Model
from pyllama_spec.engine.resources import default_n_threads
from pyllama_spec.errors import ArgumentError, ClosedError, ContextFullError

# What a KV cache can be made of, by the engine's names.
_KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
_ROPE_SCALING = {None: -1, "none": 0, "linear": 1, "yarn": 2, "longrope": 3}

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ContextParams:
    """How a context is opened.

    Attributes:
        n_ctx: positions per context, shared by its sequences; None for the model's own length.
        n_batch: the most tokens that one decode takes.
        n_ubatch: the most tokens that the engine computes at once.
        n_seq_max: how many sequences it can hold.
        n_rs_seq: snapshots of a recurrent state per sequence: how far it can be rolled back.
        n_outputs_max: the most tokens of a batch with logits; 0 for n_batch.
        n_threads: CPU threads; None for the machine's physical cores.
        flash_attn: None for off on the CPU, and for the engine's choice on a GPU. On the CPU the
            engine's flash attention rounds a row differently by how many rows a batch has (64 and
            more are computed in tiles) and, from 512 positions on, by whether it has one row or
            several: text would depend on a draft. Without it rows are bit-equal at every width.
        type_k, type_v: the KV cache's types.
        rope_freq_base, rope_freq_scale: 0 for the model's own.
        rope_scaling: None for the model's own.
        offload_kqv: keep the KV cache on the GPU with its layers.
        op_offload: let the GPU compute wide batches (prompts) of layers that lie in the host's
            memory too. Off: rows of a prompt and rows of a draft would be rounded differently.
        swa_full: keep all positions of sliding-window layers, so that any prefix can be reused.
        kv_unified: one KV buffer for all sequences, needed where tokens belong to several.
        embeddings: keep the output embeddings too.
        is_window: positions may run past n_ctx; who decodes forgets old ones in time.
        target_layers: layer inputs that every decode keeps, see Context.layer_input().

    """

    n_ctx: int | None = 512
    n_batch: int = 2048
    n_ubatch: int = 512
    n_seq_max: int = 1
    n_rs_seq: int = 0
    n_outputs_max: int = 0
    n_threads: int | None = None
    flash_attn: bool | None = None
    type_k: str = "f16"
    type_v: str = "f16"
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    rope_scaling: str | None = None
    offload_kqv: bool = True
    op_offload: bool = False
    swa_full: bool = True
    kv_unified: bool = False
    embeddings: bool = False
    is_window: bool = False
    target_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        counts = ("n_batch", "n_ubatch", "n_seq_max")
        optional = ("n_ctx", "n_threads")
        for name in (*counts, *optional, "n_rs_seq", "n_outputs_max"):
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            low = 0 if name in ("n_rs_seq", "n_outputs_max") else 1
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**31:
                raise ArgumentError(f"{name}={value!r}: expected an int from {low} to 2147483647")
        for name in ("type_k", "type_v"):
            if getattr(self, name) not in _KV_TYPES:
                raise ArgumentError(
                    f"{name}={getattr(self, name)!r} is none of {', '.join(_KV_TYPES)}"
                )
        if self.rope_scaling not in _ROPE_SCALING:
            raise ArgumentError(
                f"rope_scaling={self.rope_scaling!r} is none of none, linear, yarn, longrope"
            )
        for name in ("rope_freq_base", "rope_freq_scale"):
            real(getattr(self, name), name, 0.0)
        flags = ("offload_kqv", "op_offload", "swa_full", "kv_unified", "embeddings", "is_window")
        for name in (*flags, "flash_attn"):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (name == "flash_attn" and value is None):
                raise ArgumentError(f"{name}={value!r} is not True or False")
        if not isinstance(self.target_layers, (tuple, list)):
            raise ArgumentError(f"target_layers={self.target_layers!r} is not a tuple of ints")


class _View:
    """Keeps a context's buffers alive for as long as an array points into them."""

    __slots__ = ("__array_interface__", "_handle")

    def __init__(self, handle: Any, address: int, shape: tuple[int, ...]) -> None:
        self._handle = handle
        self.__array_interface__ = {
            "data": (address, True), "shape": shape, "typestr": "<f4", "version": 3,
        }  # fmt: skip
        lib.llama_spec_add_views(handle, 1)

    def __del__(self) -> None:
        lib.llama_spec_add_views(self._handle, -1)


class Context(Closeable):
    """Decodes batches of one model and holds what they leave behind.

    One thread at a time: a second one gets BusyError. It keeps its model's weights and its
    target's context alive, so that they can be closed in any order.

    Args:
        model: the model.
        params: how to open it; keywords override single fields.
        target: of a draft: the target's context, whose results and threads it shares.

    Raises:
        ArgumentError: a parameter is out of range or does not go with the model.
        UnsupportedError: the architecture does not expose one of target_layers.
        OutOfMemoryError: there is not enough memory for it.

    """

    def __init__(
        self,
        model: Model,
        params: ContextParams | None = None,
        *,
        target: Context | None = None,
        **overrides: Any,
    ) -> None:
        instance(model, Model, "model", "; load one with Model(path)")
        instance(params, (ContextParams, type(None)), "params")
        instance(target, (Context, type(None)), "target", "; give the context of the target")
        try:
            params = replace(params or ContextParams(), **overrides)
        except TypeError as error:
            raise ArgumentError(f"unknown context parameter: {error}") from None
        self.model = model
        self.params = params
        self.target_layers = tuple(params.target_layers)
        self.n_ctx = params.n_ctx or model.info.n_ctx_train
        if self.target_layers:
            model.check_layer_inputs(self.target_layers)
        raw, layers = self._raw_params(params)
        out = ffi.new("llama_spec_context **")
        code = lib.llama_spec_context_new(
            model.handle, raw, target.handle if target else ffi.NULL, out
        )
        del layers  # copied by the engine
        check(code, f"cannot open a context of {self.n_ctx} tokens for {model.path.name}")
        self._handle = Handle(
            out[0], lib.llama_spec_context_free, "the context is closed; open another"
        )
        # Which positions of which sequences it holds.
        self.memory = Memory(self._handle)
        info = ffi.new("struct llama_spec_context_info *")
        check(lib.llama_spec_context_get_info(self.handle, info), "cannot read the context")
        self.n_batch: int = info.n_batch
        self.n_ubatch: int = info.n_ubatch
        self.n_rs_seq: int = info.n_rs_seq
        self.n_threads: int = info.n_threads
        self.n_seq_max: int = info.n_seq_max
        # Of the memory of past tokens, wherever it lies.
        self.memory_bytes: int = info.memory_bytes
        # The engine rounds n_ctx up; the caller's number is the one that counts.
        self.n_ctx_seq = self.n_ctx if params.kv_unified else self.n_ctx // params.n_seq_max
        self._row = ffi.new("float **")
        self._n_rows = ffi.new("int32_t *")
        # Of each layer that was read: where its rows lay, and the view of them. Making one takes
        # longer than copying the row of a plain round, and the next batch leaves its own there too.
        self._layer_views: dict[int, tuple[int, Rows]] = {}
        self._n_last = 0
        self._n_draft_row: int = info.n_draft_row
        n = info.n_candidates
        self._candidates = ffi.new("int32_t[]", n), ffi.new("float[]", n), ffi.new("int32_t *")

    def _raw_params(self, params: ContextParams) -> tuple[Any, Any]:
        raw = ffi.new("struct llama_spec_context_params *")
        lib.llama_spec_context_default_params(raw)
        n_threads = params.n_threads or default_n_threads()
        raw.n_ctx, raw.n_batch, raw.n_ubatch = self.n_ctx, params.n_batch, params.n_ubatch
        raw.n_seq_max, raw.n_rs_seq = params.n_seq_max, params.n_rs_seq
        raw.n_outputs_max = params.n_outputs_max
        raw.n_threads = raw.n_threads_batch = n_threads
        raw.flash_attn = _flash_attn(self.model, params)
        raw.type_k, raw.type_v = (_type_id(name) for name in (params.type_k, params.type_v))
        raw.rope_scaling_type = _ROPE_SCALING[params.rope_scaling]
        raw.rope_freq_base, raw.rope_freq_scale = params.rope_freq_base, params.rope_freq_scale
        raw.offload_kqv, raw.op_offload = params.offload_kqv, params.op_offload
        raw.swa_full = params.swa_full
        raw.kv_unified, raw.embeddings = params.kv_unified, params.embeddings
        layers = ffi.new("int32_t[]", list(self.target_layers) or [0])
        raw.layers, raw.n_layers = layers, len(self.target_layers)
        return raw, layers

    @property
    def handle(self) -> Any:
        """The C handle, for the other rooms of engine/.

        Raises:
            ClosedError: the context was closed.

        """
        return self._handle.pointer

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._handle.is_closed

    @property
    def is_forked(self) -> bool:
        """Whether it belongs to the process that this one was forked from: no call will do."""
        return self._handle.is_forked

    def check_process(self) -> None:
        """Before waiting for anything that only a thread of the other process could bring about.

        Raises:
            ForkedError: this process was forked from the one that opened the context.

        """
        if self.is_forked:
            check(lib.llama_spec_synchronize(self.handle), "cannot compute")

    def decode(self, batch: Batch, *, encode: bool = False) -> None:
        """Computes a batch and waits for it. The GIL is released meanwhile.

        Rows of an earlier decode are overwritten: read or copy them before.

        Args:
            batch: the tokens.
            encode: run the encoder of a model that has one.

        Raises:
            ArgumentError: an id, a position or a sequence is out of range, or the batch too long.
            ContextFullError: there is no room; the memory is as it was.
            CancelledError: cancel() was called; the memory holds a part of the batch.
            ForkedError: this process was forked from the one that opened the context.
            EngineError: the engine failed; the context has to be opened again.

        """
        instance(batch, Batch, "batch")
        if batch.max_pos >= self.n_ctx_seq and not self.params.is_window:
            raise ContextFullError(
                f"position {batch.max_pos} does not fit a context of {self.n_ctx_seq} tokens; "
                "shorten the text or open the context with a larger n_ctx"
            )
        handle = self.handle
        if batch.n_tokens != self._n_last:
            self._layer_views.clear()  # the buffer may be too small for this one
            self._n_last = batch.n_tokens
        check(lib.llama_spec_decode(handle, batch.as_struct(), encode), "cannot decode")
        check(lib.llama_spec_synchronize(handle), "cannot decode")

    def logits(self, i: int) -> Rows:
        """The logits of token i of the last batch.

        Returns:
            [n_vocab] float32, read-only, a view into the engine's memory: the next decode
            overwrites it. It may be kept past close() without harm.

        Raises:
            ArgumentError: no logits were asked for there.

        """
        code = lib.llama_spec_logits(self.handle, int32(i, "row"), self._row)
        check(code, f"cannot read the logits of row {i}")
        return self._view((self.model.info.n_vocab,))

    def embeddings(self, i: int) -> Rows:
        """The output embedding of token i of the last batch: [n_embd_out] float32, as logits()."""
        code = lib.llama_spec_embeddings(self.handle, int32(i, "row"), self._row)
        check(code, f"cannot read the embeddings of row {i}")
        return self._view((self.model.info.n_embd_out,))

    def draft_candidates(
        self, i: int, given: int = -1
    ) -> tuple[tuple[int, ...], tuple[float, ...], Rows]:
        """What a draft proposes for token i of the last batch, likeliest first.

        Args:
            i: which token of the batch.
            given: what was chosen for the token before, where there is one; some kinds look back.

        Returns:
            The tokens, as ids of the target; their probabilities in the draft's own distribution;
            and a row, float32, a view as logits(): of EAGLE-3 the hidden row to feed with whichever
            token is chosen, of DFlash how sure the confidence head is, if it has one.

        Raises:
            ArgumentError: no output was asked for there.
            UnsupportedError: this context is not of a draft.

        """
        ids, probabilities, n = self._candidates
        code = lib.llama_spec_draft_candidates(
            self.handle, int32(i, "row"), given, len(ids), ids, probabilities, n, self._row
        )
        check(code, f"cannot read the candidates of row {i}")
        row = self._view((self._n_draft_row,))
        return tuple(ffi.unpack(ids, n[0])), tuple(ffi.unpack(probabilities, n[0])), row

    def layer_input(self, layer: int) -> Rows:
        """The inputs of a layer for every token of the last batch, in the batch's order.

        Args:
            layer: one of target_layers.

        Returns:
            [n_rows, n_embd] float32, read-only, a view with the lifetime of logits().

        Raises:
            ArgumentError: the context was not opened with this layer.

        """
        index = int32(layer, "layer")
        code = lib.llama_get_output_layer_inp(self.handle, index, self._row, self._n_rows)
        check(code, f"cannot read the input of layer {layer}")
        n_rows, n_embd = self._n_rows[0], self.model.info.n_embd
        if n_rows == 0:
            return np.zeros((0, n_embd), dtype=np.float32)
        address = int(ffi.cast("uintptr_t", self._row[0]))
        known = self._layer_views.get(index)
        if known is None or known[0] != address or len(known[1]) != n_rows:
            if known is not None:
                # All of them: a buffer that was replaced is freed once no view is left.
                self._layer_views.clear()
            known = self._layer_views[index] = address, self._view((n_rows, n_embd))
        return known[1]

    def _view(self, shape: tuple[int, ...]) -> Rows:
        address = int(ffi.cast("uintptr_t", self._row[0]))
        return np.asarray(_View(self.handle, address, shape))

    def cancel(self, value: bool = True) -> None:
        """Ends a decode that runs in another thread; with False, later decodes run again."""
        lib.llama_spec_cancel(self.handle, value)

    def pause_threads(self) -> None:
        """Sends the worker threads to sleep until the next decode; done at the end of every text.

        Left alone they wait for work without sleeping for a while, some 0.1 s, in which another
        context of the process, or whatever the program does next, has fewer processors.
        """
        # Refused where another thread decodes, or after a failure: nothing to do then.
        with contextlib.suppress(ClosedError):
            lib.llama_spec_rest(self.handle)

    def close(self) -> None:
        """Frees the context, once no array points into it. May be called twice, in any order."""
        self._layer_views.clear()
        self._handle.close()


def _type_id(name: str) -> int:
    """The engine's number for a type."""
    found: int = lib.llama_spec_type_id(name.encode())
    check(min(found, 0), f"cannot use the type {name}")
    return found


def _flash_attn(model: Model, params: ContextParams) -> int:
    """The engine's number: -1 its choice, 0 off, 1 on. See ContextParams.flash_attn."""
    if params.flash_attn is not None:
        return int(params.flash_attn)
    needs_it = params.type_v not in ("f32", "f16", "bf16")  # a quantised V cache exists only with
    return -1 if model.is_on_gpu or needs_it else 0
