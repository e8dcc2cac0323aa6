"""The target: its sizes and its vocabulary, from a GGUF or a folder."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from pyllama_spec.convert.target import read_target
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.reader import read_keys
from tests.convert.tools import (
    N_VOCAB,
    Json,
    convert,
    convert_head,
    gguf_keys,
    make_head,
    write_head,
    write_target,
)
from tests.models import model_path
from tests.models.vocab import SPECIAL_TOKENS, merges, tokens


def tokenizer_keys(path: Path) -> dict[str, tuple[list[GGUFValueType], Any]]:
    """Types and values of the tokenizer's keys."""
    return {
        name: (field.types, field.contents())
        for name, field in GGUFReader(path).fields.items()
        if name.startswith("tokenizer.")
    }


def rich_target(path: Path) -> Path:
    """A target with a tokenizer key of every type."""
    writer = GGUFWriter(path, "qwen3")
    writer.add_block_count(8)
    writer.add_embedding_length(64)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("weird-pre")
    # A token need not be UTF-8, and may be anything else.
    texts: list[bytes] = [f"t{i}".encode() for i in range(N_VOCAB)]
    writer.add_token_list(texts)
    writer.add_token_types([1, 2, 3, 4, 5, 6] + [1] * (N_VOCAB - 6))
    writer.add_token_scores([-float(i) for i in range(N_VOCAB)])
    writer.add_bos_token_id(3)
    writer.add_eos_token_id(5)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template("{{ messages }} \u2581")
    charsmap = bytes(range(256))
    int8 = GGUFValueType.UINT8
    writer.add_key_value("tokenizer.ggml.precompiled_charsmap", charsmap, GGUFValueType.ARRAY, int8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_tokenizer_is_copied_as_it_is(tmp_path: Path) -> None:
    target = rich_target(tmp_path / "rich.gguf")
    out = convert_head(tmp_path, "specforge", make_head(), target=target).path
    assert tokenizer_keys(out) == tokenizer_keys(target)
    assert len(tokenizer_keys(out)) == 11


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    target = write_target(tmp_path / "odd.gguf")
    data = target.read_bytes()
    word = "\u0120w7".encode()
    assert data.count(struct.pack("<Q", len(word)) + word) == 1
    target.write_bytes(data.replace(word, b"\xff\xfe\x00\x80"))
    folder = write_head(tmp_path / "draft", "specforge", make_head())
    out = convert(folder, target=target).path
    keys = read_keys(out, lambda name: name == "tokenizer.ggml.tokens")
    assert b"\xff\xfe\x00\x80" in keys["tokenizer.ggml.tokens"].value


def test_sizes_of_a_gguf(tmp_path: Path) -> None:
    facts = read_target(write_target(tmp_path / "a.gguf"))
    assert (facts.n_layer, facts.n_embd, facts.n_vocab) == (8, 64, 320)
    # Layers that predict further tokens are counted among the blocks.
    with_mtp = write_target(tmp_path / "b.gguf", "glm4moe", block_count=48, nextn_predict_layers=1)
    assert read_target(with_mtp).n_layer == 47
    real = read_target(model_path("llama"))
    assert real.n_vocab == len(real.tokenizer["tokenizer.ggml.tokens"].value)


@pytest.mark.parametrize(
    ("arch", "keys", "message"),
    [
        ("eagle3", {}, "is of kind 'eagle3', not the target"),
        ("clip", {}, "is of kind 'clip', not the target"),
        ("llama", {"n_vocab": 0}, r"has no tokenizer\.ggml\.tokens"),
    ],
)
def test_no_target(tmp_path: Path, arch: str, keys: dict[str, int], message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        read_target(write_target(tmp_path / "a.gguf", arch, **keys))


def test_keys_are_needed(tmp_path: Path) -> None:
    whole = write_target(tmp_path / "a.gguf").read_bytes()
    for name in (b"llama.block_count", b"llama.embedding_length"):
        (tmp_path / "a.gguf").write_bytes(whole.replace(name, name[:-1] + b"?"))
        with pytest.raises(ConversionError, match=f"has no .*{name.decode()}"):
            read_target(tmp_path / "a.gguf")
    later = GGUFWriter(tmp_path / "b.gguf", "llama")
    later.kv_data[0].clear()
    later.add_uint16("split.no", 1)
    later.write_header_to_file()
    later.write_kv_data_to_file()
    later.close()
    with pytest.raises(ConversionError, match="a later part of a split model; give the first"):
        read_target(tmp_path / "b.gguf")


def test_damaged_targets(tmp_path: Path) -> None:
    """A target that is cut or has flipped bytes gives facts or a ConversionError, no traceback."""
    whole = write_target(tmp_path / "a.gguf").read_bytes()
    part = tmp_path / "b.gguf"
    for n in [*range(60), *range(60, len(whole) - 64, 97)]:
        part.write_bytes(whole[:n])
        with pytest.raises(ConversionError, match=r"b\.gguf"):
            read_target(part)
    rng = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 3):
            damaged[at] ^= 1 << rng.integers(0, 8)
        part.write_bytes(bytes(damaged))
        try:
            read_target(part)
        except ConversionError as error:
            assert "b.gguf" in str(error)
    for data, message in (
        (b"", "cannot be read"),
        (b"GGML" + bytes(40), "starts with b'GGML'"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
    ):
        part.write_bytes(data)
        with pytest.raises(ConversionError, match=message):
            read_target(part)
    with pytest.raises(ConversionError, match=r"none\.gguf does not exist"):
        read_target(tmp_path / "none.gguf")


BYTE_LEVEL: Json = {"type": "ByteLevel", "add_prefix_space": False}


def byte_level_json(n_vocab: int = N_VOCAB) -> Json:
    """tokenizer.json of the vocabulary that the tests' models share."""
    texts, _ = tokens(n_vocab)
    vocab = {text: i for i, text in enumerate(texts) if text not in SPECIAL_TOKENS}
    return {
        "added_tokens": [
            {"id": texts.index(text), "content": text, "special": True} for text in SPECIAL_TOKENS
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split"}, BYTE_LEVEL]},
        "decoder": BYTE_LEVEL,
        "model": {"type": "BPE", "vocab": vocab, "merges": [m.split(" ") for m in merges()]},
    }


def sentencepiece_json() -> Json:
    """A small vocabulary with bytes, an unknown token and added ones."""
    texts = ["<unk>", "<s>", "</s>", "<0x00>", "<0x0A>", "\u2581the", "th", "\u2581\u2581"]
    return {
        "added_tokens": [
            {"id": 0, "content": "<unk>", "special": True},
            {"id": 1, "content": "<s>", "special": True},
            {"id": 2, "content": "</s>", "special": True},
            {"id": 7, "content": "\u2581\u2581", "special": False},
            {"id": 8, "content": "<|extra|>", "special": False},
        ],
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]},
        "model": {
            "type": "BPE", "unk_token": "<unk>", "byte_fallback": True,
            "vocab": {text: i for i, text in enumerate(texts)}, "merges": ["t h"],
        },
    }  # fmt: skip


def write_folder(folder: Path, tokenizer: Json | None, **config: Any) -> Path:
    """A target's folder."""
    folder.mkdir(exist_ok=True)
    sizes = {"hidden_size": 64, "num_hidden_layers": 8, "vocab_size": N_VOCAB, **config}
    (folder / "config.json").write_text(json.dumps(sizes))
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_a_byte_level_folder(tmp_path: Path) -> None:
    target = write_folder(
        tmp_path / "target", byte_level_json(), bos_token_id=256, eos_token_id=[258, 259]
    )
    (target / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    out = convert_head(tmp_path, "specforge", make_head(), target=target).path
    texts, kinds = tokens(N_VOCAB)
    keys = gguf_keys(out)
    assert keys["tokenizer.ggml.model"] == "gpt2"
    assert keys["tokenizer.ggml.pre"] == "default"
    assert keys["tokenizer.ggml.tokens"] == texts
    assert keys["tokenizer.ggml.token_type"] == kinds
    assert keys["tokenizer.ggml.merges"] == merges()
    assert keys["tokenizer.ggml.bos_token_id"] == 256
    assert keys["tokenizer.ggml.eos_token_id"] == 258
    assert keys["tokenizer.ggml.add_bos_token"] is True
    assert keys["eagle3.vocab_size"] == N_VOCAB


def test_padding_of_a_folder(tmp_path: Path) -> None:
    target = write_folder(tmp_path / "target", byte_level_json(300))
    keys = gguf_keys(convert_head(tmp_path, "specforge", make_head(), target=target).path)
    texts, kinds = tokens(300)
    assert keys["tokenizer.ggml.tokens"] == texts + [f"[PAD{i}]" for i in range(300, 320)]
    assert keys["tokenizer.ggml.token_type"] == kinds + [5] * 20


def test_a_text_config(tmp_path: Path) -> None:
    target = write_folder(tmp_path / "target", byte_level_json(), vocab_size=7)
    sizes = {"hidden_size": 64, "num_hidden_layers": 8, "vocab_size": N_VOCAB, "eos_token_id": 3}
    (target / "config.json").write_text(json.dumps({"text_config": sizes, "vocab_size": 7}))
    facts = read_target(target)
    assert (facts.n_layer, facts.n_embd, facts.n_vocab) == (8, 64, N_VOCAB)
    assert facts.tokenizer["tokenizer.ggml.eos_token_id"].value == 3


def test_a_sentencepiece_folder(tmp_path: Path) -> None:
    target = write_folder(tmp_path / "target", sentencepiece_json(), vocab_size=10)
    keys = {name: key.value for name, key in read_target(target).tokenizer.items()}
    assert keys["tokenizer.ggml.model"] == b"llama"
    assert [t.decode() for t in keys["tokenizer.ggml.tokens"]] == [
        "<unk>", "<s>", "</s>", "<0x00>", "<0x0A>", "\u2581the", "th", "  ", "<|extra|>", "[PAD9]",
    ]  # fmt: skip
    assert keys["tokenizer.ggml.token_type"] == [2, 3, 3, 6, 6, 1, 1, 4, 4, 5]
    assert keys["tokenizer.ggml.scores"] == [0.0] * 10
    assert "tokenizer.ggml.merges" not in keys


def test_a_unigram_folder(tmp_path: Path) -> None:
    model = {"type": "Unigram", "unk_id": 1, "vocab": [["<pad>", 0.0], ["<unk>", 0], ["a", -2.5]]}
    target = write_folder(tmp_path / "target", {"model": model}, vocab_size=4)
    keys = {name: key.value for name, key in read_target(target).tokenizer.items()}
    assert keys["tokenizer.ggml.scores"] == [0.0, 0.0, -2.5, 0.0]
    assert keys["tokenizer.ggml.token_type"] == [1, 2, 1, 5]


def broken_json(**model: Any) -> Json:
    """A byte-level tokenizer with another model."""
    tokenizer = byte_level_json()
    return {**tokenizer, "model": {**tokenizer["model"], **model}}


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (None, "has no tokenizer.json; give the target's GGUF"),
        (broken_json(type="WordPiece"), "WordPiece"),
        (broken_json(vocab=["a"]), "tokenizer.json is not a tokenizer"),
        (broken_json(merges=[]), "has no merges"),
        (broken_json(vocab={"a": 0, "b": 0}), "has the token 0 twice"),
        (broken_json(vocab={"a": 320}), "has the token 320, but vocab_size in config.json is 320"),
        (broken_json(vocab={"<|bos|>": 0}), "the same token twice"),
        (byte_level_json() | {"added_tokens": [{"id": 1}]}, "tokenizer.json is not a tokenizer"),
    ],
)
def test_tokenizers_that_are_refused(tmp_path: Path, tokenizer: Json | None, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        read_target(write_folder(tmp_path / "target", tokenizer))


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_sizes_of_a_folder(tmp_path: Path, key: str) -> None:
    target = write_folder(tmp_path / "target", byte_level_json(), **{key: None})
    with pytest.raises(ConversionError, match=f"config.json has no {key}"):
        read_target(target)
    with pytest.raises(ConversionError, match=r"config\.json does not exist"):
        (target / "config.json").unlink()
        read_target(target)
