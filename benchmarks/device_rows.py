"""The cost of a verify batch of each width over one row, wherever the layers are.

    python -m benchmarks.device_rows -m TARGET.gguf [-ngl -1] [--before 64 2048] [--widths 1 2 3 4]

A batch is decoded and a token sampled from each row, as in a greedy round. Then the memory is
rolled back to the batch's first token. Widths are interleaved. Figures are milliseconds of wall and
CPU time, medians of the repeats. GB/s are the bytes that a decode of one token reads, over the time
of one row. `python -m benchmarks.shapes` writes targets of other sizes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyllama_spec.drafters.model_drafter import weight_bytes
from pyllama_spec.engine import Batch, Context, Model, Sampler, SamplerParams

_N_BATCH = 512
# The first rounds build and capture the graphs of each width.
_WARM_UPS = 4


class Rows:
    """A context that decodes batches after the same prefix; each leaves one token there."""

    def __init__(
        self, model: Model, n_before: int, widths: Sequence[int], n_threads: int | None
    ) -> None:
        self.n_before, self.at = n_before, 0
        self.context = Context(
            model, n_ctx=n_before + len(widths) + max(widths), n_batch=_N_BATCH,
            n_rs_seq=max(widths), n_threads=n_threads, n_outputs_max=max(widths),
        )  # fmt: skip
        self._batch = Batch(_N_BATCH)
        self._sampler = Sampler(model, SamplerParams(temperature=0))

    def begin(self) -> None:
        """Rolls back to the prefix, or decodes it where that fails, as with a recurrent state."""
        if self.at and self.context.memory.rollback(0, self.n_before):
            self.at = self.n_before
            return
        self.context.memory.clear()
        for at in range(0, self.n_before, _N_BATCH):
            self._batch.clear()
            end = min(self.n_before, at + _N_BATCH)
            self._batch.extend([300 + i for i in range(at, end)], at)
            self.context.decode(self._batch)
        self.at = self.n_before

    def seconds(self, width: int) -> tuple[float, float]:
        """Decodes a batch, keeps its first token; returns the wall and the CPU seconds."""
        self._batch.clear()
        self._batch.extend([400 + i for i in range(width)], self.at, output_all=True)
        begin, cpu = time.perf_counter(), time.process_time()
        self.context.decode(self._batch)
        for i in range(width):
            self._sampler.sample(self.context, i)
        taken = time.perf_counter() - begin, time.process_time() - cpu
        self.at += 1
        if not self.context.memory.rollback(0, self.at):
            raise SystemExit(f"a batch of {width} cannot be rolled back to its first token")
        return taken


def measure(rows: Rows, widths: Sequence[int], repeats: int) -> dict[int, tuple[float, float]]:
    """Median milliseconds by width: wall time, CPU time."""
    taken: dict[int, list[tuple[float, float]]] = {width: [] for width in widths}
    for repeat in range(repeats + _WARM_UPS):
        rows.begin()
        for width in widths[:: 1 if repeat % 2 else -1]:
            seconds = rows.seconds(width)
            if repeat >= _WARM_UPS:
                taken[width].append(seconds)
    return {
        width: (
            1e3 * statistics.median(clock for clock, _ in seen),
            1e3 * statistics.median(cpu for _, cpu in seen),
        )
        for width, seen in taken.items()
    }


def line(name: str, values: Iterable[float], digits: int = 3) -> str:
    """A row of the table."""
    return f"{name:<12}" + "".join(f"{value:9.{digits}f}" for value in values)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-ngl", "--n-gpu-layers", type=int, default=-1)
    parser.add_argument("--before", type=int, nargs="+", default=[64])
    parser.add_argument("--widths", type=int, nargs="+", default=list(range(1, 10)))
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("-t", "--threads", type=int)
    args = parser.parse_args(argv)
    with Model(args.model, n_gpu_layers=args.n_gpu_layers) as model:
        n_bytes = weight_bytes(model)
        print(f"{args.model.name}: {model.description}, {model.placement}, {n_bytes / 1e9:.2f} GB")
        for n_before in args.before:
            rows = Rows(model, n_before, args.widths, args.threads)
            seen = measure(rows, args.widths, args.repeats)
            one = seen[min(seen)][0]
            print(f"behind {n_before} tokens, {n_bytes / one / 1e6:.0f} GB/s")
            print(line("rows", seen, 0))
            print(line("ms", (clock for clock, _ in seen.values())))
            print(line("over one", (clock / one for clock, _ in seen.values()), 2))
            print(line("cpu ms", (cpu for _, cpu in seen.values())), flush=True)
            rows.context.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
