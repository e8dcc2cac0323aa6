"""The cost of a step of an MTP head with the whole output matrix, and with a part of it.

    python -m benchmarks.mtp_output [--vocab 248320] [--slots 8192 16384 32768]

The weights are random, in the shape of Qwen3.5-4B's head (benchmarks/shapes.py). Times are
processor time of one thread, the minimum of 25 steps, which other programs disturb least.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.shapes import qwen35_4b
from pyllama_spec.drafters.output_part import reduced_output
from pyllama_spec.engine import Batch, Context, Model

N_STEPS = 25


def least_ms(context: Context) -> float:
    """The minimum time of a step of the head: the decode, and reading its candidates."""
    batch, took = Batch(1, n_row=context.n_row), []
    row = np.random.default_rng(1).standard_normal(context.n_row).astype(np.float32)
    for i in range(N_STEPS):
        batch.clear()
        batch.add(65 + i, i, output=True, row=row)
        begin = time.thread_time()
        context.decode(batch)
        context.draft_candidates(0)
        took.append(time.thread_time() - begin)
    context.memory.remove(0)
    return 1e3 * min(took)


def seconds(what: Callable[[], object]) -> float:
    """The processor time of a call."""
    begin = time.thread_time()
    what()
    return time.thread_time() - begin


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the model, and prints a line for each number of slots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--vocab", type=int, default=248320)
    parser.add_argument("--slots", type=int, nargs="+", default=[32768, 16384, 8192])
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path = qwen35_4b(args.vocab, 4).write(Path(folder) / "head.gguf")
        with (
            Model(path, load_mtp=True) as model,
            Context(
                model, n_ctx=64, n_batch=32, n_ubatch=32, n_threads=1, is_head=True
            ) as context,
        ):  # fmt: skip
            print(f"Q6_K, all {args.vocab} ids: {least_ms(context):.1f} ms a step")
            for n in args.slots:
                ids = None

                def prepare(n: int = n) -> None:
                    nonlocal ids
                    ids = reduced_output(context, n, model, lambda _: None)

                took = seconds(prepare)
                assert ids is not None
                new = seconds(lambda: ids.see(range(50000, 52000)))  # noqa: B023
                print(
                    f"{n} ids: {least_ms(context):.1f} ms a step, made ready in {took:.2f} s, "
                    f"{1e3 * new:.0f} ms for 2,000 new ids",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
