"""What the kinds of draft share: what they are made of, and what a conversion writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyllama_spec.convert.checkpoint import Checkpoint
from pyllama_spec.convert.config import Sizes
from pyllama_spec.convert.layer_ids import Convention, ResolvedIds
from pyllama_spec.convert.layout import CheckpointTensors
from pyllama_spec.convert.vocabulary import Vocabulary
from pyllama_spec.gguf.target import Target
from pyllama_spec.gguf.tensors import PlannedTensor


@dataclass(frozen=True, slots=True)
class Source:
    """What a draft is made of."""

    checkpoint: Checkpoint
    tensors: CheckpointTensors
    target: Target
    target_path: Path
    layer_ids: Convention | None  # how the draft's ids count, if its files do not tell


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft that is ready to be written; see ConversionReport for its facts."""

    arch: str
    name: str
    keys: Mapping[str, Any]  # without the architecture's prefix
    ids: ResolvedIds
    tensors: Sequence[PlannedTensor]  # in the GGUF's order
    n_layer: int
    n_draft_vocab: int | None
    block_size: int | None = None
    tokenizer: Mapping[str, Any] | None = None  # beside the target's
    notes: tuple[str, ...] = ()


def sizes_of(
    sizes: Sizes, vocabulary: Vocabulary, n_target_layers: int, target_n_embd: int
) -> dict[str, int]:
    """The sizes that the tables of all kinds name."""
    return {
        "n_embd": sizes.n_embd,
        "n_ff": sizes.n_ff,
        "head_size": sizes.head_size,
        "n_head": sizes.n_head,
        "n_q": sizes.n_head * sizes.head_size,
        "n_kv": sizes.n_head_kv * sizes.head_size,
        "n_vocab": vocabulary.n_target,
        "n_trained": vocabulary.n_trained,
        "n_output": vocabulary.n_output,
        "n_rows": vocabulary.n_rows,
        "target_n_embd": target_n_embd,
        "n_target_layers": n_target_layers,
        "n_features": n_target_layers * target_n_embd,
    }
