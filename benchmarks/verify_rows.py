"""The cost of a verify batch over one row, beside the engine's own kernels in the same run.

    python -m benchmarks.verify_rows [-m MODEL.gguf ...] [--threads 1]
    python -m benchmarks.verify_rows [--types Q4_K_M BF16] [--random 14] [--threads 1]

Without -m the model is SmolLM2 in some types. With `--random N` it has N random layers of the sizes
of a Llama of 1B parameters (14 are 0.9B), and its weights are read from memory, not from a cache. A
batch follows 64 tokens, and has logits at every row. Each side has a model and a context of its
own; they are measured in turns. Figures are medians of the repeats, of the thread's processor time,
or of wall time with more than one thread.

    ours, stock     the time of a batch of that width over one row of the same side
    beside stock    our time over that of the engine's own kernels at the same width
    GB/s            bytes of the file over the time of one row: the roofline's memory bandwidth
    gmac per s      10^9 multiply-adds of all parameters per second: the roofline's compute
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path

from pyllama_spec.engine import Batch, Context, Model, quantize
from pyllama_spec.engine.system import stock_kernels
from tests.conftest import smollm2
from tests.models import build

TYPES = ("Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "Q4_1", "BF16")
WIDTHS = (1, 2, 3, 4, 5, 8, 16)
N_BEFORE = 64
SIZES = {"n_embd": 2048, "n_ff": 8192, "n_head": 32, "n_head_kv": 8, "n_vocab": 32000}


def random_model(n_layers: int, kind: str, work: Path) -> Path:
    """The path of a random model of that type; it and its F32 source are kept for later runs."""
    work.mkdir(parents=True, exist_ok=True)
    source = work / f"random-{n_layers}.F32.gguf"
    if not source.exists():
        part = build("llama", source.with_suffix(".part"), n_layer=n_layers, **SIZES)
        part.rename(source)
    out = work / f"random-{n_layers}.{kind}.gguf"
    if not out.exists():
        quantize(source, out.with_suffix(".part"), kind)
        out.with_suffix(".part").rename(out)
    return out


class Bench:
    """A context that decodes a batch of any width after the same tokens."""

    def __init__(self, model: Model, n_threads: int) -> None:
        self.context = Context(
            model, n_ctx=256, n_outputs_max=max(WIDTHS), n_threads=n_threads, n_batch=N_BEFORE
        )
        self.batch = Batch(N_BEFORE)
        self.clock: Callable[[], float] = time.thread_time if n_threads == 1 else time.perf_counter
        self.batch.extend([300 + i for i in range(N_BEFORE)], 0)
        self.context.decode(self.batch)

    def seconds(self, width: int) -> float:
        """Decodes one batch, removes it from the memory again, and returns its seconds."""
        self.batch.clear()
        self.batch.extend([400 + i for i in range(width)], N_BEFORE, output_all=True)
        start = self.clock()
        self.context.decode(self.batch)
        self.context.logits(width - 1)
        taken = self.clock() - start
        self.context.memory.remove(0, N_BEFORE)
        return taken


def measure(path: Path, n_threads: int, n_repeats: int) -> dict[str, dict[int, float]]:
    """Median seconds by side and width."""
    seconds: dict[str, dict[int, list[float]]] = {side: {} for side in ("ours", "stock")}
    with ExitStack() as stack:
        benches = {"ours": Bench(stack.enter_context(Model(path)), n_threads)}
        with stock_kernels():  # weights in the order of the engine's own kernels
            benches["stock"] = Bench(stack.enter_context(Model(path)), n_threads)
        for repeat in range(n_repeats + 1):
            for at, width in enumerate(WIDTHS):
                order = ("ours", "stock") if (repeat + at) % 2 else ("stock", "ours")
                for side in order:
                    with stock_kernels() if side == "stock" else nullcontext():
                        taken = benches[side].seconds(width)
                    if repeat:  # the first one warms up
                        seconds[side].setdefault(width, []).append(taken)
        for bench in benches.values():
            bench.context.close()
    return {
        side: {width: statistics.median(times) for width, times in by_width.items()}
        for side, by_width in seconds.items()
    }


def show(kind: str, path: Path, medians: dict[str, dict[int, float]]) -> None:
    """Prints the lines of a type."""
    n_bytes = path.stat().st_size
    with Model(path) as model:
        n_params = model.info.n_params
    ours, stock = medians["ours"], medians["stock"]
    print(f"{kind}: {n_bytes / 1e6:.0f} MB, one row {1e3 * ours[1]:.2f} ms, ", end="")
    print(f"{n_bytes / ours[1] / 1e9:.1f} GB/s")
    for name, digits, values in (
        ("ours", 2, [ours[w] / ours[1] for w in WIDTHS]),
        ("stock", 2, [stock[w] / stock[1] for w in WIDTHS]),
        ("beside stock", 2, [ours[w] / stock[w] for w in WIDTHS]),
        ("gmac per s", 0, [w * n_params / ours[w] / 1e9 for w in WIDTHS]),
    ):
        print(f"  {name:<13}{' '.join(f'{x:6.{digits}f}' for x in values)}", flush=True)


def main() -> None:
    """Measures each type, and prints its lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", nargs="+", type=Path, default=())
    parser.add_argument("--types", nargs="+", default=TYPES)
    parser.add_argument("--random", type=int, default=0, metavar="LAYERS")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "pls-random")
    args = parser.parse_args()
    print(f"rows: {' '.join(f'{w:6d}' for w in WIDTHS)}", flush=True)
    paths = {path.stem: path for path in args.model}
    for kind in () if paths else args.types:
        paths[kind] = random_model(args.random, kind, args.work) if args.random else smollm2(kind)
    for kind, path in paths.items():
        show(kind, path, measure(path, args.threads, args.repeats))


if __name__ == "__main__":
    main()
