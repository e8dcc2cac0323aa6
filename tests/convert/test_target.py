"""The target: its sizes and its vocabulary."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from pyllama_spec.errors import ModelLoadError
from pyllama_spec.gguf.reader import read_keys
from pyllama_spec.gguf.target import read_target
from tests.convert.tools import (
    N_VOCAB,
    convert,
    convert_head,
    make_head,
    write_head,
    write_target,
)
from tests.fuzz.mutated import mutate
from tests.models import model_path


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
        ("eagle3", {"target_layers": [1]}, "is of kind 'eagle3', not the target"),
        ("clip", {}, "is of kind 'clip', not the target"),
        ("llama", {"n_vocab": 0}, r"has no tokenizer\.ggml\.tokens"),
    ],
)
def test_no_target(tmp_path: Path, arch: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        read_target(write_target(tmp_path / "a.gguf", arch, **keys))


def test_keys_are_needed(tmp_path: Path) -> None:
    whole = write_target(tmp_path / "a.gguf").read_bytes()
    for name in (b"llama.block_count", b"llama.embedding_length"):
        (tmp_path / "a.gguf").write_bytes(whole.replace(name, name[:-1] + b"?"))
        with pytest.raises(ModelLoadError, match=f"has no .*{name.decode()}"):
            read_target(tmp_path / "a.gguf")
    later = GGUFWriter(tmp_path / "b.gguf", "llama")
    later.kv_data[0].clear()
    later.add_uint16("split.no", 1)
    later.write_header_to_file()
    later.write_kv_data_to_file()
    later.close()
    with pytest.raises(ModelLoadError, match="a later part of a split model; give the first"):
        read_target(tmp_path / "b.gguf")


def test_damaged_targets(tmp_path: Path) -> None:
    """A target that is cut or has changed bytes gives facts or a ModelLoadError, no traceback."""
    whole = write_target(tmp_path / "a.gguf").read_bytes()
    part = tmp_path / "b.gguf"
    for n in [*range(60), *range(60, len(whole) - 64, 97)]:
        part.write_bytes(whole[:n])
        with pytest.raises(ModelLoadError, match=r"b\.gguf"):
            read_target(part)
    draw = random.Random(1)
    for _ in range(300):
        part.write_bytes(mutate(bytearray(whole), draw))
        try:
            read_target(part)
        except ModelLoadError as error:
            assert "b.gguf" in str(error)
    for data, message in (
        (b"", "is empty"),
        (b"GGML" + bytes(40), "starts with b'GGML'"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
    ):
        part.write_bytes(data)
        with pytest.raises(ModelLoadError, match=message):
            read_target(part)
    with pytest.raises(ModelLoadError, match=r"none\.gguf does not exist"):
        read_target(tmp_path / "none.gguf")
