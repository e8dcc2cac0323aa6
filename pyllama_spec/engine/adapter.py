"""LoRA adapters."""

from __future__ import annotations

import os
from pathlib import Path

from pyllama_spec.engine.binding import Handle, Owner, check, ffi, lib
from pyllama_spec.engine.closeable import closed_on_failure
from pyllama_spec.engine.identity import digest_of
from pyllama_spec.engine.model import Model
from pyllama_spec.errors import ModelLoadError
from pyllama_spec.gguf.header import check_header
from pyllama_spec.gguf.reader import read_table
from pyllama_spec.gguf.sizes import TENSOR_TYPES

# The engine loads matrices of these types, and its decodes then end in an assert.
_NO_WEIGHTS = {TENSOR_TYPES[name]: name for name in ("I8", "I16", "I32", "I64", "F64")}


class Adapter(Owner):
    """A LoRA file, loaded for a model; Context.set_adapters() enables it.

    The engine keeps it with the model's weights and frees both together.

    Args:
        model: the model that the adapter was made for.
        path: a GGUF of type "adapter".

    Attributes:
        identity: a digest of the loaded file, see identity.py.

    Raises:
        ModelLoadError: the file is missing, broken, or made for another model.
    """

    def __init__(self, model: Model, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        check_header(self.path)
        out = ffi.new("llama_spec_adapter **")
        # Now: training may write the next adapter to the same path.
        self.identity = digest_of(self.path)
        handle = model.handle
        # The engine adds each adapter to a list of the model, which has no lock.
        with model.adapter_lock:
            code = lib.llama_spec_adapter_load(handle, os.fsencode(self.path), out)
        check(code, f"cannot use {self.path} as an adapter of {model.path.name}")
        self._handle = Handle(
            out[0], lib.llama_spec_adapter_free, f"the adapter {self.path} is closed"
        )
        with closed_on_failure(self):
            _check_types(self.path)


def _check_types(path: Path) -> None:
    """Checks that the engine can multiply by the matrices that it has loaded."""
    for name, tensor in read_table(path).tensors.items():
        if tensor.type_id in _NO_WEIGHTS:
            raise ModelLoadError(
                f"cannot use {path} as an adapter: its tensor {name} has the type "
                f"{_NO_WEIGHTS[tensor.type_id]}; convert it again, to F32 or F16"
            )
