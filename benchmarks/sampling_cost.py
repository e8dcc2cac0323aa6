"""The cost of sampling a token, by the size of the vocabulary and the request's options.

    python -m benchmarks.sampling_cost [--n-vocab 151936]

Samples from one row of logits of a tiny model with that vocabulary. Prints microseconds of the
thread's processor time, the median and the minimum. Penalties have a history of 64 tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import closing

from pyllama_spec.engine import Batch, Context, Model, Sampler, SamplerParams
from tests.models import model_path

CASES = {
    "greedy": SamplerParams(temperature=0),
    "greedy, a repetition penalty": SamplerParams(temperature=0, repeat_penalty=1.1),
    "greedy, a bias": SamplerParams(temperature=0, logit_bias={5: 1.0}),
    "by default": SamplerParams(seed=1),
    "by default, two penalties": SamplerParams(seed=1, repeat_penalty=1.1, presence_penalty=0.1),
    "by default, DRY": SamplerParams(seed=1, dry_multiplier=0.8),
    "top_k of 1,000": SamplerParams(seed=1, top_k=1000),
    "min_p alone": SamplerParams(top_k=0, top_p=1.0, seed=1),
    "top_p and min_p, no top_k": SamplerParams(seed=1, top_k=0),
    "temperature alone": SamplerParams(top_k=0, top_p=1.0, min_p=0.0, seed=1),
    "mirostat 2": SamplerParams(seed=1, mirostat=2),
}


def microseconds(params: SamplerParams, context: Context, n_repeats: int) -> list[float]:
    """The microseconds of single samples."""
    out = []
    with closing(Sampler(context.model, params)) as sampler:
        for i in range(64):
            sampler.accept(300 + i)
        for _ in range(n_repeats + 1):
            start = time.thread_time()
            sampler.sample(context, 0)
            out.append(1e6 * (time.thread_time() - start))
    return out[1:]


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n-vocab", type=int, default=151_936)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    path = model_path("llama", n_vocab=args.n_vocab, n_layer=2)
    with Model(path) as model, Context(model, n_ctx=64, n_threads=1) as context:
        batch = Batch(1)
        batch.add(300, 0, output=True)
        context.decode(batch)
        print(f"{args.n_vocab} ids: microseconds of a row, median and least")
        for name, params in CASES.items():
            times = microseconds(params, context, args.repeats)
            print(f"  {name:<30}{statistics.median(times):>8.0f}{min(times):>8.0f}", flush=True)


if __name__ == "__main__":
    main()
