"""The baseline of benchmarks: decoding in C, without code of this package."""

from __future__ import annotations

from collections.abc import Sequence

from pyllama_spec.engine.binding import check, ffi, lib
from pyllama_spec.engine.checks import count, int32
from pyllama_spec.engine.context import Context


def baseline_decode(
    context: Context, positions: Sequence[int], ids: Sequence[int], n_steps: int
) -> float:
    """Decodes one token of each of several sequences per step and takes the largest logit.

    The engine's own batched benchmark does the same, with a simpler sampler than ours.
    """
    n = len(ids)
    places = ffi.new("int32_t[]", [int32(p, "position") for p in positions])
    # [n_steps + 1, n]: the first row is read, the others are written.
    tokens = ffi.new("int32_t[]", n * (count(n_steps, "n_steps", 1) + 1))
    tokens[0:n] = [int32(i, "token id") for i in ids]
    seconds = ffi.new("double *")
    check(
        lib.llama_spec_baseline_decode(context.handle, n, places, tokens, n_steps, seconds),
        "cannot measure",
    )
    return float(seconds[0])
