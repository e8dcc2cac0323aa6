"""Writes a draft of any kind as GGUF, with its provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch

from pyllama_spec._version import __version__
from pyllama_spec.engine import engine_version
from pyllama_spec.gguf.target import Target, read_target
from pyllama_spec.gguf.tensors import PlannedTensor
from pyllama_spec.gguf.writer import Kind as ExportType
from pyllama_spec.gguf.writer import Output, write_gguf
from pyllama_spec.train.config import N_TOP
from pyllama_spec.train.run.head import DraftHead
from pyllama_spec.train.run.init_draft import InitDraft
from pyllama_spec.train.run.kind import H, Inputs, Kind


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
) -> int:
    """Writes the file, and returns its size in bytes.

    The embedding is the target's own and stays there: the head is as wide as the target.
    """
    own = {"context_length": n_ctx, **head.sizes.keys()}
    named = {f"{arch}.{key}": value for key, value in own.items()} | dict(keys or {})
    tokenizer = {key: value for key, value in target.tokenizer.items() if key not in named}
    named |= {f"pyllama_spec.train.{key}": value for key, value in record.items()}
    tensors = [PlannedTensor.of_weights(*tensor) for tensor in head.tensors().items()]
    d2t = head.d2t.cpu().numpy()
    tensors.append(PlannedTensor("d2t", d2t.shape, values=d2t))
    output = Output(arch, name, named, tokenizer, tensors, cast(ExportType, export_type))
    return write_gguf(path, output).n_bytes


def write_draft(
    kind: Kind[H, Any],
    head: H,
    inputs: Inputs,
    path: Path,
    *,
    export_type: str,
    init: InitDraft | None,
    facts: Mapping[str, Any],
) -> int:
    """Writes a run's draft with its provenance, and returns its size in bytes.

    The provenance are the keys under pyllama_spec.train; `facts` are those of the run alone.
    """
    config, weights = kind.config, inputs.weights
    versions = {
        "pyllama_spec": __version__, "engine": engine_version(), "torch": str(torch.__version__),
    }  # fmt: skip
    settings = {
        "kind": config.kind, "corpus": config.corpus.identity(), "fit": asdict(config.fit),
        "n_top": N_TOP,
    }  # fmt: skip
    record = {
        "versions": json.dumps(versions, sort_keys=True),
        "settings": json.dumps(settings, sort_keys=True),
        "seed": config.corpus.seed,
        "target": weights.name,
        "target_sha256": weights.sha256,
        **facts,
    }
    if init is not None:
        record |= {"init_sha256": init.sha256, "corpus_tokens_before": init.n_text}
    output = kind.output(head, weights.name, record, export_type)
    if output is not None:
        return write_gguf(path, output).n_bytes
    return export_head(
        head, read_target(config.target), path, arch=config.kind,
        name=f"{weights.name} {kind.title}", n_ctx=kind.model.info.n_ctx_train,
        export_type=export_type, record=record, keys=kind.keys(head),
    )  # fmt: skip
