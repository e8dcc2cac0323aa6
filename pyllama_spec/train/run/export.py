"""Writes a draft of any kind as GGUF, with its provenance."""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from pyllama_spec._version import __version__
from pyllama_spec.engine import engine_version
from pyllama_spec.gguf.target import Target, read_target
from pyllama_spec.gguf.tensors import PlannedTensor
from pyllama_spec.gguf.writer import Kind as ExportType
from pyllama_spec.gguf.writer import Output, write_gguf
from pyllama_spec.train.config import RunConfig, UseConfig
from pyllama_spec.train.corpus.store import TextSequence
from pyllama_spec.train.progress import Reporter
from pyllama_spec.train.run.head import DraftHead
from pyllama_spec.train.run.init_draft import InitDraft
from pyllama_spec.train.run.kind import H, Kind
from pyllama_spec.train.run.target_weights import TargetWeights

# Settings of all kinds by their option; those that decide nothing about a draft are left out.
_OPTIONS: Mapping[str, str] = {
    "--init": "init",
    "--tokens": "corpus.n_tokens",
    "--prompts": "corpus.prompts",
    "--n-ctx": "corpus.n_ctx",
    "--parallel": "corpus.n_parallel",
    "--greedy-share": "corpus.greedy_share",
    "--temperature": "corpus.temperature",
    "--seed": "corpus.seed",
    "--target-layers": "head.target_layers",
    "--n-head": "head.n_head",
    "--n-head-kv": "head.n_head_kv",
    "--n-ff": "head.n_ff",
    "--draft-vocab": "head.n_draft_vocab",
    "--epochs": "fit.epochs",
    "--step-decay": "fit.step_decay",
    "--missed-share": "fit.missed_share",
    "--copied-share": "fit.copied_share",
    "--batch-tokens": "fit.batch_tokens",
    "--lr": "fit.lr",
    "--weight-decay": "fit.weight_decay",
    "--patience": "fit.patience",
    "--precision": "fit.precision",
    "--type": "export_type",
}
_FLAGS: Mapping[str, tuple[str, bool]] = {"--train-output": ("fit.train_output", True)}


def command(config: RunConfig) -> str:
    """The command line of a run, with file names without folders."""
    words = ["pyllama-spec", "train", config.kind, "-m", config.target.name]
    words += ["-o", config.out.name]
    if config.use is not None:
        words += ["--from-use", config.use.store.name]
        if config.use.n_tokens != UseConfig(config.use.store).n_tokens:
            words += ["--tokens", str(config.use.n_tokens)]
    for flag, (place, on) in {**config.flags, **_FLAGS}.items():
        owner, name = _owner(config, place)
        if getattr(owner, name) == on:
            words.append(flag)
    for option, place in {**_OPTIONS, **config.options}.items():
        owner, name = _owner(config, place)
        value = getattr(owner, name)
        if value != _default(type(owner), name):
            words += [option, _word(value)]
    return shlex.join(words)


def _owner(config: RunConfig, place: str) -> tuple[Any, str]:
    """The part of the configuration with a field such as "fit.lr", and the field's name."""
    part, _, name = place.rpartition(".")
    return (getattr(config, part) if part else config), name


def _default(kind: type, name: str) -> Any:
    option = next(field for field in fields(kind) if field.name == name)
    return None if option.default is MISSING else option.default


def _word(value: Any) -> str:
    if isinstance(value, Path):
        return value.name
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def record(
    config: RunConfig, *, target_name: str, hashes: Mapping[str, str],
    figures: Mapping[str, Any], torch_version: str,
) -> dict[str, Any]:  # fmt: skip
    """The keys under pyllama_spec.train."""
    corpus, fit = config.corpus.identity(), asdict(config.fit)
    settings = {"corpus": corpus, "fit": fit, "n_top": config.n_top}
    versions = {
        "pyllama_spec": __version__,
        "engine": engine_version(),
        "torch": torch_version,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    return {
        "command": command(config),
        "versions": json.dumps(versions, sort_keys=True),
        "settings": json.dumps(settings, sort_keys=True),
        "seed": config.corpus.seed,
        "target": target_name,
        **hashes,
        **{k: json.dumps(v) if isinstance(v, list) else v for k, v in figures.items()},
    }


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

    Returns:
        The size of the file in bytes.
    """
    own = {"context_length": n_ctx, **head.sizes.keys()}
    named = {f"{arch}.{key}": value for key, value in own.items()} | dict(keys or {})
    tokenizer = {key: value for key, value in target.tokenizer.items() if key not in named}
    named |= {f"pyllama_spec.train.{key}": value for key, value in record.items()}
    tensors = [PlannedTensor.of_weights(*tensor) for tensor in head.tensors().items()]
    d2t = head.d2t.cpu().numpy()
    tensors.append(PlannedTensor("d2t", d2t.shape, values=d2t))
    tensors += extra
    output = Output(arch, name, named, tokenizer, tensors, cast(ExportType, export_type))
    return write_gguf(path, output).n_bytes


def write_draft(
    kind: Kind[H],
    head: H,
    config: RunConfig,
    weights: TargetWeights,
    path: Path,
    *,
    n_ctx: int,
    export_type: str,
    sequences: Sequence[TextSequence],
    init: InitDraft | None,
    figures: Mapping[str, Any],
    hashes: Mapping[str, str],
    reporter: Reporter,
) -> int:
    """Writes a run's draft with its provenance.

    Returns:
        The size of the file in bytes.
    """
    hashes = {"target_sha256": weights.sha256, **hashes}
    if init is not None:
        hashes = {**hashes, "init_sha256": init.sha256}
        before = {"tokens_before": init.n_tokens, "corpus_tokens_before": init.n_text}
        figures = {**figures, **before}
    made = record(
        config, target_name=weights.name, hashes=hashes, figures=figures,
        torch_version=str(torch.__version__),
    )  # fmt: skip
    output = kind.output(head, weights.name, made, export_type)
    if output is not None:
        return write_gguf(path, output).n_bytes
    return export_head(
        head, read_target(config.target), path, arch=kind.arch,
        name=f"{weights.name} {kind.title}", n_ctx=n_ctx, export_type=export_type, record=made,
        keys=kind.keys(head), extra=kind.extra_tensors(sequences, init, reporter),
    )  # fmt: skip
