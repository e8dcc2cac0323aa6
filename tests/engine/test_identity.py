"""A state's identity covers exactly the settings that its numbers depend on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec.engine import Adapter, Context, Model
from pyllama_spec.engine.context import first_difference
from pyllama_spec.engine.identity import digest_of
from tests.models import model_path
from tests.models.adapter import write_adapter

OTHER_SETTINGS: list[dict[str, Any]] = [
    {"type_k": "q8_0"}, {"type_k": "f32"}, {"type_v": "f32"}, {"flash_attn": True},
    {"type_v": "q8_0", "flash_attn": True}, {"rope_freq_base": 5000.0}, {"rope_freq_scale": 0.5},
    {"rope_scaling": "linear"}, {"rope_scaling": "yarn", "yarn_ext_factor": 1.0},
    {"yarn_attn_factor": 2.0}, {"yarn_beta_fast": 16.0}, {"yarn_beta_slow": 2.0},
    {"yarn_orig_ctx": 64}, {"attention_type": "non-causal"}, {"n_ctx": (1 << 16) + 256},
]  # fmt: skip
EQUAL_SETTINGS: list[dict[str, Any]] = [
    {"n_ctx": 300}, {"n_batch": 8}, {"n_ubatch": 8}, {"n_seq_max": 2}, {"n_threads": 2},
    {"swa_full": False}, {"target_layers": (1,)}, {"flash_attn": False}, {"n_outputs_max": 4},
]  # fmt: skip


def context(model: Model, **options: Any) -> Context:
    return Context(model, **{"n_ctx": 256, "n_batch": 32, "n_threads": 1, **options})


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(model_path("llama", n_embd=128))


@pytest.mark.parametrize("options", OTHER_SETTINGS, ids=str)
def test_settings_that_change_what_is_computed(model: Model, options: dict[str, Any]) -> None:
    with context(model) as plain, context(model, **options) as other:
        assert plain.settings() != other.settings()
        name = first_difference(plain.settings(), other.settings())
        assert name is not None
        assert any(name.startswith(f"{option}=") for option in options)


@pytest.mark.parametrize("options", EQUAL_SETTINGS, ids=str)
def test_settings_that_do_not(model: Model, options: dict[str, Any]) -> None:
    with context(model) as plain, context(model, **options) as other:
        assert plain.settings() == other.settings()
        assert first_difference(plain.settings(), other.settings()) is None


def test_a_model_is_its_weights_and_its_keys(tmp_path: Path) -> None:
    """The name and the date of a file do not count; one changed weight does."""
    path = model_path("llama")
    copy = tmp_path / "another name.gguf"
    shutil.copy(path, copy)
    os.utime(copy, (1, 1))
    identity = Model(path).identity
    assert Model(copy).identity == identity
    for at in (-1, -(1 << 12), copy.stat().st_size // 2):
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        copy.write_bytes(data)
        assert Model(copy).identity != identity
    other = Model(path, kv_overrides={"llama.rope.freq_base": 777.0}).identity
    assert other != identity
    assert Model(path, kv_overrides={"llama.rope.freq_base": np.int64(777)}).identity == other
    assert Model(model_path("llama", seed=5)).identity != identity


def test_a_file_that_was_written_to_since_is_like_no_other(tmp_path: Path) -> None:
    """A file written since the load matches no other: memory may hold the old weights."""
    path = tmp_path / "model.gguf"
    shutil.copy(model_path("llama"), path)
    old = Model(path, use_mmap=False)
    path.write_bytes(model_path("llama", seed=5).read_bytes())
    new = Model(path)
    assert len({old.identity, new.identity, Model(model_path("llama")).identity}) == 3
    gone = Model(path, use_mmap=False)
    path.unlink()
    assert gone.identity not in (new.identity, Model(model_path("llama", seed=5)).identity)


def test_pieces_of_a_large_file_and_all_parts_of_a_split_one(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    data = bytearray(40 << 20)
    path.write_bytes(data)
    digests = {digest_of(path)}
    for at in (0, len(data) - 1, 12345 * 16, 20 << 20):
        for i in range(1 << 16):  # a range of weights: every piece is smaller than this
            data[(at + i) % len(data)] ^= 1
        path.write_bytes(data)
        digests.add(digest_of(path))
    path.write_bytes(data[:-1])
    digests.add(digest_of(path))
    assert len(digests) == 6
    parts = [tmp_path / f"split-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    for part in parts:
        part.write_bytes(b"x" * 100)
    whole = digest_of(parts[0])
    parts[2].write_bytes(b"x" * 99 + b"y")
    assert digest_of(parts[0]) != whole
    parts[1].unlink()
    assert digest_of(parts[0]) != digest_of(parts[0])


def test_adapters_by_content_scale_and_order(model: Model, tmp_path: Path) -> None:
    path = write_adapter(model.path, tmp_path / "a.gguf", seed=1)
    one, same = Adapter(model, path), Adapter(model, path)
    write_adapter(model.path, path, seed=2)  # the next one of a training, in the same place
    other = Adapter(model, path)
    with context(model) as opened:
        plain = opened.settings()

        def key(*pairs: tuple[Adapter, float]) -> object:
            opened.set_adapters(pairs)
            assert opened.settings() == opened.settings(pairs)
            return opened.settings()

        assert key((one, 1.0)) == key((same, 1))
        keys = [
            plain, key((one, 1.0)), key((one, 0.5)), key((other, 1.0)), key((one, -1.0)),
            key((one, 1.0), (other, 1.0)),
        ]  # fmt: skip
        assert len(set(map(str, keys))) == len(keys)
        # The engine leaves out what has the scale 0.
        assert key((one, 0.0)) == key() == plain
        assert first_difference(plain, opened.settings([(one, 1.0)])) == (
            "other adapters, or other scales of them"
        )
