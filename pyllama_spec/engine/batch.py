"""The input of one decode: tokens or state rows, with their positions and sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine.binding import ffi, lib
from pyllama_spec.engine.checks import count
from pyllama_spec.errors import ArgumentError

# More than any context holds: a batch of that many is a mistake, and its arrays would be huge.
_MAX_TOKENS = 1 << 24
# What the rows of a draft's batch are.
_FEATURES, _HIDDEN = lib.LLAMA_SPEC_DRAFT_FEATURES, lib.LLAMA_SPEC_DRAFT_HIDDEN


class Batch:
    """A list of tokens for Context.decode(), reused from round to round.

    Args:
        n_max: the most tokens that it holds; Context.n_batch is the most that a decode takes.
        n_row: the width of state rows; 0 for batches of ids alone.
        n_model_row: the row width that the model reads, ModelInfo.n_embd_inp, if it is larger; the
            rest is zero.

    Attributes:
        hidden_rows: for a draft's context: whether the rows are the draft's own hidden rows of the
            previous step instead of features of the target.
        logits: for a draft's context: whether tokens with an output get logits, beside
            Context.draft_candidates().
        head: for a context of MTP heads: which head computes the batch, 0 for the first.
    """

    def __init__(self, n_max: int, *, n_row: int = 0, n_model_row: int | None = None) -> None:
        n_max = count(n_max, "n_max", 1, _MAX_TOKENS)
        self.n_max, self.n_row, self.n_tokens = n_max, n_row, 0
        self.hidden_rows, self.logits, self.head = False, True, 0
        self.max_pos = -1
        # [2, n_tokens] of rows of an image; None for others. The struct points into it.
        self._grid: npt.NDArray[np.int32] | None = None
        self._embd: npt.NDArray[np.float32] | None = None
        self._ids = ffi.new("int32_t[]", n_max)
        self._pos = ffi.new("int32_t[]", n_max)
        self._output = ffi.new("int8_t[]", n_max)
        self._seq = ffi.new("int32_t[]", n_max)
        # shape: [n_max, n_model_row]
        self._rows: npt.NDArray[np.float32] | None = None
        if n_row:
            self._rows = np.zeros((n_max, n_model_row or n_row), dtype=np.float32)
        self._n_ids = 0
        self._struct = ffi.new("struct llama_spec_batch *")

    def clear(self) -> None:
        """Empties the batch."""
        self.n_tokens = self._n_ids = 0
        self.max_pos = -1
        if self._grid is not None:
            self._grid, self._struct.grid, self._struct.is_whole = None, ffi.NULL, False
            self._embd, self._struct.embd = None, ffi.NULL

    def add(
        self,
        token: int | None,
        pos: int,
        seq: int = 0,
        *,
        output: bool = False,
        row: npt.NDArray[np.float32] | None = None,
    ) -> int:
        """Appends a token; returns its index in the batch.

        Args:
            token: its id; None if only a row is given.
            pos: its position in the sequence.
            seq: its sequence.
            output: whether to compute its logits.
            row: [n_row] float32 state row, for a batch with n_row.

        Raises:
            ArgumentError: the batch is full, a number is out of range, or the row has another
                width.
        """
        if token is None and row is None:
            raise ArgumentError("token", None, "an id or a row")
        ids = None if token is None else (token,)
        self.extend(ids, pos, seq, output_last=output, rows=() if row is None else (row[None],))
        return self.n_tokens - 1

    def extend(
        self,
        tokens: Sequence[int] | None,
        pos: int,
        seq: int = 0,
        *,
        output_last: bool = False,
        output_all: bool = False,
        rows: Sequence[npt.NDArray[np.float32]] = (),
    ) -> None:
        """Appends a run of tokens of one sequence at pos, pos + 1, ...

        Args:
            tokens: their ids; None if only rows are given.
            pos: the position of the first one.
            seq: their sequence.
            output_last: whether to compute the logits of the last token.
            output_all: whether to compute the logits of all tokens.
            rows: for a batch with n_row: [n_tokens, n_i] float32 arrays, concatenated side by side
                into rows of width n_row.

        Raises:
            ArgumentError: they do not fit the batch, or a number is not an int32.
        """
        n, start = len(rows[0] if tokens is None else tokens), self.n_tokens
        if start + n > self.n_max:
            raise ArgumentError(
                "tokens", problem=f"are {start} + {n}", expected=f"at most {self.n_max} tokens"
            )
        if rows:
            self._set_rows(start, n, rows)
        self._set_numbers(start, n, tokens, pos, seq)
        if n == 1:
            self._output[start] = output_all or output_last
        else:
            ffi.memmove(self._output + start, (b"\1" if output_all else b"\0") * n, n)
            if output_last and n:
                self._output[start + n - 1] = 1
        if n:
            self._n_ids += n if tokens is not None else 0
            self.max_pos = max(self.max_pos, pos + n - 1)
        self.n_tokens += n

    def set_media(
        self,
        rows: npt.NDArray[np.float32],
        positions: npt.NDArray[np.int32],
        seq: int = 0,
        *,
        output_last: bool = False,
        is_whole: bool = False,
        embd: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Makes a batch of rows of an image alone, for a batch with n_row.

        Args:
            rows: [n, n_row] float32.
            positions: [3, n] int32: the place of each row in time, its row and its column.
            seq: their sequence.
            output_last: whether to compute the logits of the last row.
            is_whole: whether each row sees all the others; Context.n_ubatch limits them then.
            embd: [n, n_embd_inp] float32, for a head that reads ids beside rows: what stands in
                the place of ids.
        """
        self.clear()
        self.extend(None, 0, seq, output_last=output_last, rows=(rows,))
        where = np.ascontiguousarray(positions, np.int32)
        ffi.memmove(self._pos, ffi.from_buffer(where[0]), where[0].nbytes)
        self._grid, self.max_pos = where[1:], int(where[0].max())
        self._struct.grid = ffi.cast("int32_t *", self._grid.ctypes.data)
        self._struct.is_whole = is_whole
        if embd is not None:
            self._embd = np.ascontiguousarray(embd, np.float32)
            self._struct.embd = ffi.cast("float *", self._embd.ctypes.data)

    def _set_numbers(
        self, start: int, n: int, tokens: Sequence[int] | None, pos: int, seq: int
    ) -> None:
        """Writes the ids, positions and sequence of a run of tokens."""
        try:
            if n == 1:  # as in plain decoding: an item is set faster than a slice
                if tokens is not None:
                    self._ids[start] = tokens[0]
                self._pos[start], self._seq[start] = pos, seq
            else:
                if tokens is not None:
                    self._ids[start : start + n] = tokens
                self._pos[start : start + n] = range(pos, pos + n)
                self._seq[start : start + n] = [seq] * n
        except (OverflowError, TypeError):
            raise ArgumentError("tokens", tokens, "ids and positions of 32 bits") from None

    def _set_rows(self, start: int, n: int, rows: Sequence[npt.NDArray[np.float32]]) -> None:
        if self._rows is None:
            raise ArgumentError(
                "rows", problem="have no place in this batch", remedy="make the batch with `n_row`"
            )
        at = 0
        for part in rows:
            shape = part.shape
            if len(shape) != 2 or shape[0] != n or at + shape[1] > self.n_row:
                raise ArgumentError(
                    "rows", problem=f"have the shape {shape}",
                    expected=f"({n}, up to {self.n_row - at})",
                )  # fmt: skip
            self._rows[start : start + n, at : at + shape[1]] = part
            at += shape[1]
        if at != self.n_row:
            raise ArgumentError("rows", problem=f"are {at} numbers wide", expected=f"{self.n_row}")

    def as_struct(self) -> Any:
        """The C view of the batch, for Context.decode()."""
        if self._n_ids not in (0, self.n_tokens):
            raise ArgumentError(
                "tokens",
                problem=f"have {self._n_ids} ids of {self.n_tokens}",
                remedy="give all or none",
            )
        s = self._struct
        s.n_tokens = self.n_tokens
        s.ids = self._ids if self._n_ids else ffi.NULL
        if self._rows is not None:
            s.rows = ffi.cast("float *", self._rows.ctypes.data)
            s.n_row = self._rows.shape[1]
        s.pos, s.seq, s.output = self._pos, self._seq, self._output
        s.mode = _HIDDEN if self.hidden_rows else _FEATURES
        s.candidates_only = not self.logits
        s.head = self.head
        return s
