"""The facts of a target that a draft needs: sizes and vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyllama_spec.errors import ModelLoadError
from pyllama_spec.gguf.reader import STRING, GgufKey, read_keys

_TOKENS = "tokenizer.ggml.tokens"
_SECTIONS = ".rope.dimension_sections"
_LAYERS = ".target_layers"  # which drafts have


@dataclass(frozen=True, slots=True)
class Target:
    """The facts of a target.

    Attributes:
        n_layer: the number of decoder layers, without those that predict further tokens (MTP).
        n_embd: the width of its rows.
        n_vocab: the number of tokens of its vocabulary.
        tokenizer: the keys tokenizer.*, to be copied into the draft.
        arch: its architecture, such as "qwen3".
        has_mrope: whether its RoPE gives a token several positions.
    """

    n_layer: int
    n_embd: int
    n_vocab: int
    tokenizer: Mapping[str, GgufKey]
    arch: str = ""
    has_mrope: bool = False


def read_target(path: Path) -> Target:
    """Reads the facts from a target's GGUF."""
    keys = read_keys(path, _is_fact)
    arch = keys.get("general.architecture")
    if arch is None or arch.type_id != STRING:
        if "split.no" in keys:
            raise ModelLoadError(f"{path} is a later part of a split model; give the first part")
        raise ModelLoadError(f"{path} has no general.architecture, so it is not a model")
    name = arch.value.decode("utf-8", "replace")
    if name == "clip" or f"{name}{_LAYERS}" in keys:
        raise ModelLoadError(f"{path} is of kind {name!r}, not the target; give the target's GGUF")
    tokens = keys.get(_TOKENS)
    if tokens is None or tokens.item_type != STRING or not tokens.value:
        raise ModelLoadError(f"{path} has no {_TOKENS}: a draft needs its target's vocabulary")
    n_extra = _count(path, keys, f"{name}.nextn_predict_layers", 0)
    sections = keys.get(f"{name}{_SECTIONS}")
    return Target(
        n_layer=_count(path, keys, f"{name}.block_count") - n_extra,
        n_embd=_count(path, keys, f"{name}.embedding_length"),
        n_vocab=len(tokens.value),
        tokenizer={k: v for k, v in keys.items() if k.startswith("tokenizer.")},
        arch=name,
        has_mrope=sections is not None and any(_numbers(sections)),
    )


def _is_fact(name: str) -> bool:
    ends = (".block_count", ".nextn_predict_layers", ".embedding_length", _SECTIONS, _LAYERS)
    starts = ("tokenizer.", "split.no", "general.architecture")
    return name.startswith(starts) or name.endswith(ends)


def _count(path: Path, keys: Mapping[str, GgufKey], name: str, default: int | None = None) -> int:
    key = keys.get(name)
    if key is None and default is not None:
        return default
    if key is None or type(key.value) is not int or key.value < 0:
        raise ModelLoadError(f"{path} has no number for the key {name}: it is not a language model")
    return key.value


def _numbers(key: GgufKey) -> list[int]:
    """The items of an array, or a single value."""
    return key.value if isinstance(key.value, list) else [key.value]
