"""Helpers for tests of training's text and features: a target, prompts, small configurations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec.engine import Model
from pyllama_spec.train import CorpusConfig
from pyllama_spec.train.corpus.build import build_corpus, corpus_identity
from pyllama_spec.train.corpus.features import FeatureStore
from pyllama_spec.train.corpus.store import Corpus, CorpusStore
from tests.models import model_path

LAYERS, N_TOP, WIDTH = (1, 2, 3), 8, 3 * 64
TOKEN_BYTES = 2 * WIDTH + 6 * N_TOP
WORDS = tuple("the king of a far land rode out at dawn to find water".split())  # noqa: SIM905


def open_writer() -> Model:
    """A target whose texts end now and then."""
    return Model(model_path("llama", suppress_special=False, output_scale=3.0))


def write_prompts(folder: Path) -> Path:
    """40 prompts and two chats, some words each."""
    rng = np.random.default_rng(1)
    rows: list[dict[str, Any]] = [
        {"id": str(i), "prompt": " ".join(rng.choice(WORDS, 5))} for i in range(40)
    ]
    rows += [{"messages": [{"role": "user", "content": " ".join(rng.choice(WORDS, 4))}]}] * 2
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    return path


def config(prompts: Path | None, **changes: Any) -> CorpusConfig:
    """A corpus of seconds."""
    base = CorpusConfig(
        prompts=prompts, n_tokens=400, n_ctx=80, n_parallel=4, min_answer=4, min_user=2,
        max_user=30, greedy_share=0.5, temperature=1.0,
    )  # fmt: skip
    return replace(base, **changes)


def make(model: Model, folder: Path, settings: CorpusConfig, **options: Any) -> Corpus:
    """Builds it on one thread."""
    store = CorpusStore(folder, corpus_identity(settings, "target"))
    return build_corpus(model, settings, store, n_threads=1, **options)


def tokens(corpus: Corpus) -> list[list[int]]:
    """The ids of every sequence."""
    return [sequence.tokens.tolist() for sequence in corpus.sequences]


def feature_store(folder: Path, settings: CorpusConfig) -> FeatureStore:
    """A store of what LAYERS say."""
    identity = {**corpus_identity(settings, "target"), "layers": list(LAYERS)}
    return FeatureStore(folder, identity)
