"""The facts of a target that a draft needs, from a GGUF or a folder.

A draft never splits text: the engine only compares its vocabulary with the target's, token by
token. So tokens and their kinds are exact; data for tokenization alone (the pre-tokenizer's name,
scores) have neutral values. The names of padding are llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyllama_spec.convert.checkpoint import Json, read_json
from pyllama_spec.convert.config import Fields
from pyllama_spec.errors import ConversionError, ModelLoadError
from pyllama_spec.gguf.reader import ARRAY, STRING, GgufKey, read_keys
from pyllama_spec.gguf.target import Target, is_fact, target_of

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_UINT32, _INT32, _FLOAT32, _BOOL = 4, 5, 6, 7
_SPACE = "▁"  # what sentencepiece writes for a space
_INSTEAD = "give the target's GGUF instead of its folder"


def read_tokenizer(folder: Path, n_vocab: int, *configs: Fields) -> dict[str, GgufKey]:
    """The keys of exactly n_vocab tokens; ids that tokenizer.json lacks become padding.

    Byte-level BPE becomes a tokenizer of kind "gpt2" with its merges, every other one (BPE with
    byte fallback, Unigram) one of kind "llama".
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ConversionError(f"{folder} has no tokenizer.json; {_INSTEAD}")
    content = read_json(path)
    try:
        keys = _keys(content, n_vocab)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ConversionError(
            f"{path} is not a tokenizer that is read here ({error}); {_INSTEAD}"
        ) from None
    return keys | _special(folder, n_vocab, configs)


def _keys(content: Json, n_vocab: int) -> dict[str, GgufKey]:
    """The keys of the tokens; raises what a malformed content makes of it."""
    model, is_byte_level = content["model"], _mentions_byte_level(content)
    texts, scores = _model_tokens(model, n_vocab)
    kinds = [_NORMAL if i in texts else _UNUSED for i in range(n_vocab)]
    if not is_byte_level:
        for token, text in texts.items():
            if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                kinds[token] = _BYTE
        if (unknown := _unknown(model, texts)) is not None:
            kinds[unknown] = _UNKNOWN
    for added in content.get("added_tokens") or []:
        token, text, is_special = added["id"], added["content"], bool(added.get("special"))
        # llama.cpp keeps the spaces of tokens that are looked for in the text itself.
        _put(texts, token, text if is_special else text.replace(_SPACE, " "), n_vocab)
        if kinds[token] != _UNKNOWN:
            kinds[token] = _CONTROL if is_special else _USER_DEFINED
    tokens = [texts.get(i, f"[PAD{i}]") for i in range(n_vocab)]
    if len(set(tokens)) != n_vocab or "" in texts.values():
        raise ValueError("it has the same token twice, or an empty one")
    keys = {
        "tokenizer.ggml.model": _text("gpt2" if is_byte_level else "llama"),
        "tokenizer.ggml.pre": _text("default"),
        "tokenizer.ggml.tokens": GgufKey(ARRAY, STRING, [t.encode("utf-8") for t in tokens]),
        "tokenizer.ggml.token_type": GgufKey(ARRAY, _INT32, kinds),
    }
    if not is_byte_level:
        return keys | {"tokenizer.ggml.scores": GgufKey(ARRAY, _FLOAT32, scores)}
    # In the order of their ranks, as "left right".
    merges = [" ".join(m) if isinstance(m, list) else str(m) for m in model.get("merges") or []]
    if not merges:
        raise ValueError("it has no merges")
    raw = [merge.encode("utf-8") for merge in merges]
    return keys | {"tokenizer.ggml.merges": GgufKey(ARRAY, STRING, raw)}


def _text(value: str) -> GgufKey:
    return GgufKey(STRING, None, value.encode("utf-8"))


def _mentions_byte_level(content: Json) -> bool:
    """Whether a step before or after the model maps bytes to characters."""
    steps: list[Any] = [content.get("pre_tokenizer"), content.get("decoder")]
    while steps:
        step = steps.pop() or {}
        if step.get("type") == "ByteLevel":
            return True
        for key in ("pretokenizers", "decoders"):
            steps += step.get(key) or []
    return False


def _model_tokens(model: Json, n_vocab: int) -> tuple[dict[int, str], list[float]]:
    """The texts of the model's own tokens by id, and the scores of all."""
    texts: dict[int, str] = {}
    scores = [0.0] * n_vocab
    kind, vocab = model.get("type"), model["vocab"]
    if kind not in ("BPE", "Unigram", None):
        raise ValueError(f"its model is of kind {kind!r}; BPE and Unigram are read")
    for i, (text, value) in enumerate(vocab if kind == "Unigram" else vocab.items()):
        token = i if kind == "Unigram" else value
        if token in texts:
            raise ValueError(f"it has the token {token} twice")
        _put(texts, token, text, n_vocab)
        scores[token] = float(value) if kind == "Unigram" else 0.0
    return texts, scores


def _put(texts: dict[int, str], token: int, text: str, n_vocab: int) -> None:
    if type(token) is not int or not isinstance(text, str):
        raise TypeError(f"the token {token!r} has no number or no text")
    if not 0 <= token < n_vocab:
        raise ValueError(f"it has the token {token}, but vocab_size in config.json is {n_vocab}")
    texts[token] = text


def _unknown(model: Json, texts: Mapping[int, str]) -> int | None:
    if type(model.get("unk_id")) is int and model["unk_id"] in texts:
        return int(model["unk_id"])
    name = model.get("unk_token")
    return next((token for token, text in texts.items() if name and text == name), None)


def _special(folder: Path, n_vocab: int, configs: tuple[Fields, ...]) -> dict[str, GgufKey]:
    """The ids of BOS and EOS, and whether BOS is prepended, as far as the folder says so."""
    keys: dict[str, GgufKey] = {}
    for name in ("bos", "eos"):
        for config in configs:
            value = config.values.get(f"{name}_token_id")
            value = value[0] if isinstance(value, list) and value else value
            if type(value) is int and 0 <= value < n_vocab:
                keys[f"tokenizer.ggml.{name}_token_id"] = GgufKey(_UINT32, None, value)
    path = folder / "tokenizer_config.json"
    if path.exists():
        add_bos = read_json(path).get("add_bos_token")
        if isinstance(add_bos, bool):
            keys["tokenizer.ggml.add_bos_token"] = GgufKey(_BOOL, None, add_bos)
    return keys


def read_target(path: Path) -> Target:
    """Reads a target: the path of a GGUF, or of a folder with config.json and tokenizer.json."""
    return _from_folder(path) if path.is_dir() else _from_gguf(path)


def _from_gguf(path: Path) -> Target:
    try:
        keys = read_keys(path, is_fact)
    except ModelLoadError as error:
        raise ConversionError(f"the target cannot be read: {error}") from None
    try:
        return target_of(path, keys)
    except ModelLoadError as error:
        raise ConversionError(str(error)) from None


def _from_folder(folder: Path) -> Target:
    config = Fields(read_json(folder / "config.json"))
    text = config.inner("text_config")
    body = text if text.values else config
    n_vocab = body.size("vocab_size")
    ropes = (body.inner("rope_parameters"), body.inner("rope_scaling"))
    return Target(
        n_layer=body.size("num_hidden_layers"),
        n_embd=body.size("hidden_size"),
        n_vocab=n_vocab,
        tokenizer=read_tokenizer(folder, n_vocab, config, body),
        arch=str(body.values.get("model_type") or config.values.get("model_type") or ""),
        has_mrope=any(rope.has("mrope_section") for rope in ropes),
    )
