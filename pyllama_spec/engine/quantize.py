"""Quantizes models to other types."""

from __future__ import annotations

import os
from pathlib import Path

from pyllama_spec.engine.binding import check, ffi, lib
from pyllama_spec.engine.checks import count, instance, one_of, text
from pyllama_spec.errors import ArgumentError, ModelLoadError
from pyllama_spec.files import whole_file, why_no_output
from pyllama_spec.gguf.header import check_header

# Threads beyond the machine's cores only wait; each costs memory.
_MAX_QUANTIZE_THREADS = 1024


def quantize(
    path: str | os.PathLike[str],
    out_path: str | os.PathLike[str],
    kind: str,
    *,
    n_threads: int = 0,
    pure: bool = False,
) -> None:
    """Writes a model in another type, such as "Q4_0" or "BF16".

    Args:
        path: the GGUF to read.
        out_path: the GGUF to write; an incomplete file is removed.
        kind: one of quantize_types(), in upper or lower case.
        n_threads: CPU threads; 0 for all of the machine's.
        pure: writes every tensor in this type, the embeddings too.

    Raises:
        ModelLoadError: the file cannot be read or quantised.
        ArgumentError: the type is unknown, or input and output are the same file.
    """
    instance(path, (str, os.PathLike), "path")
    instance(out_path, (str, os.PathLike), "out_path")
    source, target = Path(path), Path(out_path)
    check_header(source)
    n_threads = count(n_threads, "n_threads", 0, _MAX_QUANTIZE_THREADS)
    one_of(text(kind, "type").upper(), quantize_types(), "type")
    if (why_not := why_no_output(target)) is not None:
        raise ModelLoadError(why_not)
    if target.exists() and target.samefile(source):
        raise ArgumentError(
            "out_path", target, problem="is the input itself", remedy="give another"
        )
    try:
        with whole_file(target) as part:
            code = lib.llama_spec_quantize(
                os.fsencode(source), os.fsencode(part), kind.encode(), n_threads, pure
            )
            check(code, f"cannot quantise {source} to {kind} as {target}")
    except OSError as error:
        raise ModelLoadError(f"cannot write {target}: {error}") from None


def quantize_types() -> tuple[str, ...]:
    """The types that quantize() can write."""
    names: list[str] = []
    while (name := lib.llama_spec_quantize_type(len(names))) != ffi.NULL:
        names.append(ffi.string(name).decode())
    return tuple(names)
