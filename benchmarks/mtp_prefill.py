"""The cost of an MTP head in decoding a prompt, in the shape of Qwen3.5-4B.

    python -m benchmarks.mtp_prefill [--layers 4] [--prompt 2000] [--threads 1] [--repeat 2]
    python -m benchmarks.mtp_prefill -m q4.gguf --layers 32 --repeat 1

The model has random weights (benchmarks/shapes.py), some of the 32 layers, one in four with
attention, the head and all 248,320 ids; -m takes an existing file. Three sides decode the same
prompt, interleaved by batches: plain, plain with the snapshots of the recurrent state that drafts
need, and with the head. Times are processor time. The last line extrapolates layers and snapshots
to 32 layers, and adds the head once.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shapes import qwen35_4b
from pyllama_spec.drafters import Mtp, NoDrafter
from pyllama_spec.engine import Context, Model
from pyllama_spec.speculative import Round, SequenceRun, SequenceState, SpeculativeLoop

N_LAYER, N_VOCAB = 32, 248320


def read_s(path: Path, n_prompt: int, n_threads: int, repeat: int) -> list[float]:
    """The minimum processor seconds of a prompt: plain, with snapshots, with the head."""
    prompt = [int(i) for i in np.random.default_rng(0).integers(300, 20000, n_prompt)]
    drafter = Mtp()
    options: dict[str, Any] = {"n_ctx": n_prompt + 64, "n_batch": 512, "n_threads": n_threads}
    n_snapshots = drafter.max_draft + 1  # as Llama opens it
    with (
        Model(path, load_mtp=True) as model,
        Context(model, **options) as alone,
        Context(model, n_rs_seq=n_snapshots, **options) as ready,
        Context(
            model, target_layers=drafter.target_layers, n_rs_seq=n_snapshots, **options
        ) as kept,
    ):  # fmt: skip
        rounds = [SpeculativeLoop(context, NoDrafter()).round for context in (alone, ready)]
        rounds.append(SpeculativeLoop(kept, drafter).round)
        took = [_in_turn(rounds, prompt, turn=i % len(rounds)) for i in range(repeat)]
        drafter.close()
    return [min(of) for of in zip(*took, strict=True)]


def _in_turn(rounds: Sequence[Round], prompt: Sequence[int], *, turn: int) -> list[float]:
    """Processor seconds of a prompt on each side, interleaved by batches."""
    runs, took = [], [0.0] * len(rounds)
    for round_ in rounds:
        round_.target.memory.clear()
        round_.drafter.truncate(0, 0)
        runs.append(SequenceRun(SequenceState(), prompt, remember=False))
        round_.begin(runs[-1])
    order = [*range(turn, len(rounds)), *range(turn)]
    while any(run.n_missing for run in runs):
        for i in order:
            if runs[i].n_missing:
                begin = time.process_time()
                for _, step in rounds[i].step([runs[i]]):
                    if step.error is not None:
                        raise step.error
                took[i] += time.process_time() - begin
    return took


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the model, and prints a line for it and one for all layers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("-m", "--model", type=Path, help="an existing file of --layers")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or Path(folder) / "model.gguf"
        if args.model is None:
            qwen35_4b(N_VOCAB, args.layers).write(path)
        alone_s, ready_s, both_s = read_s(path, args.prompt, args.threads, args.repeat)
    print(
        f"load {os.getloadavg()[0]:.1f}; {args.layers} layers, {args.prompt} tokens: "
        f"{alone_s:.2f} s plain, {ready_s:.2f} s with snapshots ({ready_s / alone_s:.3f}), "
        f"{both_s:.2f} s with the head ({both_s / alone_s:.3f})"
    )
    times = N_LAYER / args.layers
    whole_s, head_s = alone_s * times, both_s - ready_s
    print(
        f"{whole_s:.1f} s for {N_LAYER} layers; the head adds {head_s:.2f} s, "
        f"{head_s / (alone_s / args.layers):.2f} layers: "
        f"{(ready_s * times + head_s) / whole_s:.3f} of plain"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
