"""Writes a head as GGUF: docs/eagle3.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine.model import NgramArrays
from pyllama_spec.gguf.target import Target
from pyllama_spec.gguf.tensors import PlannedTensor, SourceTensor
from pyllama_spec.gguf.writer import Kind, Output, write_gguf
from pyllama_spec.train.eagle3.head import Eagle3Head


def export_head(
    head: Eagle3Head,
    target: Target,
    path: Path,
    *,
    name: str,
    n_ctx: int,
    export_type: str,
    record: Mapping[str, Any],
    ngrams: NgramArrays | None = None,
) -> int:
    """Writes the file.

    The embedding is the target's own and stays there: the head is as wide as the target.

    Args:
        head: with its weights.
        target: whose tokenizer goes into the file.
        path: where to.
        name: general.name.
        n_ctx: the target's context length.
        export_type: "f32", "f16", "bf16" or "q8_0", of matrices.
        record: keys below pyllama_spec.train: where the head comes from.
        ngrams: the table that goes with it.

    Returns:
        The size of the file in bytes.

    Raises:
        ConversionError: a weight is no number or does not fit the type, or the file cannot be
            written.

    """
    shape = head.shape
    keys: dict[str, Any] = {
        "context_length": n_ctx,
        "embedding_length": shape.n_embd,
        "block_count": 1,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.key_length": shape.head_size,
        "attention.value_length": shape.head_size,
        "attention.layer_norm_rms_epsilon": shape.rms_eps,
        "rope.dimension_count": shape.head_size,
        "rope.freq_base": shape.rope_base,
        "vocab_size": shape.n_vocab,
        "target_layers": list(shape.target_layers),
        "target_hidden_size": shape.n_embd_target,
    }
    # Only where they are on: stock llama.cpp does not know them.
    keys |= {flag: True for flag in ("fc_norm", "norm_output") if getattr(shape, flag)}
    named = {f"eagle3.{key}": value for key, value in keys.items()}
    named |= {f"pyllama_spec.train.{key}": value for key, value in record.items()}
    tensors = [_tensor(tensor, values) for tensor, values in head.tensors().items()]
    d2t = head.d2t.cpu().numpy()
    tensors.append(PlannedTensor("d2t", d2t.shape, values=d2t))
    tensors += _ngram_tensors(ngrams)
    output = Output("eagle3", name, named, target.tokenizer, tensors, cast(Kind, export_type))
    return write_gguf(path, output).n_bytes


def _ngram_tensors(ngrams: NgramArrays | None) -> list[PlannedTensor]:
    if ngrams is None or not len(ngrams.keys):
        return []
    parts: dict[str, npt.NDArray[Any]] = {
        "keys": ngrams.keys.view(np.int32), "ids": ngrams.ids, "p": ngrams.p,
    }  # fmt: skip
    return [PlannedTensor(f"ngram.{k}", v.shape, values=v) for k, v in parts.items()]


def _tensor(name: str, values: npt.NDArray[np.float32]) -> PlannedTensor:
    source = SourceTensor(name, "F32", values.shape, _reader(values))
    return PlannedTensor(name, values.shape, source)


def _reader(values: npt.NDArray[np.float32]) -> Callable[[], npt.NDArray[np.float32]]:
    return lambda: values
