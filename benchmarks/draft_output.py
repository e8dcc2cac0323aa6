"""The cost of EAGLE-3 and DFlash drafts with the whole output matrix, and with a part of it.

    python -m benchmarks.draft_output [--vocab 151936] [--type Q6_K] [--slots 32768 16384 8192]

The drafts have random weights, for a target in the shape of Qwen3-4B: width 2,560, feed-forward
9,728, Q4_K, no vocabulary of their own. EAGLE-3 has one layer, DFlash five and blocks of 16. A step
drafts one token with EAGLE-3, a block with DFlash. Times are processor time of one thread, the
minimum of some steps, which other programs disturb least.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mtp_output import seconds, write_quantised
from pyllama_spec.drafters.output_part import reduced_output
from pyllama_spec.engine import Batch, Context, Model
from tests.models import dflash, eagle3
from tests.models.sketch import Sketch

WIDTH, N_FF, BLOCK = 2560, 9728, 16
HEADS: dict[str, Any] = {"n_head": 32, "n_head_kv": 8, "head_dim": 128}
N_STEPS = {"eagle3": 25, "dflash": 5}


def sketch(kind: str, n_vocab: int) -> Sketch:
    """The sketch of a draft without its embedding and output matrix."""
    m: eagle3._Draft | dflash._Draft
    if kind == "eagle3":
        m = eagle3._Draft(
            eagle3.Eagle3Config(
                n_vocab=n_vocab, target_n_embd=WIDTH, target_layers=(2, 17, 32), n_embd=WIDTH,
                n_ff=N_FF, own_embedding=False, own_output=False, **HEADS,
            )
        )  # fmt: skip
    else:
        m = dflash._Draft(
            dflash.DFlashConfig(
                n_vocab=n_vocab, target_layers=(1, 9, 17, 25, 33), n_embd=WIDTH, n_layer=5,
                n_ff=N_FF, block_size=BLOCK, own_embedding=False, own_output=False, **HEADS,
            )
        )  # fmt: skip
    m.fill()
    m.keys()
    m.meta["tokenizer.ggml.mask_token_id"] = 300
    return m


def step_of(kind: str, context: Context) -> Callable[[], None]:
    """Returns a function that drafts once."""
    if kind == "eagle3":
        batch = Batch(1, n_row=WIDTH, n_model_row=context.n_row)
        batch.hidden_rows = True
        row = np.random.default_rng(1).standard_normal(WIDTH).astype(np.float32)
        batch.add(65, 0, output=True, row=row)
    else:
        batch = Batch(BLOCK)
        batch.add(65, 0)
        batch.extend([300] * (BLOCK - 1), 1, output_all=True)
    batch.logits = False

    def step() -> None:
        context.decode(batch)
        context.draft_candidates(batch.n_tokens - 1)
        context.memory.remove(0)

    return step


def least_ms(step: Callable[[], None], n: int) -> float:
    """The minimum processor time of n steps, in milliseconds."""
    took = []
    for _ in range(n):
        begin = time.thread_time()
        step()
        took.append(time.thread_time() - begin)
    return 1e3 * min(took)


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the drafts, and prints a line for each number of slots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--type", choices=["Q4_0", "Q4_K", "Q6_K", "Q8_0"], default="Q6_K")
    parser.add_argument("--slots", type=int, nargs="+", default=[32768, 16384, 8192])
    parser.add_argument("--kind", choices=list(N_STEPS), nargs="+", default=list(N_STEPS))
    args = parser.parse_args(argv)
    for kind in args.kind:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "draft.gguf"
            matrices = {"token_embd.weight": "Q4_0", "output.weight": args.type}
            write_quantised(sketch(kind, args.vocab), path, matrices)
            with (
                Model(path) as model,
                Context(model, n_ctx=64, n_batch=32, n_ubatch=32, n_threads=1) as context,
            ):
                step = step_of(kind, context)
                ms = least_ms(step, N_STEPS[kind])
                print(f"{kind}, {args.type}, all {args.vocab} ids: {ms:.1f} ms a step", flush=True)
                for n in args.slots:
                    took = seconds(lambda n=n: reduced_output(context, n, model, lambda _: None))  # type: ignore[misc]
                    ms = least_ms(step, N_STEPS[kind])
                    print(f"{n} ids: {ms:.1f} ms a step, made ready in {took:.2f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
