"""Small files with random weights of every architecture that has latent attention.

tests/fuzz/architectures.py finds the required tensors of a file by asking the engine; this module
has the sizes with which its graph works too.
"""

from __future__ import annotations

import hashlib
import random
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz import architectures
from tests.fuzz.architectures import complete, first_header
from tests.fuzz.gguf_bytes import GgufFile, Value
from tests.models import built_models

_HEADS_OF_THEIR_OWN = ("plm", "minicpm3")
_WITH_STATES = ("kimi-linear", "kimi-k3", "bailingmoe3", "glm5-next")
_WITH_INDEXER = ("deepseek32", "glm-dsa", "hy_v4", "deepseek4", "glm5-next")
_INDEXER_WIDTH, _N_INDEXER_HEADS = 64, 2
LATENT = (
    "deepseek2", "mistral4", *_HEADS_OF_THEIR_OWN, *_WITH_STATES,
    *_WITH_INDEXER[:-1],
)  # fmt: skip

QUANTISED_SIZES = 1
"""The seed of latent_path() whose heads are whole blocks of a quantised cache."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the attention: heads, and their rotated, unrotated and value dimensions."""

    n_head: int = 4
    n_embd: int = 64
    nope: int = 8
    rope: int = 8
    value: int = 16
    kv_rank: int = 16
    q_rank: int = 24


def random_sizes(rng: random.Random, *, is_quantised: bool) -> Sizes:
    """Sizes that the graphs take; with a quantised cache, whole blocks of 32."""
    n_head = rng.randrange(1, 9)
    return Sizes(
        n_head=n_head,
        n_embd=rng.choice((24, 40, 64, 100)),
        nope=32 if is_quantised else rng.choice((2, 6, 8, 18, 32)),
        rope=32 if is_quantised else rng.choice((2, 8, 10, 34)),
        value=32 if is_quantised else rng.choice((3, 8, 16, 24, 40)),
        kv_rank=rng.choice((32, 64) if is_quantised else (5, 12, 16, 33)),
        q_rank=rng.choice((7, 24, 32)),
    )


def _u32(value: int) -> Value:
    return Value("u32", value)


def _keys(arch: str, s: Sizes) -> dict[str, Value]:
    keys = {
        "embedding_length": _u32(s.n_embd),
        "attention.head_count": _u32(s.n_head),
        "attention.head_count_kv": _u32(1),
        "attention.kv_lora_rank": _u32(s.kv_rank),
        "attention.q_lora_rank": _u32(s.q_rank),
        "attention.key_length": _u32(s.kv_rank + s.rope),
        "attention.value_length": _u32(s.kv_rank),
        "attention.key_length_mla": _u32(s.nope + s.rope),
        "attention.value_length_mla": _u32(s.value),
        "rope.dimension_count": _u32(s.rope),
    }
    if arch in _HEADS_OF_THEIR_OWN:
        del keys["attention.key_length_mla"], keys["attention.value_length_mla"]
        keys["attention.head_count_kv"] = _u32(s.n_head)
        keys["attention.key_length"] = _u32(s.nope + s.rope)
        keys["attention.value_length"] = _u32(s.value)
    if arch in _WITH_STATES:
        keys["attention.head_count_kv"] = Value("[u32]", [0, 1, 0, 1])
        keys["kda.head_dim"] = _u32(16)
    if arch in _WITH_INDEXER:
        keys["attention.indexer.head_count"] = _u32(_N_INDEXER_HEADS)
        keys["attention.indexer.key_length"] = _u32(_INDEXER_WIDTH)
        keys["attention.indexer.top_k"] = _u32(8)
        keys["attention.indexer.types"] = Value("[u32]", [1, 1, 0, 1])
    if arch in ("deepseek4", "glm5-next", "hy_v4"):
        keys["hyper_connection.count"] = _u32(4)
    if arch == "hy_v4":
        keys["expert_gating_func"] = _u32(2)
    if arch == "glm5-next":  # nothing is rotated
        keys["rope.dimension_count"] = _u32(0)
        keys["attention.key_length"] = _u32(s.kv_rank)
        keys["attention.key_length_mla"] = _u32(s.nope)
    if arch == "deepseek4":  # one latent head of keys and values
        width = _u32(s.nope + s.rope)
        keys["attention.key_length"] = keys["attention.value_length"] = width
        keys["attention.output_group_count"] = _u32(2 if s.n_head % 2 == 0 else 1)
        keys["hash_layer_count"] = _u32(0)
    return keys


def _indexer(blk: str, s: Sizes) -> dict[str, tuple[int, ...]]:
    """Tensors that the loader does not ask for, and the graph needs."""
    return {
        f"{blk}indexer.k_norm.weight": (_INDEXER_WIDTH,),
        f"{blk}indexer.k_norm.bias": (_INDEXER_WIDTH,),
        f"{blk}indexer.proj.weight": (s.n_embd, _N_INDEXER_HEADS),
        f"{blk}indexer.attn_k.weight": (s.n_embd, _INDEXER_WIDTH),
        f"{blk}indexer.attn_q_b.weight": (s.q_rank, _N_INDEXER_HEADS * _INDEXER_WIDTH),
    }


def latent_file(arch: str, folder: Path, sizes: Sizes | None = None, seed: int = 0) -> Path:
    sizes = sizes or Sizes()
    file = first_header(arch)
    for name, value in _keys(arch, sizes).items():
        file.keys[f"{arch}.{name}"] = value
    if arch == "glm-dsa":
        for i in (0, 1, 3):
            file.tensors |= _indexer(f"blk.{i}.", sizes)
    path = folder / f"latent-{arch}.gguf"
    return write_random(complete(file, path), path, seed)


@cache
def _source_digest() -> str:
    sources = (Path(__file__), Path(architectures.__file__))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def latent_path(arch: str, seed: int) -> Path:
    """A kept file of an architecture of LATENT; made now if there is none."""
    path = built_models() / f"latent-{arch}-{seed}-{_source_digest()}.gguf"
    if not path.exists():
        rng = random.Random(f"{arch} {seed}")
        sizes = random_sizes(rng, is_quantised=seed == QUANTISED_SIZES)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            latent_file(arch, Path(folder), sizes, seed).replace(path)
    return path


def write_random(file: GgufFile, path: Path, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    data: dict[str, Any] = {}
    for name, shape in file.tensors.items():
        values = rng.standard_normal(int(np.prod(shape)))
        if "norm" in name:
            values = 1 + 0.1 * values
        elif name.endswith("ssm_a"):  # a decay
            values = -0.1 - np.abs(values)
        else:
            values /= 10 if len(shape) == 1 else np.sqrt(shape[0])
        data[name] = values.astype("<f4").tobytes()
    return file.write(path, data)
