"""Converts a checkpoint of any kind to one GGUF."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyllama_spec.convert.checkpoint import open_checkpoint
from pyllama_spec.convert.dflash import is_dflash, make_dflash
from pyllama_spec.convert.draft import Source
from pyllama_spec.convert.eagle3 import make_eagle3
from pyllama_spec.convert.layer_ids import Convention
from pyllama_spec.convert.layout import CheckpointTensors
from pyllama_spec.errors import ArgumentError, ConversionError, ModelLoadError
from pyllama_spec.files import why_no_output
from pyllama_spec.gguf.target import Target, read_target
from pyllama_spec.gguf.writer import KINDS, Kind, Output, import_gguf, write_gguf

PathLike = str | os.PathLike[str]
# In the file, as pyllama_spec.convert.version: counts changes of what the same input becomes.
VERSION = 1


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """The result of a conversion.

    Attributes:
        path: the GGUF.
        draft: the kind of draft, such as "EAGLE-3" or "DSpark".
        target_layers: layer inputs of the target that the draft reads.
        layer_ids: how the draft's own layer ids were read: "default", "input" or "output".
        n_tensors: tensors of the GGUF.
        n_layer: decoder layers.
        n_draft_vocab: rows of a reduced output; None for the target's whole vocabulary.
        block_size: slots of a block; None if the draft has no blocks.
        type_name: type of most weights, such as "BF16".
        n_bytes: size of the GGUF.
        notes: remarks for the user, one sentence each.
    """

    path: Path
    draft: str
    target_layers: tuple[int, ...]
    layer_ids: str
    n_tensors: int
    n_layer: int
    n_draft_vocab: int | None
    block_size: int | None
    type_name: str
    n_bytes: int
    notes: tuple[str, ...]


def convert_draft(
    draft_dir: PathLike,
    target: PathLike,
    out_path: PathLike,
    *,
    kind: Kind | None = None,
    layer_ids: Convention | None = None,
    progress: Callable[[float], None] | None = None,
) -> ConversionReport:
    """Converts a draft; config.json and the tensors tell its kind.

    Nothing is guessed: each tensor is used exactly once, each size comes from config.json and is
    compared with the tensors, and ambiguous input is refused.

    Args:
        draft_dir: the draft's folder, with config.json and .safetensors or .bin files.
        target: the target's GGUF.
        out_path: the GGUF to write; it replaces an existing file once it is complete.
        kind: type of the matrices; None keeps the checkpoint's. Norms and biases are F32.
        layer_ids: how the draft's layer ids count, if its files do not tell or are wrong.
        progress: called with the written share, 0.0 .. 1.0.

    Raises:
        ConversionError: a file is missing or damaged, the engine does not have the draft's kind, or
            the draft's parts contradict each other or the target.
        ArgumentError: the kind or convention is unknown, or the output is an input.
    """
    if kind is not None and kind not in KINDS:
        raise ArgumentError("type", kind, f"one of {', '.join(KINDS)}")
    if layer_ids not in (None, "input", "output"):
        raise ArgumentError("layer_ids", layer_ids, "one of input, output")
    import_gguf()
    out, target_path = Path(out_path), Path(target)
    _check_output(out, target_path, Path(draft_dir))
    checkpoint = open_checkpoint(Path(draft_dir))
    make = make_dflash if is_dflash(checkpoint.config, checkpoint.tensors) else make_eagle3
    tensors, facts = CheckpointTensors(checkpoint.tensors), _read_target(target_path)
    draft = make(Source(checkpoint, tensors, facts, target_path, layer_ids))
    keys = {f"{draft.arch}.{name}": value for name, value in draft.keys.items()}
    keys |= {
        f"{draft.arch}.target_layers": draft.ids.target_layers,
        "pyllama_spec.convert.version": str(VERSION),
        "pyllama_spec.convert.layer_ids": draft.ids.counted,
    }
    tokenizer = {**facts.tokenizer, **(draft.tokenizer or {})}
    output = Output(draft.arch, checkpoint.name, keys, tokenizer, draft.tensors, kind)
    written = write_gguf(out, output, progress)
    return ConversionReport(
        path=out,
        draft=draft.name,
        target_layers=draft.ids.target_layers,
        layer_ids=draft.ids.counted,
        n_tensors=len(draft.tensors),
        n_layer=draft.n_layer,
        n_draft_vocab=draft.n_draft_vocab,
        block_size=draft.block_size,
        type_name=written.type_name,
        n_bytes=written.n_bytes,
        notes=(*draft.notes, *written.notes),
    )


def _read_target(path: Path) -> Target:
    try:
        return read_target(path)
    except ModelLoadError as error:
        raise ConversionError(str(error)) from None


def _check_output(out: Path, target: Path, draft: Path) -> None:
    if (why_not := why_no_output(out)) is not None:
        raise ArgumentError("out", problem=f"cannot be written: {why_not}")
    if out.exists() and target.exists() and out.samefile(target):
        raise ArgumentError(
            "out", out, problem="is the target itself", remedy="give another output"
        )
    if out.exists() and out.suffix != ".gguf" and out.resolve().parent == draft.resolve():
        raise ArgumentError(
            "out", out, problem="is a file of the draft", remedy="give another output"
        )
