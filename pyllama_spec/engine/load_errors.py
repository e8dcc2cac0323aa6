"""Puts the engine's reasons for not loading a file into words: what is wrong, and what to do."""

from __future__ import annotations

import re
from pathlib import Path

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
_SHORT = "there is not enough memory for it"
_SMALLER = "close other programs, or choose a smaller file"
_UPDATE = "update this package, or choose another model"


class UnknownArchitectureError(ModelLoadError):
    """The engine has no such architecture, `arch`."""

    arch = ""


# What users meet, by a line of the engine: what is wrong, with the line's groups; the remedy; the
# class. Of a machine's memory only what the weights take: a bad_alloc is a damaged file's.
_FAULTS: tuple[tuple[str, str, str, type[PyllamaSpecError]], ...] = (
    ("not within the file bounds", "it is cut off", "download it again", ModelLoadError),
    (r"(?:missing )?tensor '([^']+)'(?: not found)?$", "the file has no tensor {0}", _OR_UPDATE,
     ModelLoadError),
    (r"tensor '([^']+)' has invalid ggml type (\d+)",
     "this version does not know the type {1} of the tensor {0}", _OR_UPDATE, ModelLoadError),
    (r"unknown model architecture: '(.*)'", "this version does not know its architecture '{0}'",
     _UPDATE, UnknownArchitectureError),
    (r"unknown (pre-tokenizer type|tokenizer): '(.*)'",
     "this version does not know its {0} '{1}'", _UPDATE, ModelLoadError),
    (r"(?:failed to load GGUF split from|missing key \S+ in GGUF split) (.+)",
     "its part {0} cannot be read", "put all its parts into one folder", ModelLoadError),
    (r"illegal split file idx: (\d+)", "it is not the first part of its model",
     "give the path of the first part", ModelLoadError),
    (r"^invalid value for main_gpu: (-?\d+) \(available devices: (\d+)\)",
     "`main_gpu={0}` is too large, as it can use {1} devices", "choose a smaller `main_gpu`",
     ArgumentError),
    ("^LLAMA_SPLIT_MODE_TENSOR not implemented for architecture '(.*)'",
     "`split_mode=tensor` does not support its architecture '{0}'", "choose `split_mode=layer`",
     UnsupportedError),
    ("^device (.+) does not support split buffers",
     "`split_mode=row` does not support the device {0}", "choose `split_mode=layer`",
     UnsupportedError),
    (r"unable to allocate (?:CPU|\S+_Host) buffer$|posix_memalign failed with error 12$", _SHORT,
     _SMALLER, OutOfMemoryError),
    ("mmap failed: Cannot allocate memory$", _SHORT, _SMALLER, OutOfMemoryError),
    (r"unable to allocate \S+ buffer$|allocating \S+ MiB on device \d+: cudaMalloc failed",
     _SHORT, f"choose a smaller `n_gpu_layers`, {_SMALLER}", OutOfMemoryError),
)  # fmt: skip


def not_a_model(start: str, path: Path) -> ModelLoadError | None:
    """The error for a LoRA adapter or an mmproj, which the engine calls damaged; else None."""
    try:
        arch, kind = (read_key(path, f"general.{name}") for name in ("architecture", "type"))
    except ModelLoadError:
        return None
    if arch is not None and arch.value == b"clip":
        return ModelLoadError(
            f"{start}: it is an mmproj, which reads images for a language model",
            remedy="give the language model's file",
        )
    if kind is not None and kind.value == b"adapter":
        return ModelLoadError(
            f"{start}: it is a LoRA adapter, not a model",
            remedy="give the model's file, and this one as `lora_path`",
        )
    return None


def load_error(
    error: PyllamaSpecError, start: str, *, has_overrides: bool = False
) -> PyllamaSpecError:
    """The error of a load in words, with at most one line of the engine."""
    said = _SAYS.search(error.problem)
    if not isinstance(error, ModelLoadError) or said is None:
        return error
    lines = [_PREFIXES.sub("", line) for line in _NEXT_LINE.split(said[1])]
    for pattern, what, remedy, kind in _FAULTS:
        found = next(filter(None, (re.search(pattern, line) for line in lines)), None)
        if found is not None:
            problem = f"{start}: {what.format(*found.groups())}"
            fault = kind(problem=problem, remedy=remedy).about_first()
            if isinstance(fault, UnknownArchitectureError):
                fault.arch = found[1]
            return fault
    remedy = f"check the file, and {_AGAIN} if it is damaged"
    return ModelLoadError(
        f"{error.problem[: said.start()]} (the engine says: {lines[0]})",
        remedy=f"correct `kv_overrides`, or {remedy}" if has_overrides else remedy,
    )
