"""The cost of an EAGLE-3 head beside its target: in the prompt, and in a round.

    python benchmarks/eagle3_cost.py -m TARGET.gguf -d HEAD.gguf [--prompt 1000] [--n-draft 4]

Prompt: the target without and with its head decodes the same tokens, interleaved; the ratio is the
median over pairs. Round: the loop's time of one, split, beside the sum of its raw decodes, which
are timed alone in the same contexts: one verify batch, the head's call with accepted rows, its
calls with rows of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

from pyllama_spec.drafters import Eagle3, NoDrafter
from pyllama_spec.engine import Batch, Context, Model, Sampler, SamplerParams
from pyllama_spec.speculative import SequenceState, SpeculativeLoop


def median_ms(action: Callable[[], object], repeats: int) -> float:
    """The median milliseconds of a call, after one call as a warm-up."""
    action()
    times = []
    for _ in range(repeats):
        start = perf_counter()
        action()
        times.append(1e3 * (perf_counter() - start))
    return statistics.median(times)


class Timed(Eagle3):
    """Stores the number of pairs of each feeding call, and sums the time of the head's decodes."""

    def __init__(self, path: Path, max_draft: int) -> None:
        super().__init__(path, max_draft)
        self.n_fed: list[int] = []
        self.decode_s = 0.0

    def attach(self, target: Context) -> None:
        """Attaches the head; later decodes are timed."""
        super().attach(target)
        self.feed = self.memory_or_fail()._batch
        decode = self.memory_or_fail().decode

        def timed(batch: Batch) -> None:
            start = perf_counter()
            decode(batch)
            self.decode_s += perf_counter() - start
            if batch is self.feed:
                self.n_fed.append(batch.n_tokens)

        self.memory_or_fail().decode = timed  # type: ignore[method-assign]


def prompt_cost(model: Model, head: Path, n_prompt: int, repeats: int) -> None:
    """Prints the prompt's time with the head over the time without."""
    prompt = [int(i) for i in np.random.default_rng(0).integers(300, 20_000, size=n_prompt)]
    drafter = Eagle3(head)
    layers = drafter.target_layers
    with (
        Context(model, n_ctx=n_prompt + 64) as alone,
        Context(model, n_ctx=n_prompt + 64, target_layers=layers) as kept,
    ):
        loops = [SpeculativeLoop(alone, NoDrafter()), SpeculativeLoop(kept, drafter)]
        times: list[list[float]] = [[], []]
        for i in range(repeats + 1):
            for loop, out in list(zip(loops, times, strict=True))[:: 1 if i % 2 else -1]:
                loop.target.memory.clear()
                loop.drafter.truncate(0, 0)
                start = perf_counter()
                loop.prefill(SequenceState(), prompt)
                if i:
                    out.append(1e3 * (perf_counter() - start))
    ratios = [b / a for a, b in zip(*times, strict=True)]
    plain, both = (statistics.median(side) for side in times)
    print(
        f"prompt of {n_prompt}: {plain:.0f} ms alone, {both:.0f} ms with the head: "
        f"{statistics.median(ratios):.3f} ({min(ratios):.3f} .. {max(ratios):.3f}), {repeats} pairs"
    )


def round_cost(model: Model, head: Path, n_rounds: int, max_draft: int, repeats: int) -> None:
    """Prints a round's time, split, and the raw decodes' sum."""
    drafter = Timed(head, max_draft)
    layers = drafter.target_layers
    prompt = model.vocab.tokenize("The history of the bicycle begins with")
    context = Context(model, n_ctx=1024, target_layers=layers, n_outputs_max=max_draft + 1)
    loop, seq = SpeculativeLoop(context, drafter, max_draft), SequenceState()
    loop.prefill(seq, prompt)
    drafter.n_fed.clear()
    sampler = Sampler(model, SamplerParams(temperature=0))
    drafter.decode_s = 0.0
    for i, _ in enumerate(loop.generate(seq, sampler, 900)):
        if i >= n_rounds:
            break
    stats, timing = loop.stats, loop.timing
    n, ms = stats.rounds, 1e3 / stats.rounds
    fed = round(statistics.mean(drafter.n_fed)) or 1
    print(
        f"round of {max_draft} drafted, {stats.tokens_per_round:.2f} tokens committed, {n} rounds: "
        f"{timing.decode_s * ms:.2f} ms = draft {timing.draft_s * ms:.2f} "
        f"(of it decodes {drafter.decode_s * ms:.2f}) + verify {timing.verify_s * ms:.2f} "
        f"+ rest {timing.overhead_s * ms:.2f}"
    )
    verify, feed, step = raw_decodes(loop, seq, drafter, fed, repeats)
    total = verify + feed + (max_draft - 1) * step
    print(
        f"raw decodes: verify {verify:.2f} + feeding {fed} {feed:.2f} + {max_draft - 1} steps of "
        f"{step:.2f} = {total:.2f} ms; the round is {timing.decode_s * ms / total:.3f} of it"
    )


def raw_decodes(
    loop: SpeculativeLoop, seq: SequenceState, drafter: Timed, n_fed: int, repeats: int
) -> tuple[float, float, float]:
    """Milliseconds of a verify batch, of a feeding call and of a step with a row of its own."""
    target, head = loop.target, drafter.context
    assert head is not None
    at, max_draft = seq.n_decoded, drafter.max_draft

    def verify() -> None:
        target.memory.rollback(0, at)
        batch = Batch(max_draft + 1)
        batch.extend([50] * (max_draft + 1), at, output_all=True)
        target.decode(batch)

    feed, step = drafter.feed, drafter._step
    rows = np.ones((n_fed, feed.n_row), np.float32)

    def decode_feed() -> None:
        head.memory.rollback(0, at - n_fed)
        feed.clear()
        feed.extend([50] * n_fed, at - n_fed, rows=[rows], output_last=True)
        head.decode(feed)

    def decode_step() -> None:
        head.memory.rollback(0, at)
        step.clear()
        step.add(50, at, row=np.ones(step.n_row, np.float32), output=True)
        head.decode(step)

    steps = (verify, decode_feed, decode_step)
    first, second, third = (median_ms(step, repeats) for step in steps)
    return first, second, third


def main() -> int:
    """Runs both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-d", "--draft", type=Path, required=True)
    parser.add_argument("--prompt", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=64)
    parser.add_argument("--n-draft", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    model = Model(args.model)
    prompt_cost(model, args.draft, args.prompt, args.repeat)
    round_cost(model, args.draft, args.rounds, args.n_draft, 4 * args.repeat)
    return 0


if __name__ == "__main__":
    sys.exit(main())
