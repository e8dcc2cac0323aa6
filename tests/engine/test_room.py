"""The size of a context's memory; too large ones are refused before the kernel kills us."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.engine import Context, ModelInfo
from pyllama_spec.engine.binding import lib
from pyllama_spec.errors import OutOfMemoryError
from tests.models import STATES, STATES_WITHOUT_SNAPSHOTS, model_path
from tests.oracles import tiny

# What a number takes in blocks of 32.
BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}


@pytest.fixture(autouse=True)
def _no_limit() -> Iterator[None]:
    yield
    lib.llama_spec_limit_memory(0)


def opened(arch: str, **params: Any) -> Context:
    """A context whose cache is what matters."""
    values: dict[str, Any] = {"n_ctx": 2048, "n_batch": 64, "n_ubatch": 64, "n_threads": 1}
    return Context(tiny(arch), **{**values, **params})


def attention(arch: str, n_layers: int, n_cells: int) -> int:
    """Bytes of K and V of so many layers, in F16."""
    info, meta = tiny(arch).info, tiny(arch).metadata
    head = int(meta.get(f"{arch}.attention.key_length", info.n_embd // info.n_head))
    return int(n_layers * n_cells * info.n_head_kv * head * 2 * 2)


def state_bytes(info: ModelInfo, n_seq_max: int, n_rs_seq: int) -> int:
    """Bytes of a context's recurrent states, as docs/hybrid.md has them."""
    base = info.state_bytes + (info.snapshot_base_bytes if n_rs_seq else 0)
    return n_seq_max * (base + n_rs_seq * info.snapshot_token_bytes)


@pytest.mark.parametrize("kind", list(BYTES))
def test_each_layer_s_heads_count(kind: str) -> None:
    model = tiny("llama", n_embd=128)  # heads of 32 numbers, a block
    with Context(model, n_ctx=2048, type_k=kind, type_v=kind, flash_attn=True) as context:
        assert context.memory_bytes == 4 * 2048 * model.info.n_head_kv * 32 * 2 * BYTES[kind]


def test_a_sliding_window_is_no_longer_than_it_has_to_be() -> None:
    n_swa = tiny("gemma3").info.n_swa
    assert 0 < n_swa < 256
    with opened("gemma3") as whole, opened("gemma3", swa_full=False) as cut:
        assert whole.memory_bytes == attention("gemma3", 4, 2048)
        n_cells = 256  # a window and a batch, rounded up
        n_sliding = sum(
            cut.memory_bytes == attention("gemma3", 4 - n, 2048) + attention("gemma3", n, n_cells)
            for n in range(1, 5)
        )
        assert n_sliding == 1
    with opened("gemma3", swa_full=False, n_seq_max=4) as context:
        assert context.memory_bytes < whole.memory_bytes


@pytest.mark.parametrize("arch", ["qwen35", "lfm2"])
def test_recurrent_layers_have_no_cache(arch: str) -> None:
    """States of each sequence and their snapshots, whatever n_ctx is; K and V of the others."""
    with opened(arch) as short, opened(arch, n_ctx=4096) as long:
        per_token = (long.memory_bytes - short.memory_bytes) // 2048
        assert 0 < per_token < 4 * 512
        assert arch != "qwen35" or per_token == attention(arch, 2, 1)
        state = short.memory_bytes - 2048 * per_token
        assert state > 0
    with opened(arch, n_rs_seq=3) as context:
        more = state_bytes(tiny(arch).info, 1, 3)
        assert context.memory_bytes == 2048 * per_token + more
    with opened(arch, n_seq_max=2) as context:
        assert context.memory_bytes == 2048 * per_token + 2 * state


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen35", "lfm2", "mamba2"])
def test_what_is_refused_is_what_the_engine_would_take(arch: str) -> None:
    """The refused size equals the engine's, to the byte, over all parts of a memory."""
    n = opened(arch, swa_full=False).memory_bytes
    lib.llama_spec_limit_memory(n)
    for _ in range(2):
        opened(arch, swa_full=False).close()
    lib.llama_spec_limit_memory(n - 1)
    for _ in range(2):
        with pytest.raises(OutOfMemoryError):
            opened(arch, swa_full=False)
    lib.llama_spec_limit_memory(0)
    with opened(arch) as context:
        assert context.memory_bytes


def test_keywords_are_named_where_a_draft_or_embeddings_do_not_fit() -> None:
    target, draft = str(model_path("llama")), str(model_path("llama", seed=3))
    with Llama(target, n_ctx=512, n_parallel=2, n_threads=1) as llm:
        lib.llama_spec_limit_memory(llm.context.memory_bytes + 1000)
        with pytest.raises(OutOfMemoryError):
            Llama(target, n_ctx=1024, n_parallel=2, n_threads=1)
    with pytest.raises(OutOfMemoryError):
        Llama(target, draft=draft, n_ctx=512, n_parallel=2, n_threads=1)
    with Llama(target, embedding=True, pooling_type="mean", n_ctx=512, n_threads=1) as llm:
        lib.llama_spec_limit_memory(1000)
        with pytest.raises(OutOfMemoryError):
            llm.embed("the cat")


# ---- recurrent states, before they are allocated

PAD = 4096  # buffers are rounded up


@pytest.mark.parametrize("arch", STATES)
def test_bytes_of_snapshots(arch: str) -> None:
    model = tiny(arch)

    def opened(n_seq_max: int, n_rs_seq: int) -> int:
        with Context(
            model, n_ctx=64 * n_seq_max, n_batch=64, n_ubatch=32, n_threads=1,
            n_seq_max=n_seq_max, n_rs_seq=n_rs_seq,
        ) as context:  # fmt: skip
            assert context.n_rs_seq == (0 if arch in STATES_WITHOUT_SNAPSHOTS else n_rs_seq)
            return context.memory_bytes

    assert model.info.state_bytes > 0
    for n_seq_max in (1, 4):
        without = opened(n_seq_max, 0)
        for n_rs_seq in (1, 4, 8):
            more = 0 if arch in STATES_WITHOUT_SNAPSHOTS else n_rs_seq
            extra = opened(n_seq_max, n_rs_seq) - without
            said = state_bytes(model.info, n_seq_max, more) - state_bytes(model.info, n_seq_max, 0)
            assert abs(extra - said) < PAD
        if model.info.is_recurrent:
            assert abs(without - state_bytes(model.info, n_seq_max, 0)) < PAD


def test_a_memory_of_positions_has_no_state() -> None:
    assert state_bytes(tiny("llama").info, 4, 8) == 0
