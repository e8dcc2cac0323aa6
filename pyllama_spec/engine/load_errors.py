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
    """The engine has no such architecture.

    Attributes:
        arch: its name, as the file has it.

    """

    def __init__(self, message: str, arch: str = "") -> None:
        super().__init__(message)
        self.arch = arch


class _Fault(NamedTuple):
    """A kind of fault.

    Attributes:
        line: matches the engine's line, without its prefixes.
        what: what is wrong, with the groups of `line`.
        remedy: what to do.
        is_of_file: whether no value of kv_overrides can be the cause.
        kind: the error's class.

    """

    line: re.Pattern[str]
    what: str
    remedy: str = _AGAIN
    is_of_file: bool = False
    kind: type[PyllamaSpecError] = ModelLoadError


_OPEN = r"^failed to open (?:GGUF file ')?(?:.*[/\\])?(.+?)(?:' \(|: )"
_FAULTS = tuple(
    _Fault(re.compile(line), *rest)
    for line, *rest in (
        (
            "not within the file bounds",
            "it is cut off, its tensors go beyond its end; ", "download it again", True,
        ),
        (
            "unexpectedly reached end of file",
            "it became shorter while it was read; ", "load it again once it is complete", True,
        ),
        (
            r"(?:missing )?tensor '([^']+)'(?: not found)?$",
            "the file has no tensor {0}; it is incomplete: ",
        ),
        (
            r"(?:array )?key not found in model: (\S+)",
            "the file has no key {0}; it is incomplete: ", _AGAIN, True,
        ),
        (
            r"tensor '([^']+)' has wrong shape; expected +([\d, ]+?), got +(\d[\d, ]*?)(?:, +1)*$",
            "the tensor {0} has the shape {2}, and the keys of the file say {1}; it is damaged: ",
        ),
        (
            r"wrong number of tensors; expected (\d+), got (\d+)",
            "the file has {0} tensors, and this version reads {1} of them: ", _OR_UPDATE,
        ),
        (
            r"tensor '([^']+)' has invalid ggml type (\d+)",
            "this version does not know the type {1} of the tensor {0}: ", _OR_UPDATE, True,
        ),
        (
            r"tensor '([^']+)' of type (\d+ \(\S+\)) has (\d+) elements per row",
            "the tensor {0} has the type {1}, which does not fit its rows of {2} numbers: ",
            "download it again, or quantize it to another type", True,
        ),
        (
            r"unknown model architecture: '(.*)'",
            "this version does not know its architecture '{0}' (general.architecture): ", _UPDATE,
            True, UnknownArchitectureError,
        ),
        (
            r"unknown tokenizer: '(.*)'",
            "this version does not know its tokenizer '{0}' (tokenizer.ggml.model): ", _UPDATE,
            True,
        ),
        (
            r"unknown pre-tokenizer type: '(.*)'",
            "this version does not know its pre-tokenizer '{0}' (tokenizer.ggml.pre): ", _UPDATE,
        ),
        (
            r"key (\S+) has wrong type (\w+) but expected type (\w+)",
            "its key {0} has the type {1}, and not {2}: ", _AGAIN, True,
        ),
        (
            r"expected scalar, found array for key: (\S+)",
            "its key {0} has a list, and not a single value: ", _AGAIN, True,
        ),
        (
            r"key (\S+) has wrong array length; expected (\d+), got (\d+)",
            "its key {0} has {2} values, and not {1}: ",
        ),
        (
            r"invalid gguf type for (\S+)$", "its key {0} has a value of another type: ", _AGAIN,
            True,
        ),
        (
            r"(\S+) (?:has wrong array element type|is not a string/)",
            "its key {0} has a list of another type: ", _AGAIN, True,
        ),
        (
            r"invalid n_rot: (\d+), expected (\d+)",
            "its rope.dimension_count is {0}, and its other keys give {1}; it is damaged: ",
        ),
        (
            r"(?:failed to load GGUF split from|missing key \S+ in GGUF split) (.+)",
            "its part {0} cannot be read: ", "put all its parts into one folder", True,
        ),
        (
            r"illegal split file idx: (\d+)",
            "it is not the first part of its model: ", "give the path of the first part", True,
        ),
        (
            "^GGUF data section at file offset .* aligned, cannot mmap",
            "its tensors are not aligned as a mapped file needs: ", "give use_mmap=False", True,
        ),
        (
            rf"{_OPEN}Permission denied\)?$",
            "{0} may not be read by this user: ", "check its permissions", True,
        ),
        (
            rf"{_OPEN}Too many open files(?: in system)?\)?$",
            "this process has too many open files: ", "close some, or raise their limit", True,
        ),
        (
            "^read error: (.+)$", "reading it failed ({0}): ",
            "check the disk or the network that it lies on", True,
        ),
        (
            r"^invalid value for main_gpu: (-?\d+) \(available devices: (\d+)\)",
            "main_gpu={0} is too large, as it can use {1} devices: ", "choose a smaller main_gpu",
            True, ArgumentError,
        ),
        (
            "^LLAMA_SPLIT_MODE_TENSOR not implemented for architecture '(.*)'",
            "split_mode='tensor' does not support its architecture '{0}': ",
            "choose split_mode='layer'", True, UnsupportedError,
        ),
        (
            "^device (.+) does not support split buffers",
            "split_mode='row' does not support the device {0}: ", "choose split_mode='layer'",
            True, UnsupportedError,
        ),
    )
)  # fmt: skip
# What reads the keys; its further lines are about the file too.
_OF_KEYS = re.compile(r"gguf_|.*?: error loading model (?:hyperparameters|vocabulary): ", re.DOTALL)
# Too little memory for the weights. What a key of a damaged file asks for is a bad_alloc.
_MEMORY = re.compile(
    r"unable to allocate (?P<buffer>\S+) buffer$|allocating \S+ MiB on (?P<device>device) \d+: "
    r"cudaMalloc failed|posix_memalign failed with error 12$|mmap failed: Cannot allocate memory$"
)
_HOST = re.compile(r"CPU|\w+_Host$")
_ASSERT = re.compile(r"GGML_ASSERT\((.*)\) failed")


def not_a_model(error: PyllamaSpecError, start: str, path: Path) -> ModelLoadError | None:
    """The error for a LoRA adapter or an mmproj; None for other files and other errors.

    The engine calls both damaged, as they lack a model's keys. Reads the file.

    Args:
        error: what the C ABI said. Only a ModelLoadError changes.
        start: the start of the message, such as "cannot load model.gguf".
        path: the file.

    """
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
    """The error of a load in words, with at most one line of the engine.

    Args:
        error: what the C ABI said. Only a ModelLoadError with lines of the engine changes.
        start: the start of the message, such as "cannot load model.gguf".
        has_overrides: whether kv_overrides were given, which may be at fault too.

    """
    text = str(error.args[0]) if error.args else ""
    said = _SAYS.search(text)
    if not isinstance(error, ModelLoadError) or said is None:
        return error
    raw = _NEXT_LINE.split(said[1])
    lines = [_PREFIXES.sub("", line) for line in raw]
    first = "correct kv_overrides, or {}" if has_overrides else "{}"
    for line in lines:
        for fault in _FAULTS:
            if found := fault.line.search(line):
                remedy = fault.remedy if fault.is_of_file else first.format(fault.remedy)
                groups = [re.sub(r" {2,}", " ", group or "") for group in found.groups()]
                message = f"{start}: {fault.what.format(*groups)}{remedy}"
                if fault.kind is UnknownArchitectureError:
                    return UnknownArchitectureError(message, groups[0])
                return fault.kind(message)
    for line in lines:
        if short := _MEMORY.match(line):
            place = short["buffer"] or short["device"] or "CPU"
            remedy = "close other programs, or choose a smaller file"
            if not _HOST.match(place):
                remedy = f"choose a smaller n_gpu_layers, {remedy}"
            message = f"{start}: there is not enough memory for it: {remedy}"
            return OutOfMemoryError(f"{message} (the engine says: {line})")
    line = lines[0]
    quoted = f"(the engine says: {line})"
    what, remedy = text[: said.start()].removeprefix(f"{start}: "), first.format(_AGAIN)
    if refused := _ASSERT.search(line):
        what = "a key of the file has a value that the engine refuses"
        quoted = f"(the engine says: {refused[1]} is not so)"
    elif line == "std::bad_alloc":
        what = "it asks for more memory than there is, so it is damaged or too large"
    elif _OF_KEYS.match(raw[0]) is None:  # it may be anything: the machine, an argument, the file
        remedy = "check kv_overrides first" if has_overrides else ""
    return ModelLoadError(f"{start}: {what}{remedy and '; '}{remedy} {quoted}")
