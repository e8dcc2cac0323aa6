"""Writes a draft of any kind as GGUF."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pyllama_spec.gguf.target import Target
from pyllama_spec.gguf.tensors import PlannedTensor, SourceTensor
from pyllama_spec.gguf.writer import Kind, Output, write_gguf
from pyllama_spec.train.run.head import DraftHead


def export_head(
    head: DraftHead,
    target: Target,
    path: Path,
    *,
    arch: str,
    name: str,
    n_ctx: int,
    export_type: str,
    record: Mapping[str, Any],
    keys: Mapping[str, Any] | None = None,
    extra: Sequence[PlannedTensor] = (),
) -> int:
    """Writes the file.

    The embedding is the target's own and stays there: the head is as wide as the target.

    Args:
        head: with its weights.
        target: whose tokenizer goes into the file.
        path: where to.
        arch: general.architecture.
        name: general.name.
        n_ctx: the target's context length.
        export_type: "f32", "f16", "bf16" or "q8_0", of matrices.
        record: keys below pyllama_spec.train: where the head comes from.
        keys: more keys, with their whole names; they replace the target's of the same name.
        extra: more tensors.

    Returns:
        The size of the file in bytes.

    Raises:
        ConversionError: a weight is no number or does not fit the type, or the file cannot be
            written.

    """
    own = {"context_length": n_ctx, **head.sizes.keys()}
    named = {f"{arch}.{key}": value for key, value in own.items()} | dict(keys or {})
    tokenizer = {key: value for key, value in target.tokenizer.items() if key not in named}
    named |= {f"pyllama_spec.train.{key}": value for key, value in record.items()}
    tensors = [_tensor(tensor, values) for tensor, values in head.tensors().items()]
    d2t = head.d2t.cpu().numpy()
    tensors.append(PlannedTensor("d2t", d2t.shape, values=d2t))
    tensors += extra
    output = Output(arch, name, named, tokenizer, tensors, cast(Kind, export_type))
    return write_gguf(path, output).n_bytes


def _tensor(name: str, values: npt.NDArray[np.float32]) -> PlannedTensor:
    source = SourceTensor(name, "F32", values.shape, _reader(values))
    return PlannedTensor(name, values.shape, source)


def _reader(values: npt.NDArray[np.float32]) -> Callable[[], npt.NDArray[np.float32]]:
    return lambda: values
