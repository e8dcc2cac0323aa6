"""The cost of snapshots of a recurrent state in a verify batch, and of a replay instead.

    python -m benchmarks.snapshot_cost [--arch qwen35] [--rows 8] [--repeats 15]
    python -m benchmarks.snapshot_cost -m q4.gguf --rows 4 --depths 4 --repeats 8

The model is random, of some 20 million parameters, or a file (benchmarks/shapes.py). The contexts
are interleaved, on one thread. Figures are medians of a round's processor time, which other
programs disturb less. A round is a batch of `rows` tokens, of which some are rejected.

    plain     the batch only, in a context without snapshots and without a rollback
    native    the batch with n_rs_seq snapshots; rejects as many tokens, at most half; rolls back
    replay    saves the state, decodes, restores it, decodes the accepted half again
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from time import process_time

from pyllama_spec.engine import Batch, Context, Model
from tests.models import model_path

DEPTHS = (2, 4, 8, 16)
# The sizes of the random model.
SIZES = {"n_embd": 512, "n_ff": 1536, "n_layer": 6, "n_head": 8, "n_vocab": 4096}


class Bench:
    """One context, with the text that its rounds continue."""

    def __init__(self, model: Model, n_rs_seq: int, n_rows: int) -> None:
        self.context = Context(
            model, n_ctx=2048, n_batch=256, n_ubatch=64, n_rs_seq=n_rs_seq, n_threads=1
        )
        self.n_rows, self.at = n_rows, 0
        self.batch = Batch(256)
        self._decode(list(range(32)))

    def _decode(self, tokens: list[int]) -> None:
        self.batch.clear()
        self.batch.extend(tokens, self.at, 0, output_all=True)
        self.context.decode(self.batch)
        self.at += len(tokens)

    def round(self, kind: str) -> float:
        """Runs a round; returns its milliseconds of processor time."""
        memory, start = self.context.memory, process_time()
        rows = list(range(100, 100 + self.n_rows))
        n_refused = self.n_rows // 2
        if kind == "replay":
            copy = memory.checkpoint(0)
            self._decode(rows)
            self.at -= self.n_rows
            memory.return_to(0, copy, self.at)
            self._decode(rows[: self.n_rows - n_refused])
        else:
            self._decode(rows)
            if kind == "native":
                n_refused = min(n_refused, self.context.n_rs_seq)
                self.at -= n_refused
                assert memory.rollback(0, self.at)
        ms = 1e3 * (process_time() - start)
        if self.at > 1900:
            memory.clear()
            self.at = 0
            self._decode(list(range(32)))
        return ms


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="qwen35")
    parser.add_argument("-m", "--model", type=Path)
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    with Model(args.model or model_path(args.arch, **SIZES)) as model:
        n_params, n_state = model.info.n_params / 1e6, model.info.state_bytes / 2**20
        print(f"{model.info.arch}, {n_params:.1f} M parameters, a state of {n_state:.2f} MiB")
        cases = [("plain", 0), ("replay", 0), *(("native", n) for n in args.depths)]
        benches = [Bench(model, n, args.rows) for _, n in cases]
        times: list[list[float]] = [[] for _ in cases]
        for i in range(args.repeats + 1):
            for (kind, _), bench, times_ms in zip(cases, benches, times, strict=True):
                ms = bench.round(kind)
                if i:
                    times_ms.append(ms)
        plain = times[0]
        for (kind, n), times_ms in zip(cases, times, strict=True):
            ratio = statistics.median(b / a for a, b in zip(plain, times_ms, strict=True))
            ms = statistics.median(times_ms)
            print(f"{kind:<7} n_rs_seq {n:>2}  {ms:8.2f} ms  x {ratio:.3f}")


if __name__ == "__main__":
    main()
