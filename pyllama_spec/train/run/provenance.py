"""Where a head comes from: what its file says about the run that made it."""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec._version import __version__
from pyllama_spec.engine import engine_version
from pyllama_spec.train.config import CorpusConfig, Eagle3TrainConfig, FitConfig, HeadConfig

# Settings by their option; those that decide nothing about the head are left out.
_OPTIONS: Mapping[str, tuple[type, str]] = {
    "--init": (Eagle3TrainConfig, "init"),
    "--tokens": (CorpusConfig, "n_tokens"),
    "--prompts": (CorpusConfig, "prompts"),
    "--n-ctx": (CorpusConfig, "n_ctx"),
    "--parallel": (CorpusConfig, "n_parallel"),
    "--greedy-share": (CorpusConfig, "greedy_share"),
    "--temperature": (CorpusConfig, "temperature"),
    "--seed": (CorpusConfig, "seed"),
    "--target-layers": (HeadConfig, "target_layers"),
    "--n-head": (HeadConfig, "n_head"),
    "--n-head-kv": (HeadConfig, "n_head_kv"),
    "--n-ff": (HeadConfig, "n_ff"),
    "--draft-vocab": (HeadConfig, "n_draft_vocab"),
    "--epochs": (FitConfig, "epochs"),
    "--steps": (FitConfig, "n_steps"),
    "--step-decay": (FitConfig, "step_decay"),
    "--missed-share": (FitConfig, "missed_share"),
    "--copied-share": (FitConfig, "copied_share"),
    "--batch-tokens": (FitConfig, "batch_tokens"),
    "--lr": (FitConfig, "lr"),
    "--weight-decay": (FitConfig, "weight_decay"),
    "--patience": (FitConfig, "patience"),
    "--precision": (FitConfig, "precision"),
    "--type": (Eagle3TrainConfig, "export_type"),
    "--ngrams": (Eagle3TrainConfig, "n_ngrams"),
}


def command(config: Eagle3TrainConfig) -> str:
    """The command line of a run, with names of files and without their folders."""
    words = ["pyllama-spec", "train", "eagle3", "-m", config.target.name, "-o", config.out.name]
    parts: dict[type, Any] = {
        CorpusConfig: config.corpus, HeadConfig: config.head, FitConfig: config.fit,
        Eagle3TrainConfig: config,
    }  # fmt: skip
    if config.head.is_plain:
        words.append("--plain")
    if config.fit.train_output:
        words.append("--train-output")
    for option, (kind, name) in _OPTIONS.items():
        value = getattr(parts[kind], name)
        if value != _default(kind, name):
            words += [option, _word(value)]
    return shlex.join(words)


def _default(kind: type, name: str) -> Any:
    found = next(field for field in fields(kind) if field.name == name)
    return None if found.default is MISSING else found.default


def _word(value: Any) -> str:
    if isinstance(value, Path):
        return value.name
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def record(
    config: Eagle3TrainConfig, *, target_name: str, hashes: Mapping[str, str],
    figures: Mapping[str, Any], torch_version: str,
) -> dict[str, Any]:  # fmt: skip
    """The keys below pyllama_spec.train.

    Args:
        config: of the run.
        target_name: general.name of the target.
        hashes: SHA-256 of target and corpus, by key.
        figures: what came out, by key: numbers, and lists that become JSON.
        torch_version: of PyTorch.

    """
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
