"""A prompt gives the same memory and the same row, bit by bit, for every batch size.

The part of a prompt that a round reads beside texts depends on the clock
(PromptPace): no text may depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.engine import Batch, Context, Model, quantize
from tests.conftest import smollm2
from tests.models import model_path
from tests.oracles import prompt_tokens
from tests.tiers import release_except

N = 300
# Sizes in turns: what a pace gives, and what is left of a prompt.
CUTS = ((32,), (64,), (96, 32, 160), (256, 32), (32, 7, 64))
KINDS = ("llama", "gemma3", "qwen35", "mamba2")
MORE_KINDS = ("qwen3", "qwen3moe", "gpt-oss", "lfm2", "rwkv7")
TYPES = ("Q8_0", "Q4_K_M", "Q6_K", "Q4_0", "Q4_1", "IQ4_NL", "F16", "Q2_K")


def read(
    model: Model, tokens: Sequence[int], cuts: Sequence[int], n_threads: int
) -> tuple[bytes, npt.NDArray[np.float32]]:
    """The memory's state after a prompt, and the row of its last token."""
    with Context(
        model, n_ctx=512, n_batch=512, n_ubatch=512, n_threads=n_threads, n_threads_batch=n_threads
    ) as context:
        batch, at, i, n = Batch(512), 0, 0, 0
        while at < len(tokens):
            n = min(cuts[i % len(cuts)], len(tokens) - at)
            batch.clear()
            batch.extend(tokens[at : at + n], at, output_last=True)
            context.decode(batch)
            at, i = at + n, i + 1
        return context.memory.save(), context.logits(n - 1).copy()


def check(
    path: Path, tokens: Sequence[int], all_cuts: Sequence[Sequence[int]], n_threads: int = 1
) -> None:
    with Model(path) as model:
        memory, row = read(model, tokens, (512,), 1)
        for cuts in all_cuts:
            found, found_row = read(model, tokens, cuts, n_threads)
            assert np.array_equal(found_row, row), cuts
            assert found == memory, cuts


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_prompt(kind: str) -> None:
    check(model_path(kind), prompt_tokens(N, seed=1), CUTS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MORE_KINDS)
def test_parts_of_a_prompt_on_two_threads(kind: str) -> None:
    check(model_path(kind), prompt_tokens(N, seed=1), CUTS, 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", release_except(TYPES, ("Q4_K_M",)))
def test_parts_of_a_prompt_of_a_real_model(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"{kind}.gguf"
    quantize(smollm2("BF16"), path, kind)
    tokens = [5 + i * i * 7 % 40_000 for i in range(N)]
    check(path, tokens, CUTS[:3])
