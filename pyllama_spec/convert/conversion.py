"""The steps of a conversion that all kinds of draft share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyllama_spec.convert.checkpoint import Checkpoint, open_checkpoint
from pyllama_spec.convert.fields import Shapes
from pyllama_spec.convert.layer_ids import Convention, ResolvedIds
from pyllama_spec.convert.sizes import named
from pyllama_spec.errors import ArgumentError
from pyllama_spec.files import why_no_output
from pyllama_spec.gguf.target import Target
from pyllama_spec.gguf.tensors import PlannedTensor
from pyllama_spec.gguf.writer import KINDS, Kind, Output, import_gguf, write_gguf

PathLike = str | os.PathLike[str]
Progress = Callable[[float], None]
# In the file, as pyllama_spec.convert.version: counts changes of what the same input becomes.
VERSION = 1


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """The result of a conversion.

    Attributes:
        path: the GGUF.
        draft: the kind of draft, such as "EAGLE-3" or "DSpark".
        layout: the tool that wrote the checkpoint, as far as the files tell.
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
    layout: str
    target_layers: tuple[int, ...]
    layer_ids: str
    n_tensors: int
    n_layer: int
    n_draft_vocab: int | None
    block_size: int | None
    type_name: str
    n_bytes: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conversion:
    """The checked request, without the parts that depend on the kind of draft.

    Attributes:
        checkpoint: the draft.
        shapes: the shapes of its tensors, by their names in the files.
        target: path of the target's GGUF or folder.
        out: the GGUF to write.
        kind: the type of the matrices; None keeps the checkpoint's.
        layer_ids: how the draft's layer ids count, if its files do not tell.
        progress: called with the written share, 0.0 .. 1.0.
    """

    checkpoint: Checkpoint
    shapes: Shapes
    target: Path
    out: Path
    kind: Kind | None
    layer_ids: Convention | None
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft that is ready to be written.

    Attributes:
        arch: general.architecture.
        name: the name of the kind, for messages.
        layout: the tool that wrote the checkpoint.
        keys: the architecture's keys, without its prefix.
        ids: which rows of the target the draft reads.
        target: the target that it was made for.
        tensors: the tensors in the GGUF's order.
        n_layer: decoder layers.
        n_draft_vocab: rows of a reduced output; None for the whole vocabulary.
        block_size: slots of a block; None if the draft has no blocks.
        tokenizer: the tokenizer.* keys to write beside the target's.
        notes: remarks for the user.
    """

    arch: str
    name: str
    layout: str
    keys: Mapping[str, Any]
    ids: ResolvedIds
    target: Target
    tensors: Sequence[PlannedTensor]
    n_layer: int
    n_draft_vocab: int | None
    block_size: int | None = None
    tokenizer: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def open_conversion(
    draft_dir: PathLike,
    target: PathLike,
    out_path: PathLike,
    kind: Kind | None,
    layer_ids: Convention | None,
    progress: Progress | None,
) -> Conversion:
    """Checks the request and opens the checkpoint."""
    if kind is not None and kind not in KINDS:
        raise ArgumentError(f"type={kind!r} is not one of {', '.join(KINDS)}")
    if layer_ids not in (None, "input", "output"):
        raise ArgumentError(f"layer_ids={layer_ids!r} is not 'input', 'output' or None")
    import_gguf()
    out = _check_output(Path(out_path), Path(target), Path(draft_dir))
    checkpoint = open_checkpoint(Path(draft_dir))
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    return Conversion(checkpoint, shapes, Path(target), out, kind, layer_ids, progress)


def _check_output(out: Path, target: Path, draft: Path) -> Path:
    if (why_not := why_no_output(out)) is not None:
        raise ArgumentError(why_not)
    if out.exists() and target.exists() and out.samefile(target):
        raise ArgumentError(f"{out} is the target itself; give another output")
    if out.exists() and out.suffix != ".gguf" and out.resolve().parent == draft.resolve():
        raise ArgumentError(f"{out} is a file of the draft; give another output")
    return out


def write_draft(conversion: Conversion, draft: Draft) -> ConversionReport:
    """Writes the GGUF."""
    keys = named(draft.arch, {**draft.keys, "target_layers": draft.ids.target_layers})
    keys |= {
        "pyllama_spec.convert.version": str(VERSION),
        "pyllama_spec.convert.layout": draft.layout,
        "pyllama_spec.convert.layer_ids": draft.ids.counted,
    }
    tokenizer = {**draft.target.tokenizer, **(draft.tokenizer or {})}
    output = Output(
        draft.arch, conversion.checkpoint.name, keys, tokenizer, draft.tensors, conversion.kind
    )
    written = write_gguf(conversion.out, output, conversion.progress)
    return ConversionReport(
        path=conversion.out,
        draft=draft.name,
        layout=draft.layout,
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
