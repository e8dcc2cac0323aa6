"""What an MTP head adds to reading a prompt, in the shape of Qwen3.5-4B.

    python -m benchmarks.mtp_prefill [--layers 4 8] [--prompt 2000] [--threads 1] [--repeat 2]

Files of random weights with some of its 32 layers, one in four with attention, and with its head:
width 2,560, feed-forward 9,216, Q4_K. Both sides read the same prompt, in turn, and their processor
times count. What a layer takes is the difference between two numbers of layers; what the head adds
does not depend on how many there are. The last line is made of both for 32 layers. Delta nets and
heads of attention are narrower here than the model's, so that its share is smaller.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mtp_output import write_model
from pyllama_spec.drafters import Mtp, NoDrafter
from pyllama_spec.engine import Context, Model
from pyllama_spec.speculative import SequenceState, SpeculativeLoop

N_LAYER, INTERVAL, N_VOCAB = 32, 4, 32768


def read_s(path: Path, n_prompt: int, n_threads: int, repeat: int) -> tuple[float, float]:
    """Processor seconds of a prompt, plain and with the head: the least of each."""
    prompt = [int(i) for i in np.random.default_rng(0).integers(300, 20000, n_prompt)]
    drafter = Mtp()
    took: tuple[list[float], list[float]] = ([], [])
    options: dict[str, Any] = {"n_ctx": n_prompt + 64, "n_threads": n_threads, "n_rs_seq": 6}
    with (
        Model(path, load_mtp=True) as model,
        Context(model, **options) as alone,
        Context(model, target_layers=drafter.target_layers, **options) as kept,
    ):
        loops = [SpeculativeLoop(alone, NoDrafter()), SpeculativeLoop(kept, drafter)]
        for i in range(repeat):
            for loop, out in list(zip(loops, took, strict=True))[:: 1 if i % 2 else -1]:
                loop.target.memory.clear()
                loop.drafter.truncate(0, 0)
                begin = time.process_time()
                loop.prefill(SequenceState(), prompt)
                out.append(time.process_time() - begin)
        drafter.close()
    return min(took[0]), min(took[1])


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the models, and prints a line for each and one for all layers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--layers", type=int, nargs=2, default=[4, 8])
    parser.add_argument("--prompt", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args(argv)
    plain, added = [], []
    for n_layer in args.layers:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_model(path, N_VOCAB, "Q6_K", n_layer, INTERVAL)
            alone_s, both_s = read_s(path, args.prompt, args.threads, args.repeat)
        plain.append(alone_s)
        added.append(both_s - alone_s)
        print(
            f"{n_layer} layers, {args.prompt} tokens: {alone_s:.2f} s plain, {both_s:.2f} s with "
            f"the head ({both_s / alone_s:.3f})",
            flush=True,
        )
    layer_s = (plain[1] - plain[0]) / (args.layers[1] - args.layers[0])
    whole_s = plain[0] + (N_LAYER - args.layers[0]) * layer_s
    ratios = " and ".join(f"{1 + one / whole_s:.3f}" for one in added)
    print(f"{layer_s:.2f} s a layer: {whole_s:.1f} s for {N_LAYER} layers, {ratios} with the head")
    return 0


if __name__ == "__main__":
    sys.exit(main())
