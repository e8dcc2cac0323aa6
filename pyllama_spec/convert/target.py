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
    model = content.get("model")
    if not isinstance(model, dict):
        raise ConversionError(f"{path} has no model; {_INSTEAD}")
    is_byte_level = _mentions_byte_level(content)
    tokens, kinds, scores = _tokens(path, content, model, n_vocab)
    keys = {
        "tokenizer.ggml.model": _text("gpt2" if is_byte_level else "llama"),
        "tokenizer.ggml.pre": _text("default"),
        "tokenizer.ggml.tokens": GgufKey(ARRAY, STRING, [t.encode("utf-8") for t in tokens]),
        "tokenizer.ggml.token_type": GgufKey(ARRAY, _INT32, kinds),
    }
    if is_byte_level:
        keys["tokenizer.ggml.merges"] = GgufKey(ARRAY, STRING, _merges(path, model))
    else:
        keys["tokenizer.ggml.scores"] = GgufKey(ARRAY, _FLOAT32, scores)
    return keys | _special(folder, n_vocab, configs)


def _text(value: str) -> GgufKey:
    return GgufKey(STRING, None, value.encode("utf-8"))


def _mentions_byte_level(content: Json) -> bool:
    """Whether a step before or after the model maps bytes to characters."""
    steps: list[Any] = [content.get("pre_tokenizer"), content.get("decoder")]
    while steps:
        step = steps.pop()
        if not isinstance(step, dict):
            continue
        if step.get("type") == "ByteLevel":
            return True
        for key in ("pretokenizers", "decoders"):
            steps += step.get(key) or []
    return False


def _tokens(
    path: Path, content: Json, model: Json, n_vocab: int
) -> tuple[list[str], list[int], list[float]]:
    """The texts, kinds and scores of tokens by id."""
    texts: dict[int, str] = {}
    scores = [0.0] * n_vocab
    for text, token, score in _model_tokens(path, model):
        _put(path, texts, token, text, n_vocab)
        scores[token] = score
    kinds = [_NORMAL if i in texts else _UNUSED for i in range(n_vocab)]
    if not _mentions_byte_level(content):
        for token, text in texts.items():
            if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                kinds[token] = _BYTE
        if (unknown := _unknown(model, texts)) is not None:
            kinds[unknown] = _UNKNOWN
    for token, text, is_special in _added_tokens(path, content):
        # llama.cpp keeps the spaces of tokens that are looked for in the text itself.
        _put(path, texts, token, text if is_special else text.replace(_SPACE, " "), n_vocab, True)
        if kinds[token] != _UNKNOWN:
            kinds[token] = _CONTROL if is_special else _USER_DEFINED
    tokens = [texts.get(i, f"[PAD{i}]") for i in range(n_vocab)]
    if len(set(tokens)) != n_vocab or "" in texts.values():
        raise ConversionError(f"{path} has the same token twice, or an empty one; {_INSTEAD}")
    return tokens, kinds, scores


def _put(
    path: Path, texts: dict[int, str], token: int, text: str, n_vocab: int, added: bool = False
) -> None:
    if not 0 <= token < n_vocab:
        raise ConversionError(
            f"{path} has the token {token}, but vocab_size in config.json is {n_vocab}; {_INSTEAD}"
        )
    if token in texts and not added:
        raise ConversionError(f"{path} has the token {token} twice; {_INSTEAD}")
    texts[token] = text


def _model_tokens(path: Path, model: Json) -> list[tuple[str, int, float]]:
    """The text, id and score of each token of the model itself."""
    kind, vocab = model.get("type"), model.get("vocab")
    if kind in ("BPE", None) and isinstance(vocab, dict):
        if all(type(token) is int for token in vocab.values()):
            return [(text, token, 0.0) for text, token in vocab.items()]
    elif kind == "Unigram" and isinstance(vocab, list):
        pairs = [p for p in vocab if isinstance(p, list) and len(p) == 2 and isinstance(p[0], str)]
        if len(pairs) == len(vocab) and all(isinstance(p[1], float | int) for p in pairs):
            return [(text, token, float(score)) for token, (text, score) in enumerate(pairs)]
    raise ConversionError(
        f"{path} has a model of kind {kind!r}, or no vocabulary; BPE and Unigram are read; "
        f"{_INSTEAD}"
    )


def _unknown(model: Json, texts: Mapping[int, str]) -> int | None:
    if type(model.get("unk_id")) is int and model["unk_id"] in texts:
        return int(model["unk_id"])
    name = model.get("unk_token")
    return next((token for token, text in texts.items() if name and text == name), None)


def _added_tokens(path: Path, content: Json) -> list[tuple[int, str, bool]]:
    """The id, the text and the special flag of each added token."""
    added = content.get("added_tokens") or []
    try:
        tokens = [(token["id"], token["content"], bool(token.get("special"))) for token in added]
    except (TypeError, KeyError, AttributeError):
        raise ConversionError(
            f"{path} has added_tokens without id or content; {_INSTEAD}"
        ) from None
    if not all(type(token) is int and isinstance(text, str) for token, text, _ in tokens):
        raise ConversionError(f"{path} has added_tokens without id or content; {_INSTEAD}")
    return tokens


def _merges(path: Path, model: Json) -> list[bytes]:
    """The merges in rank order, as "left right"."""
    merges = model.get("merges")
    out = []
    for merge in merges if isinstance(merges, list) else []:
        text = " ".join(map(str, merge)) if isinstance(merge, list) else str(merge)
        out.append(text.encode("utf-8"))
    if not out:
        raise ConversionError(f"{path} has no merges; {_INSTEAD}")
    return out


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
