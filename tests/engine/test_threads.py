"""A context's threads: the same numbers with any number of them, and no idle cost."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from pyllama_spec.engine import Batch, Context, Model, quantize, system
from tests.models import model_path
from tests.tiers import release_except

# Beyond 32 tokens the engine's kernels for many rows compute.
_SIZES = (1, 33, 100, 600)


def _decode(context: Context, n_tokens: int) -> None:
    context.memory.clear()
    batch = Batch(n_tokens)
    batch.extend([200 + 7 * i % 100 for i in range(n_tokens)], 0, output_last=True)
    context.decode(batch)


@pytest.mark.parametrize("flash_attn", [False, True])
@pytest.mark.parametrize(
    "kind", release_except(("F32", "BF16", "Q8_0", "Q4_0", "Q4_K_M", "Q2_K"), ("BF16", "Q4_0"))
)
def test_the_numbers_are_those_of_one_thread(kind: str, flash_attn: bool, tmp_path: Path) -> None:
    """For prompts and single tokens: the number of threads may change between two graphs."""
    path = tmp_path / "model.gguf"
    quantize(model_path("llama", n_vocab=512, n_embd=256, n_ff=512), path, kind)
    found: list[list[np.ndarray]] = []
    with Model(path) as model:
        for n_threads in (1, 2):
            with Context(model, n_ctx=640, n_threads=n_threads, flash_attn=flash_attn) as context:
                rows = []
                for n_tokens in _SIZES:
                    _decode(context, n_tokens)
                    rows.append(context.logits(n_tokens - 1).copy())
                found.append(rows)
    for n_tokens, one, two in zip(_SIZES, *found, strict=True):
        assert np.isfinite(one).all()
        assert np.array_equal(one, two), n_tokens


def test_workers_sleep_soon_after_a_decode() -> None:
    """Workers spin briefly for the next decode of a text, then sleep."""
    with Model(model_path("llama")) as model, Context(model, n_ctx=64, n_threads=2) as context:
        _decode(context, 8)
        before = time.process_time()
        time.sleep(0.6)
        assert time.process_time() - before < 0.05


# Clocks in MHz of a processor's cores, and the hardware threads of each.
_PROCESSORS = {
    "a phone's, of three kinds": ([3300] + 5 * [2900] + 2 * [1900], 1, 6),
    "a laptop's, of two": (4 * [5000] + 8 * [3700], 2, 4),
    "one kind, whose boost differs": ([5700, 5700, 5250, 5100], 2, 4),
    "unknown": (4 * [0], 1, 4),
}


@pytest.mark.parametrize("name", _PROCESSORS)
@pytest.mark.parametrize(
    ("quota", "n_most"),
    [
        ({}, 99), ({"cpu.max": "max 100000"}, 99), ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 99),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
    ],
)  # fmt: skip
def test_the_default_is_the_big_cores_that_have_time(
    name: str, quota: dict[str, str], n_most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks, n_siblings, expected = _PROCESSORS[name]
    files = {f"groups/{file}": text for file, text in quota.items()}
    n_cpus = n_siblings * len(clocks)
    for cpu in range(n_cpus):
        core = cpu // n_siblings
        if clocks[core]:
            files[f"cpu{cpu}/cpufreq/cpuinfo_max_freq"] = f"{clocks[core]}000\n"
        siblings = f"{core * n_siblings}-{core * n_siblings + n_siblings - 1}\n"
        files[f"cpu{cpu}/topology/thread_siblings_list"] = siblings
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text, encoding="ascii")
    monkeypatch.setattr(system, "_CPUS", tmp_path)
    monkeypatch.setattr(system, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(system, "_usable", lambda: range(n_cpus))
    assert system.default_n_threads() == min(expected, n_most)
    if n_most < n_cpus:
        with pytest.warns(UserWarning, match="n_threads"):
            assert system.bounded_n_threads(99) == n_most
