"""Converts a checkpoint of any kind to one GGUF."""

from __future__ import annotations

from pyllama_spec.convert.conversion import (
    ConversionReport,
    PathLike,
    Progress,
    open_conversion,
    write_draft,
)
from pyllama_spec.convert.dflash.convert import is_dflash, make_dflash
from pyllama_spec.convert.eagle3.convert import make_eagle3
from pyllama_spec.convert.layer_ids import Convention
from pyllama_spec.gguf.writer import Kind


def convert_draft(
    draft_dir: PathLike,
    target: PathLike,
    out_path: PathLike,
    *,
    kind: Kind | None = None,
    layer_ids: Convention | None = None,
    progress: Progress | None = None,
) -> ConversionReport:
    """Converts a draft; config.json and the tensors tell its kind.

    Nothing is guessed: each tensor is used exactly once, each size comes from config.json and is
    compared with the tensors, and ambiguous input is refused.

    Args:
        draft_dir: the draft's folder, with config.json and .safetensors or .bin files.
        target: the target's GGUF, or its folder with config.json and tokenizer.json.
        out_path: the GGUF to write; it replaces an existing file once it is complete.
        kind: type of the matrices; None keeps the checkpoint's. Norms and biases are F32.
        layer_ids: how the draft's layer ids count, if its files do not tell or are wrong.
        progress: called with the written share, 0.0 .. 1.0.

    Raises:
        ConversionError: a file is missing or damaged, the engine does not have the draft's kind, or
            the draft's parts contradict each other or the target.
        ArgumentError: the kind or convention is unknown, or the output is an input.
    """
    conversion = open_conversion(draft_dir, target, out_path, kind, layer_ids, progress)
    make = (
        make_dflash if is_dflash(conversion.checkpoint.config, conversion.shapes) else make_eagle3
    )
    return write_draft(conversion, make(conversion))


def convert_eagle3(
    draft_dir: PathLike,
    target: PathLike,
    out_path: PathLike,
    *,
    kind: Kind | None = None,
    layer_ids: Convention | None = None,
    progress: Progress | None = None,
) -> ConversionReport:
    """Converts an EAGLE-3 head as convert_draft() does, and refuses every other kind."""
    conversion = open_conversion(draft_dir, target, out_path, kind, layer_ids, progress)
    return write_draft(conversion, make_eagle3(conversion))
