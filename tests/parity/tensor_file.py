"""A GGUF file for the NumPy references: nothing here is shared with the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

Array = NDArray[np.float64]


class TensorFile:
    """Keys and tensors of one GGUF file; matrices are float64 `[out, in]`, `d2t` is int64."""

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        self.path = path
        self.arch = str(self.key("general.architecture", ""))
        self.tensors: dict[str, Array] = {}
        self.d2t: NDArray[np.int64] | None = None
        for tensor in self._reader.tensors:
            if tensor.name.startswith("ngram."):
                continue  # no part of what is computed
            if tensor.tensor_type == GGMLQuantizationType.I64:
                if tensor.name != "d2t":
                    raise ValueError(f"{tensor.name} is I64; only d2t may be")
                self.d2t = np.array(tensor.data, dtype=np.int64)
            else:
                values = dequantize(tensor.data, tensor.tensor_type)
                self.tensors[tensor.name] = np.array(values, dtype=np.float64)

    def key(self, name: str, default: Any = None) -> Any:
        """The key's value; `default` where the file lacks it, KeyError where that is None."""
        field = self._reader.get_field(name)
        if field is not None:
            return field.contents()
        if default is None:
            raise KeyError(f"{self.path} has no key {name}")
        return default

    def own(self, suffix: str, default: Any = None) -> Any:
        return self.key(f"{self.arch}.{suffix}", default)
