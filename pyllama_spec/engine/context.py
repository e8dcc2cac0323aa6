"""A context: the working memory of a model, and the output of its last decode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine.adapter import Adapter
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.binding import Handle, Owner, check, ffi, keep_error, last_error, lib
from pyllama_spec.engine.checks import instance, int32, real
from pyllama_spec.engine.context_params import POOLING, UNPACKED, ContextParams
from pyllama_spec.engine.framing import HEADER_BYTES, seal, unseal
from pyllama_spec.engine.media_ids import MediaRun, media_runs
from pyllama_spec.engine.model import Model
from pyllama_spec.engine.system import devices, system_info
from pyllama_spec.errors import (
    ArgumentError,
    ClosedError,
    ContextFullError,
    ContextOpenError,
    EngineError,
    OutOfMemoryError,
    PyllamaSpecError,
    RemoteError,
)

# The engine checks the number only in files that it writes itself.
_MAGIC, _VERSION = b"PLSS", lib.llama_spec_state_version()


class Memory:
    """Cuts, copies, saves and restores sequences. Positions are [first, last], ranges [p0, p1).

    They count tokens, and of an image its rows. Some models give all rows of an image few places:
    note_media() says where, and position_of() what the engine calls the place of a token.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle  # of a context
        # By sequence: the images whose rows share positions; see note_media().
        self.media: dict[int, list[MediaRun]] = {}

    def note_media(self, seq: int, tokens: Sequence[int]) -> None:
        """Notes where a sequence's tokens are rows that share positions."""
        self.media.pop(seq, None)
        if tokens and min(tokens) < 0:
            runs = [run for run in media_runs(tokens) if run.n_rows != run.n_positions]
            if runs:
                self.media[seq] = runs

    def position_of(self, seq: int, n: int) -> int:
        """The engine's position of token n of a sequence; -1 for a row inside an image."""
        for run in reversed(self.media.get(seq, ())):
            if run.start < n < run.start + run.n_rows:
                return -1
            if n >= run.start + run.n_rows:
                return self.position_of(seq, run.start) + run.n_positions + n - run.end
        return n

    def _token_at(self, seq: int, position: int) -> int:
        """The last token at a position of the engine's."""
        for run in reversed(self.media.get(seq, ())):
            first = self.position_of(seq, run.start)
            if position >= first + run.n_positions:
                return position - first - run.n_positions + run.end
            if position >= first:
                return run.end - 1
        return position

    def positions(self, seq: int = 0) -> tuple[int, int]:
        """The first and last position of the sequence; (-1, -1) if it is empty."""
        first, last = ffi.new("int32_t *"), ffi.new("int32_t *")
        check(
            lib.llama_spec_seq_positions(self._handle.pointer, _seq(seq), first, last),
            f"cannot read the positions of sequence {seq}",
        )
        return first[0], self._token_at(seq, last[0])

    def remove(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        """Removes positions p0 .. p1 - 1; p1 = -1 means the end.

        Raises:
            UnsupportedError: a recurrent state cannot remove only this part.
        """
        check(
            lib.llama_spec_seq_rm(
                self._handle.pointer,
                _seq(seq),
                self.position_of(seq, _pos(p0)),
                self.position_of(seq, _pos(p1)),
            ),
            f"cannot remove from sequence {seq}",
        )
        if p0 == 0 and p1 < 0:
            self.media.pop(seq, None)

    def rollback(self, seq: int, n_keep: int) -> bool:
        """Keeps the first n_keep positions of a sequence; False if the engine cannot go back there.

        A recurrent state can only go back within the last batch of its sequence, to after its first
        token or any later one, and by at most n_rs_seq tokens in all since that batch. After False
        the sequence is unchanged, and the caller may clear it and decode again.

        Raises:
            ArgumentError: n_keep is negative.
        """
        if _pos(n_keep) < 0:
            raise ArgumentError("n_keep", n_keep, "0 or more")
        position = self.position_of(seq, n_keep)
        if position < 0:
            return False
        code: int = lib.llama_spec_seq_rm(self._handle.pointer, _seq(seq), position, -1)
        if code == lib.LLAMA_SPEC_UNSUPPORTED:
            return False
        check(code, f"cannot roll sequence {seq} back to {n_keep} tokens")
        self._keep_media(seq, n_keep)
        return True

    def _keep_media(self, seq: int, n_keep: int) -> None:
        if seq in self.media:
            self.media[seq] = [run for run in self.media[seq] if run.start < n_keep]

    def copy(self, source: int, target: int) -> None:
        """Makes the sequence `target` share all positions of `source`."""
        code = lib.llama_spec_seq_cp(self._handle.pointer, _seq(source), _seq(target))
        check(code, f"cannot copy sequence {source} to {target}")
        self.media.pop(target, None)
        if source in self.media:
            self.media[target] = self.media[source].copy()

    def clear(self) -> None:
        """Removes everything."""
        check(lib.llama_spec_memory_clear(self._handle.pointer), "cannot clear the memory")
        self.media.clear()

    @property
    def n_host_copies(self) -> int:
        """The number of copies of sequence states to or from the host's memory."""
        return int(_info_of(self._handle).n_host_copies)

    def save(self, seq: int = 0) -> bytes:
        """The state of a sequence, for restore() in a context of the same model and settings."""
        data = self._get(seq, HEADER_BYTES)
        return seal(data, _MAGIC, _VERSION)

    def restore(self, seq: int, data: bytes) -> None:
        """Restores a state of save(); replaces the sequence's content.

        Raises:
            ArgumentError: the bytes are damaged, or from a context with other settings.
        """
        instance(data, (bytes, bytearray, memoryview), "the saved state")
        payload = unseal(data, _MAGIC, _VERSION, "a sequence that Memory.save() wrote")
        self._set(seq, payload, partial=False)

    def copy_out(self, seq: int) -> memoryview:
        """The state of a sequence for copy_in() of this context: save() without its checks."""
        return self._get(seq, 0)

    def copy_in(self, seq: int, data: memoryview) -> None:
        """Restores a state of copy_out(), of this or another sequence; replaces the old content.

        Raises:
            ArgumentError: the memory has no space for it; the sequence is then empty.
        """
        self._set(seq, data, partial=False)

    def checkpoint(self, seq: int, back: int = 0) -> memoryview:
        """Saves the part of a sequence's state that has no positions, such as a recurrent one.

        Args:
            seq: the sequence.
            back: saves the state of this many tokens earlier, within the reach of rollback().

        Raises:
            UnsupportedError: the engine keeps no snapshot of that state.
        """
        return self._get(seq, 0, partial=True, back=back)

    def return_to(self, seq: int, checkpoint: memoryview, n_keep: int) -> None:
        """Rolls a sequence back to n_keep positions, where checkpoint() was taken.

        The sequence must still hold them, except for the state itself.
        """
        self._set(seq, checkpoint, partial=True)
        self.remove(seq, n_keep)
        self._keep_media(seq, n_keep)

    def _get(self, seq: int, n_header: int, *, partial: bool = False, back: int = 0) -> memoryview:
        size, written = ffi.new("size_t *"), ffi.new("size_t *")
        handle, doing = self._handle.pointer, f"cannot save sequence {seq}"
        check(lib.llama_spec_state_size(handle, _seq(seq), partial, size), doing)
        data = bytearray(n_header + size[0])
        body = ffi.from_buffer("uint8_t[]", data, require_writable=True) + n_header
        code = lib.llama_spec_state_get(handle, seq, partial, back, body, size[0], written)
        check(code, doing)
        return memoryview(data)[: n_header + written[0]]

    def _set(self, seq: int, body: memoryview, *, partial: bool) -> None:
        if not partial:
            self.media.pop(seq, None)
        raw = ffi.from_buffer("uint8_t[]", body)
        code = lib.llama_spec_state_set(self._handle.pointer, _seq(seq), partial, raw, len(body))
        check(code, f"cannot restore sequence {seq}")


def _info_of(handle: Handle) -> Any:
    info = ffi.new("struct llama_spec_context_info *")
    check(lib.llama_spec_context_get_info(handle.pointer, info), "cannot read the context")
    return info


def _seq(value: int) -> int:
    return int32(value, "sequence")


def _pos(value: int) -> int:
    return int32(value, "position")


Rows = npt.NDArray[np.float32]
FEW_ROWS = 32  # FEW_ROWS of csrc/kernels/blocks.h
# Parts of a CPU build that take products for themselves: Intel's matrix unit, Arm's library. Our
# builds leave SVE and SME out, and our tests have not run the engine's kernels for them.
_OTHERS = ("AMX_INT8 = 1", "KLEIDIAI = 1", "SVE = 1", "SME = 1")
# Fields of ContextParams that change what is computed. Sizes and memory layout do not.
_SETTINGS = (
    "type_k", "type_v", "rope_scaling", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor",
    "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx", "attention_type",
)  # fmt: skip
# The engine rounds a context's length up to a multiple of this.
_CONTEXT_STEP = 256

Settings = tuple[tuple[str, str], ...]


class Likely(NamedTuple):
    """The likeliest token of a row, and its probability over the whole vocabulary."""

    id: int
    p: float


# Whether a draft continues: of which of them, with which of the draft's ids (-1 for none), and its
# probability.
GoesOn = Callable[[int, int, float], bool]


@ffi.def_extern(onerror=lambda *error: not keep_error(*error))  # type: ignore[untyped-decorator]
def pyllama_spec_on_next(user: Any, chain: int, token: int, p: float) -> bool:
    """Called by the engine after each decode of Context.draft_chains()."""
    goes_on: GoesOn = ffi.from_handle(user)
    return goes_on(chain, token, p)


class OutputMatrix(NamedTuple):
    """The output matrix of a draft, and the bytes of a row in its file, or in the target's."""

    name: str
    row_bytes: int
    is_targets: bool


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


class Context(Owner):
    """Decodes batches of one model, and holds its memory and the rows of the last batch.

    One thread at a time: a second one gets BusyError. It keeps its model's weights and its
    target's context alive, so that they can be closed in any order.

    Args:
        model: the model.
        params: the parameters; keywords override single fields.
        target: for a draft: the target's context, whose results and threads it shares.

    Attributes:
        has_failed: whether a failure of a decode, or the loss of a server, left it unusable.
        failure: the error that said so; None for none.

    Raises:
        ArgumentError: a parameter is out of range or does not fit the model.
        UnsupportedError: the architecture does not expose one of target_layers.
        OutOfMemoryError: memory is too small for the context.
    """

    def __init__(
        self,
        model: Model,
        params: ContextParams | None = None,
        *,
        target: Context | None = None,
        **overrides: Any,
    ) -> None:
        params = replace(params or ContextParams(), **overrides)
        self.model, self.params, self.has_failed = model, params, False
        self.failure: PyllamaSpecError | None = None
        self._adapters: tuple[tuple[Adapter, float], ...] = ()
        self._settings: Settings | None = None  # but for the adapters
        self.target_layers = tuple(params.target_layers)
        self.n_ctx = params.n_ctx or model.info.n_ctx_train
        if self.target_layers:
            model.check_layer_inputs(self.target_layers)
        self._handle = self._open(params, target)
        # Which positions of which sequences it holds.
        self.memory = Memory(self._handle)
        info = _info_of(self._handle)
        self.n_batch, self.n_ubatch = int(info.n_batch), int(info.n_ubatch)
        self.n_rs_seq: int = info.n_rs_seq
        self.n_threads: int = info.n_threads
        # The most tokens of a batch whose rows are, to the bit, those of single tokens.
        self.exact_rows = exact_rows(
            model, n_seq_max=params.n_seq_max, kv_unified=params.kv_unified
        )
        self.n_seq_max: int = info.n_seq_max
        # The pooling of embeddings; "none" where tokens keep their own.
        self.pooling = next((k for k, n in POOLING.items() if n == info.pooling_type), None)
        # Without one there is no text to continue: batches are encoded.
        self.has_memory: bool = info.has_memory
        # The bytes of the KV cache, on any device.
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
        # The width of a batch's rows, and whether rows of media have places in a grid.
        self.n_row, self.has_grid = int(info.n_row), bool(info.has_grid)
        n = info.n_candidates
        self._candidates = ffi.new("int32_t[]", n), ffi.new("float[]", n), ffi.new("int32_t *")
        self._likely = ffi.new("int32_t[1]"), ffi.new("float[1]"), ffi.new("int32_t *")

    def _open(self, params: ContextParams, target: Context | None) -> Handle:
        raw, layers = self._raw_params(params)
        out = ffi.new("llama_spec_context **")
        code = lib.llama_spec_context_new(
            self.model.handle, raw, target.handle if target else ffi.NULL, out
        )
        del layers  # copied by the engine
        name = self.model.path.name
        try:
            check(code, f"cannot open a context of {self.n_ctx} tokens for {name}")
        except EngineError as error:
            lib.llama_spec_context_free(out[0])
            raise ContextOpenError(str(error)) from None
        except BaseException:
            lib.llama_spec_context_free(out[0])  # it may exist, and Ctrl-C have come since
            raise
        return Handle(out[0], lib.llama_spec_context_free, "the context is closed; open another")

    def _raw_params(self, params: ContextParams) -> tuple[Any, Any]:
        raw = ffi.new("struct llama_spec_context_params *")
        params.fill(raw)
        raw.n_ctx = self.n_ctx
        raw.flash_attn = _flash_attn(self.model, params)
        layers = ffi.new("int32_t[]", list(self.target_layers) or [0])
        raw.layers, raw.n_layers = layers, len(self.target_layers)
        return raw, layers

    def __repr__(self) -> str:
        sizes = f"n_ctx={self.n_ctx_seq}"
        if self.n_seq_max > 1:
            sizes += f" for each of {self.n_seq_max} sequences"
        if self.n_rs_seq:
            sizes += f", n_rs_seq={self.n_rs_seq}"
        state = "closed" if self.is_closed else "open"
        return f"<Context of {self.model.path.name!r}: {sizes}, {self.n_threads} threads, {state}>"

    def find_failure(self) -> bool:
        """Updates has_failed after an error, and returns it. Not while another thread computes."""
        if not (self.has_failed or self.is_closed or self.is_forked):
            code = lib.llama_spec_synchronize(self.handle)
            if code in (lib.LLAMA_SPEC_POISONED, lib.LLAMA_SPEC_REMOTE):
                kind = RemoteError if code == lib.LLAMA_SPEC_REMOTE else EngineError
                self.failure, self.has_failed = kind(last_error()), True
        return self.has_failed

    def check_prompt(self, tokens: Sequence[int], *, has_media: bool = False) -> None:
        """Raises unless tokens are a prompt of a sequence: some, not too many, in the vocabulary.

        has_media: ids below 0 are rows of pictures.

        Raises:
            ContextFullError: they do not fit.
            ArgumentError: there is none, or an id is outside the vocabulary.
        """
        if not tokens:
            raise ArgumentError("prompt", problem="has no tokens", remedy="give at least one")
        texts = [token for token in tokens if token >= 0] if has_media else tokens
        self.model.vocab.check_ids(texts, "prompt")
        if len(tokens) > self.n_ctx_seq:
            raise ContextFullError.of_prompt(len(tokens), self.n_ctx_seq)

    def decode(self, batch: Batch, *, encode: bool = False) -> None:
        """Computes a batch and waits for it. Releases the GIL meanwhile.

        Rows of an earlier decode are overwritten: read or copy them before.

        Args:
            batch: the tokens.
            encode: runs the encoder of a model that has one.

        Raises:
            ArgumentError: an id, a position or a sequence is out of range, or the batch is too
                long.
            ContextFullError: the context is full; the memory is unchanged.
            CancelledError: cancel() was called; the memory holds a part of the batch.
            ForkedError: this process was forked from the one that opened the context.
            EngineError: the engine failed; open the context again.
        """
        if batch.max_pos >= self.n_ctx_seq and not self.params.is_window:
            raise ContextFullError(
                n_tokens=batch.max_pos + 1, n_ctx=self.n_ctx_seq, remedy="shorten the text",
                setup="open the context with a larger `n_ctx`",
            )  # fmt: skip
        handle = self._handle.pointer
        if batch.n_tokens != self._n_last:
            self._layer_views.clear()  # the buffer may be too small for this one
            self._n_last = batch.n_tokens
        try:
            check(lib.llama_spec_decode(handle, batch.as_struct(), encode), "cannot decode")
            check(lib.llama_spec_synchronize(handle), "cannot decode")
        except (EngineError, OutOfMemoryError, RemoteError):
            self.find_failure()
            raise

    def logits(self, i: int) -> Rows:
        """The logits of token i of the last batch.

        Returns:
            [n_vocab] float32, read-only, a view into the engine's memory. The next decode
            overwrites it; it stays valid after close().

        Raises:
            ArgumentError: the batch asked for no logits there.
        """
        code = lib.llama_spec_logits(self.handle, int32(i, "row"), self._row)
        check(code, f"cannot read the logits of row {i}")
        return self._view((self.model.info.n_vocab,))

    def embeddings(self, i: int) -> Rows:
        """The output embedding of token i of the last batch: [n_embd_out] float32, as logits()."""
        code = lib.llama_spec_embeddings(self.handle, int32(i, "row"), self._row)
        check(code, f"cannot read the embeddings of row {i}")
        return self._view((self.model.info.n_embd_out,))

    def embeddings_of(self, seq_id: int) -> Rows:
        """One row for a sequence of the last batch, if the context pools: as embeddings().

        With pooling "rank" it is [1], the score of a classifier; otherwise [n_embd_out].
        """
        code = lib.llama_spec_embeddings_seq(self.handle, int32(seq_id, "seq_id"), self._row)
        check(code, f"cannot read the embedding of sequence {seq_id}")
        return self._view((1 if self.pooling == "rank" else self.model.info.n_embd_out,))

    @property
    def adapters(self) -> tuple[tuple[Adapter, float], ...]:
        """The active LoRA adapters, each with its scale."""
        return self._adapters

    def settings(self, adapters: Sequence[tuple[Adapter, float]] | None = None) -> Settings:
        """The settings, beside the model, that the context's memory depends on."""
        if self._settings is None:
            self._settings = _settings_of(self.model, self.params, self.n_ctx_seq)
        key = adapters_key(self._adapters if adapters is None else adapters)
        return (*self._settings, ("adapters", repr(key)))

    def set_adapters(self, adapters: Sequence[tuple[Adapter, float]]) -> None:
        """Uses these LoRA adapters, each with its scale, from the next decode on.

        The memory was computed without them: clear it if that matters.

        Raises:
            ArgumentError: an adapter was loaded for another model, or a scale is not a number.
        """
        handles = [adapter.handle for adapter, _ in adapters]
        scales = ffi.new("float[]", [real(scale, "scale") for _, scale in adapters] or [0.0])
        raw = ffi.new("llama_spec_adapter *[]", handles or [ffi.NULL])
        code = lib.llama_spec_set_adapters(self.handle, raw, scales, len(handles))
        check(code, "cannot set the adapters")
        self._adapters = tuple(adapters)  # alive as long as they are in use

    def draft_candidates(
        self, i: int, previous: int = -1
    ) -> tuple[tuple[int, ...], tuple[float, ...], Rows]:
        """A draft's candidates for token i of the last batch, likeliest first.

        Args:
            i: the index of the token in the batch.
            previous: the id chosen for the previous token, -1 for none; some kinds read it.

        Returns:
            The tokens, as ids of the target; their probabilities in the draft's own distribution;
            and a float32 row, a view as in logits(). EAGLE-3 and MTP: the hidden row to feed with
            the chosen token. DFlash: the confidence head's value, if it has one.
        """
        ids, probabilities, n = self._candidates
        code = lib.llama_spec_draft_candidates(
            self.handle, int32(i, "row"), previous, len(ids), ids, probabilities, n, self._row
        )
        check(code, f"cannot read the candidates of row {i}")
        row = self._view((self._n_draft_row,))
        return tuple(ffi.unpack(ids, n[0])), tuple(ffi.unpack(probabilities, n[0])), row

    def draft_output(self, n_slots: int) -> OutputMatrix:
        """Limits the draft of this context to n_slots ids; 0 for all ids again.

        set_draft_rows() copies the rows of the output matrix for these ids into slots. Every slot
        needs a row before the next decode. Logits of other ids are minus infinity.

        Returns:
            The file with the matrix.
        """
        name, row_bytes, is_targets = ffi.new("char **"), ffi.new("uint64_t *"), ffi.new("bool *")
        n = int32(n_slots, "n_slots")
        code = lib.llama_spec_draft_output(self._handle.pointer, n, name, row_bytes, is_targets)
        check(code, f"cannot let the draft choose among {n} ids")
        return OutputMatrix(ffi.string(name[0]).decode(), int(row_bytes[0]), bool(is_targets[0]))

    def set_draft_rows(
        self, slots: npt.NDArray[np.int32], ids: npt.NDArray[np.int32], rows: npt.NDArray[np.uint8]
    ) -> None:
        """Sets rows of the output matrix in the slots of draft_output().

        Args:
            slots: [n] int32, the slots to set.
            ids: [n] int32, the new ids of these rows.
            rows: [n, row_bytes] uint8, contiguous, in the file's format.
        """
        slots, ids = np.ascontiguousarray(np.stack((slots, ids)), np.int32)
        code = lib.llama_spec_draft_output_set(
            self._handle.pointer, len(slots), ffi.from_buffer("int32_t[]", slots),
            ffi.from_buffer("int32_t[]", ids), ffi.from_buffer("uint8_t[]", rows), rows.nbytes,
        )  # fmt: skip
        check(code, "cannot set rows of the output matrix")

    def likeliest(self, i: int, counterparts: npt.NDArray[np.int32] | None = None) -> Likely | None:
        """The likeliest token at token i of the last batch.

        Args:
            i: the index of the token in the batch.
            counterparts: [n_vocab] int32, contiguous: ids with a negative entry are excluded.

        Returns:
            The id, and its probability in the whole vocabulary; NaN if a logit is NaN. None if all
            ids are excluded.
        """
        out, p, n = self._likely
        code = lib.llama_spec_likeliest(
            self.handle, int32(i, "row"), self._counterparts(counterparts), 1, out, p, n
        )
        check(code, f"cannot read the likeliest token of row {i}")
        return Likely(out[0], p[0]) if n[0] else None

    def draft_chains(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        seqs: Sequence[int],
        goes_on: GoesOn,
        counterparts: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """Extends all drafts by a token per decode, until none continues.

        The first decode takes these ids. After each one goes_on() gets, for each draft in it, the
        next token from likeliest(), or -1 and 0 if there is none; if it returns True, the draft
        continues with this token. The context is in use until the call returns.

        Args:
            ids: the newest token of each draft, as an id of this model.
            positions: the position of each of these tokens.
            seqs: the sequence of each draft.
            goes_on: called with the draft's index, the token and its probability.
            counterparts: see likeliest().
        """
        chains = ffi.new("struct llama_spec_chains *")
        rows = list(zip(ids, positions, seqs, strict=True))  # as many of each
        arrays = [ffi.new("int32_t[]", [row[k] for row in rows]) for k in range(3)]
        chains.n, chains.counterparts = len(ids), self._counterparts(counterparts)
        chains.ids, chains.pos, chains.seq = arrays
        self._layer_views.clear()
        self._n_last = 0
        handle, user = self._handle.pointer, ffi.new_handle(goes_on)
        code = lib.llama_spec_draft_chains(handle, chains, lib.pyllama_spec_on_next, user)
        check(code, "cannot extend the drafts")

    def _counterparts(self, ids: npt.NDArray[np.int32] | None) -> Any:
        if ids is None:
            return ffi.NULL
        if ids.size != self.model.info.n_vocab:
            raise ArgumentError("counterparts", ids, f"{self.model.info.n_vocab} ids")
        return ffi.from_buffer("int32_t[]", ids)

    def layer_input(self, layer: int) -> Rows:
        """The inputs of a layer for every token of the last batch, in the batch's order.

        Args:
            layer: one of target_layers.

        Returns:
            [n_rows, Model.row_width(layer)] float32, read-only, a view with the lifetime of that of
            logits().

        Raises:
            ArgumentError: the context was not opened with this layer.
        """
        index = int32(layer, "layer")
        code = lib.llama_get_output_layer_inp(self.handle, index, self._row, self._n_rows)
        check(code, f"cannot read the input of layer {layer}")
        n_rows, n_embd = self._n_rows[0], self.model.row_width(index)
        if n_rows == 0:
            return np.zeros((0, n_embd), dtype=np.float32)
        address = int(ffi.cast("uintptr_t", self._row[0]))
        view = self._layer_views.get(index)
        if view is None or view[0] != address or len(view[1]) != n_rows:
            if view is not None:
                # All of them: a buffer that was replaced is freed once no view is left.
                self._layer_views.clear()
            view = self._layer_views[index] = address, self._view((n_rows, n_embd))
        return view[1]

    def _view(self, shape: tuple[int, ...]) -> Rows:
        address = int(ffi.cast("uintptr_t", self._row[0]))
        return np.asarray(_View(self.handle, address, shape))

    @property
    def n_graphs_reused(self) -> int:
        """The number of physical batches that reused the graph of an earlier one."""
        return int(_info_of(self._handle).n_graphs_reused)

    def cancel(self, value: bool = True) -> None:
        """Cancels a decode of another thread; False lets later decodes run again."""
        lib.llama_spec_cancel(self.handle, value)

    def pause_threads(self) -> None:
        """Parks the worker threads until the next decode; called at the end of every text.

        Otherwise they spin for some milliseconds while they wait for work. Meanwhile, another
        context of the process, or the program itself, has fewer processors.
        """
        # Refused while another thread decodes, or after a failure: nothing to do then.
        with contextlib.suppress(ClosedError):
            lib.llama_spec_rest(self.handle)

    def close(self) -> None:
        """Frees the context once no array refers to it. May be called twice, in any order."""
        self._layer_views.clear()
        self._handle.close()


def _flash_attn(model: Model, params: ContextParams) -> int:
    """The engine's number for ContextParams.flash_attn: -1 automatic, 0 off, 1 on."""
    if params.type_v not in UNPACKED:  # a quantised V cache exists only with it
        return 1
    if params.flash_attn is not None:
        return int(params.flash_attn)
    return -1 if model.is_on_gpu else 0


def exact_rows(model: Model, *, n_seq_max: int = 1, kv_unified: bool = False) -> int:
    """The widest batch whose rows are bit-equal to single ones; 1 if none is.

    Up to FEW_ROWS tokens the CPU backend computes each row in the order of a single one, for all
    weights, experts, attention, KV cache types, flash attention and splits into physical batches,
    and beside other sequences: csrc/kernels/ and patches 0011, 0025 and 0027 ensure it, and
    test_equal_rows.py and test_latent_rows.py of tests/parity test it.

    Args:
        model: on a GPU, or with another library for matrix products, only 1 is guaranteed.
        n_seq_max: sequences of the context.
        kv_unified: whether the sequences share one buffer. Their cells interleave there, which
            changes the order of sums.
    """
    info = system_info()
    is_plain_cpu = not model.is_on_gpu and not any(name in info for name in _OTHERS)
    if not is_plain_cpu or any(device.name.startswith("BLAS") for device in devices()):
        return 1
    return 1 if kv_unified and n_seq_max > 1 else FEW_ROWS


class LayerRows(Sequence[Rows]):
    """One array per layer, [n, width of the layer] float32, as Context.layer_input() gives them.

    They are the rows of the last batch until the next decode, even if the view is made later.
    """

    __slots__ = ("_context", "_raw", "first", "layers", "n")

    def __init__(
        self, context: Context, layers: tuple[int, ...], first: int, n: int, _raw: Any = None
    ) -> None:
        self._context, self.layers, self.first, self.n = context, layers, first, n
        self._raw = ffi.new("int32_t[]", list(layers)) if _raw is None else _raw

    def part(self, first: int, n: int) -> LayerRows:
        """Rows first .. first + n - 1 of the batch, of the same layers."""
        return LayerRows(self._context, self.layers, first, n, self._raw)

    def __len__(self) -> int:
        return len(self.layers)

    @overload
    def __getitem__(self, i: int) -> Rows: ...

    @overload
    def __getitem__(self, i: slice) -> list[Rows]: ...

    def __getitem__(self, i: int | slice) -> Rows | list[Rows]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self.layers)))]
        return self._context.layer_input(self.layers[i])[self.first : self.first + self.n]

    def copy_to(self, buffer: Rows, at: int) -> None:
        """Copies the rows of all layers, side by side, in one call.

        Args:
            buffer: [>= at + n, sum of the layers' widths] float32, contiguous.
            at: the first row of the buffer to write.
        """
        width = sum(map(self._context.model.row_width, self.layers))
        if buffer.shape[1] != width or not 0 <= at <= len(buffer) - self.n:
            raise ArgumentError(
                "buffer", problem=f"has the shape {buffer.shape}",
                expected=f"room for {self.n} rows of {width} numbers from row {at} on",
            )  # fmt: skip
        place = ffi.from_buffer("float[]", buffer) + at * width
        code = lib.llama_spec_copy_layer_inputs(
            self._context.handle, self._raw, len(self.layers), self.first, self.n, place
        )
        check(code, "cannot copy the layer inputs")


def adapters_key(adapters: Sequence[tuple[Adapter, float]]) -> tuple[tuple[str, float], ...]:
    """A key of adapters, by content and scale. Leaves out those of scale 0."""
    return tuple((adapter.identity, float(scale)) for adapter, scale in adapters if scale != 0.0)


def _settings_of(model: Model, params: ContextParams, n_ctx_seq: int) -> Settings:
    """The settings, beside model and adapters, that the memory of a context depends on."""
    values: dict[str, Any] = {name: getattr(params, name) for name in _SETTINGS}
    values["flash_attn"] = {-1: None, 0: False, 1: True}[_flash_attn(model, params)]
    # Some models rotate positions differently in contexts that are longer than those of their
    # training.
    info, n_trained = model.info, params.yarn_orig_ctx
    named = model.metadata.get(f"{info.arch}.rope.scaling.original_context_length", "")
    n_trained = n_trained or (int(named) if named.isdigit() else info.n_ctx_train)
    padded = -(-n_ctx_seq // _CONTEXT_STEP) * _CONTEXT_STEP
    values["n_ctx"] = f"{'beyond' if padded > n_trained else 'within'} the length of training"
    return tuple((name, repr(value)) for name, value in values.items())


def first_difference(theirs: Settings, ours: Settings) -> str | None:
    """The first differing setting, in words; None if all are equal."""
    known = dict(theirs)
    for name, value in ours:
        if known.get(name, value) != value:
            if name == "adapters":
                return "other adapters, or other scales of them"
            return f"{name}={known[name]}, and here it is {value}"
    return None if len(theirs) == len(ours) else "other settings"
