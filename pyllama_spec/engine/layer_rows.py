"""Layer inputs of some rows of the last batch: views, created on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine.binding import check, ffi, lib
from pyllama_spec.engine.context import Context
from pyllama_spec.errors import ArgumentError

Rows = npt.NDArray[np.float32]


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
