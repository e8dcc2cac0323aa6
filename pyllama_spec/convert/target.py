"""What a draft must know of its target, from a GGUF or a folder: sizes and vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyllama_spec.convert.checkpoint import read_json
from pyllama_spec.convert.fields import Fields
from pyllama_spec.convert.gguf_keys import STRING, GgufKey, read_keys
from pyllama_spec.convert.tokenizer import read_tokenizer
from pyllama_spec.engine.errors import ConversionError

_TOKENS = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True)
class Target:
    """The facts.

    Attributes:
        n_layer: decoder layers; those that predict further tokens (MTP) do not count.
        n_embd: width of its rows.
        n_vocab: tokens of its vocabulary.
        tokenizer: the keys tokenizer.*, to be copied into the draft.

    """

    n_layer: int
    n_embd: int
    n_vocab: int
    tokenizer: Mapping[str, GgufKey]


def read_target(path: Path) -> Target:
    """Reads a target: the path of a GGUF, or of a folder with config.json and tokenizer.json.

    Raises:
        ConversionError: it is missing, damaged, no language model, or lacks one of the facts.

    """
    return _from_folder(path) if path.is_dir() else _from_gguf(path)


def _is_wanted(name: str) -> bool:
    ends = (".block_count", ".nextn_predict_layers", ".embedding_length")
    return name.startswith(("tokenizer.", "split.no", "general.architecture")) or name.endswith(
        ends
    )


def _from_gguf(path: Path) -> Target:
    keys = read_keys(path, _is_wanted)
    arch = keys.get("general.architecture")
    if arch is None or arch.type_id != STRING:
        if "split.no" in keys:
            raise ConversionError(f"{path} is a later part of a split model; give the first part")
        raise ConversionError(f"{path} has no general.architecture; it is no model")
    name = arch.value.decode("utf-8", "replace")
    if name in ("eagle3", "dflash", "clip"):
        raise ConversionError(f"{path} is of kind {name!r}, not the target; give the target's GGUF")
    tokens = keys.get(_TOKENS)
    if tokens is None or tokens.item_type != STRING or not tokens.value:
        raise ConversionError(f"{path} has no {_TOKENS}: a draft needs its target's vocabulary")
    n_extra = _count(path, keys, f"{name}.nextn_predict_layers", 0)
    return Target(
        n_layer=_count(path, keys, f"{name}.block_count") - n_extra,
        n_embd=_count(path, keys, f"{name}.embedding_length"),
        n_vocab=len(tokens.value),
        tokenizer={k: v for k, v in keys.items() if k.startswith("tokenizer.")},
    )


def _count(path: Path, keys: Mapping[str, GgufKey], name: str, default: int | None = None) -> int:
    key = keys.get(name)
    if key is None and default is not None:
        return default
    if key is None or type(key.value) is not int or key.value < 0:
        raise ConversionError(f"{path} has no {name} that is a number; it is no language model")
    return key.value


def _from_folder(folder: Path) -> Target:
    config = Fields(read_json(folder / "config.json"))
    text = config.inner("text_config")
    body = text if text.values else config
    n_vocab = body.size("vocab_size")
    return Target(
        n_layer=body.size("num_hidden_layers"),
        n_embd=body.size("hidden_size"),
        n_vocab=n_vocab,
        tokenizer=read_tokenizer(folder, n_vocab, config, body),
    )
