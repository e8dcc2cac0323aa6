"""Puts the engine's reasons for not loading a file into words: what is wrong, and what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from pyllama_spec.errors import (
    ArgumentError,
    ModelLoadError,
    OutOfMemoryError,
    PyllamaSpecError,
    UnsupportedError,
)
from pyllama_spec.gguf.reader import read_key

_SAYS = re.compile(r" \(the engine says: (.*)\)$", re.DOTALL)
# Every line of the engine begins with the name of a function; texts may have a semicolon too.
_NEXT_LINE = re.compile(r";(?=\w+: )")
_PREFIXES = re.compile(
    r"^(?:[a-z_]+: |error loading model(?: hyperparameters| vocabulary)?: )+(?=.)", re.DOTALL
)
_AGAIN = "download or convert it again"
_OR_UPDATE = f"{_AGAIN}, or update this package"
_UPDATE = "update this package, or choose another model"


class UnknownArchitectureError(ModelLoadError):
    """The engine has no such architecture."""

    def __init__(self, message: str, arch: str = "") -> None:
        super().__init__(message)
        self.arch = arch


class _Fault(NamedTuple):
    """A kind of fault that users meet: the engine's line, what is wrong with its groups, remedy."""

    line: str
    what: str
    remedy: str
    kind: type[PyllamaSpecError] = ModelLoadError


_FAULTS = (
    _Fault("not within the file bounds", "it is cut off", "download it again"),
    _Fault(
        r"(?:missing )?tensor '([^']+)'(?: not found)?$", "the file has no tensor {0}", _OR_UPDATE
    ),
    _Fault(
        r"wrong number of tensors; expected (\d+), got (\d+)",
        "the file has {0} tensors, and this version reads {1} of them", _OR_UPDATE,
    ),
    _Fault(
        r"tensor '([^']+)' has invalid ggml type (\d+)",
        "this version does not know the type {1} of the tensor {0}", _OR_UPDATE,
    ),
    _Fault(
        r"unknown model architecture: '(.*)'", "this version does not know its architecture '{0}'",
        _UPDATE, UnknownArchitectureError,
    ),
    _Fault(
        r"unknown (pre-tokenizer type|tokenizer): '(.*)'",
        "this version does not know its {0} '{1}'", _UPDATE,
    ),
    _Fault(
        r"(?:failed to load GGUF split from|missing key \S+ in GGUF split) (.+)",
        "its part {0} cannot be read", "put all its parts into one folder",
    ),
    _Fault(
        r"illegal split file idx: (\d+)", "it is not the first part of its model",
        "give the path of the first part",
    ),
    _Fault(
        r"^invalid value for main_gpu: (-?\d+) \(available devices: (\d+)\)",
        "main_gpu={0} is too large, as it can use {1} devices", "choose a smaller main_gpu",
        ArgumentError,
    ),
    _Fault(
        "^LLAMA_SPLIT_MODE_TENSOR not implemented for architecture '(.*)'",
        "split_mode='tensor' does not support its architecture '{0}'", "choose split_mode='layer'",
        UnsupportedError,
    ),
    _Fault(
        "^device (.+) does not support split buffers",
        "split_mode='row' does not support the device {0}", "choose split_mode='layer'",
        UnsupportedError,
    ),
)  # fmt: skip
# Too little memory for the weights. What a key of a damaged file asks for is a bad_alloc.
_MEMORY = re.compile(
    r"unable to allocate (?P<buffer>\S+) buffer$|allocating \S+ MiB on (?P<device>device) \d+: "
    r"cudaMalloc failed|posix_memalign failed with error 12$|mmap failed: Cannot allocate memory$"
)
_HOST = re.compile(r"CPU|\w+_Host$")


def not_a_model(error: PyllamaSpecError, start: str, path: Path) -> ModelLoadError | None:
    """The error for a LoRA adapter or an mmproj, which the engine calls damaged; else None."""
    if not isinstance(error, ModelLoadError):
        return None
    try:
        arch, kind = (read_key(path, f"general.{name}") for name in ("architecture", "type"))
    except ModelLoadError:
        return None
    if arch is not None and arch.value == b"clip":
        remedy = "give the language model's file"
        return ModelLoadError(
            f"{start}: it is an mmproj, which reads images for a language model: {remedy}"
        )
    if kind is not None and kind.value == b"adapter":
        remedy = "give the model's file, and this one as lora_path"
        return ModelLoadError(f"{start}: it is a LoRA adapter, not a model: {remedy}")
    return None


def load_error(
    error: PyllamaSpecError, start: str, *, has_overrides: bool = False
) -> PyllamaSpecError:
    """The error of a load in words, with at most one line of the engine."""
    text = str(error.args[0]) if error.args else ""
    said = _SAYS.search(text)
    if not isinstance(error, ModelLoadError) or said is None:
        return error
    lines = [_PREFIXES.sub("", line) for line in _NEXT_LINE.split(said[1])]
    for line in lines:
        for fault in _FAULTS:
            if found := re.search(fault.line, line):
                message = f"{start}: {fault.what.format(*found.groups())}: {fault.remedy}"
                if fault.kind is UnknownArchitectureError:
                    return UnknownArchitectureError(message, found[1])
                return fault.kind(message)
    for line in lines:
        if short := _MEMORY.match(line):
            place = short["buffer"] or short["device"] or "CPU"
            remedy = "close other programs, or choose a smaller file"
            if not _HOST.match(place):
                remedy = f"choose a smaller n_gpu_layers, {remedy}"
            message = f"{start}: there is not enough memory for it: {remedy}"
            return OutOfMemoryError(f"{message} (the engine says: {line})")
    what = text[: said.start()].removeprefix(f"{start}: ")
    remedy = "correct kv_overrides, or check the file" if has_overrides else "check the file"
    return ModelLoadError(
        f"{start}: {what}: {remedy}, and {_AGAIN} if it is damaged (the engine says: {lines[0]})"
    )
