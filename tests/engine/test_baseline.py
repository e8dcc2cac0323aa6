"""The C loop of the benchmarks is right, and its arguments are checked."""

from __future__ import annotations

import pytest

from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.engine.binding import check, ffi, lib
from tests.oracles import prompt_tokens, tiny, tiny_context


def baseline(context: Context, first: list[int], pos: list[int], n: int) -> list[list[int]]:
    """The n tokens that follow in each sequence."""
    n_seq = len(first)
    ids = ffi.new("int32_t[]", max(n + 1, 1) * max(n_seq, 1))
    ids[0:n_seq] = first
    seconds = ffi.new("double *")
    code = lib.llama_spec_baseline_decode(context.handle, n_seq, pos, ids, n, seconds)
    check(code, "the baseline failed")
    assert seconds[0] > 0
    return [[ids[(i + 1) * n_seq + s] for i in range(n)] for s in range(n_seq)]


def greedy(model: Model, prompt: list[int], n: int) -> list[int]:
    """The n likeliest tokens after a prompt, one by one."""
    text = list(prompt)
    with tiny_context(model) as context:
        batch = Batch(64)
        for start in [0, *range(len(prompt), len(prompt) + n - 1)]:
            batch.clear()
            batch.extend(text[start:], start, output_last=True)
            context.decode(batch)
            text.append(int(context.logits(batch.n_tokens - 1).argmax()))
    return text[len(prompt) :]


def fed(context: Context, *prompts: list[int]) -> None:
    """Decodes all but the last token of each prompt."""
    for seq, prompt in enumerate(prompts):
        batch = Batch(64)
        batch.extend(prompt[:-1], 0, seq)
        context.decode(batch)


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen35", "mamba2"])
def test_the_tokens_are_those_of_plain_decoding(arch: str) -> None:
    """In each sequence, for prompts of unequal length; later decodes are right as well."""
    model, n = tiny(arch), 12
    prompts = [prompt_tokens(5 + 3 * i, seed=i) for i in range(3)]
    expected = [greedy(model, prompt, 2 * n) for prompt in prompts]
    with tiny_context(model, n_seq_max=3, n_rs_seq=0) as context:
        fed(context, *prompts)
        got = baseline(context, [p[-1] for p in prompts], [len(p) - 1 for p in prompts], n)
        assert got == [tokens[:n] for tokens in expected]
        pos = [len(p) - 1 + n for p in prompts]
        got = baseline(context, [tokens[-1] for tokens in got], pos, n)
        assert got == [tokens[n:] for tokens in expected]
        assert context.memory.positions(2) == (context.memory.positions(2)[0], pos[2] + n - 1)
