"""The gain of a draft on a target of random weights, at the published acceptance rate.

    python -m benchmarks.shapes qwen3.5-4b q4.gguf
    python -m benchmarks.shape_speed -m q4.gguf [--lengths 3 2] [--accepted 0.83 0.65 0.49] [-n 48]
    python -m benchmarks.shape_speed -m q8.gguf -d q06.gguf --lengths 3 2

The draft is the MTP head in the target's file, over the whole vocabulary and over a part of it, or
a small model. Its tokens are replaced by right and wrong ones at random, as `bench
--synthetic-acceptance` does. `--accepted` gives the shares of first, second, third ... drafted
tokens that are right. The sides are interleaved by rounds, on one thread. Times are processor time,
which other programs disturb alike on all sides. The acceptance rate of some dozen rounds varies by
chance. So the last figure of a line is the speed-up from the measured cost of a round and its
expected tokens. `--controller` adds a side where the controller chooses the lengths from the first
token on. It knows only the costs that it measures when it is opened.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, process_time
from typing import Any

from benchmarks.shapes import STRIDE
from pyllama_spec.bench.synthetic import SyntheticDrafter
from pyllama_spec.drafters import (
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    Mtp,
    NoDrafter,
    SmallModel,
)
from pyllama_spec.drafters.output_part import SHARE
from pyllama_spec.engine import ContextParams, Model, Sampler, SamplerParams
from pyllama_spec.llama.loading import open_runtime
from pyllama_spec.requests.generation import Runtime
from pyllama_spec.speculative import (
    FixedLength,
    ProfitController,
    SequenceState,
    SpeculativeLoop,
    Step,
)

# The most that the controller may draft.
MAX_DRAFT = 6


class Timed(SyntheticDrafter):
    """Synthetic acceptance at the real drafter's cost; sums the processor time of its calls."""

    def __init__(self, inner: Drafter, probabilities: Sequence[float], n_vocab: int) -> None:
        super().__init__(inner, probabilities, n_vocab, seed=7)
        self.is_stepwise = inner.is_stepwise
        self.cpu_s = 0.0

    @property
    def step_share(self) -> float:  # type: ignore[override]
        """The real drafter's step_share, known once it is attached."""
        return self.inner.step_share

    def propose_one(self, request: DraftRequest) -> Draft:
        """Drafts as many tokens as requested: the real draft's probabilities must not stop it."""
        start = process_time()
        draft = super().propose_one(request._replace(stop=None))
        self.cpu_s += process_time() - start
        return draft

    def commit(self, done: Sequence[Committed]) -> None:
        """Commits and sums the time: a drafter decodes there, and prepares rows of new ids."""
        start = process_time()
        super().commit(done)
        self.cpu_s += process_time() - start


def conditional(accepted: Sequence[float]) -> list[float]:
    """The acceptance of each drafted token, given that those before it were accepted."""
    before = [1.0, *accepted]
    return [min(one / max(last, 1e-9), 1.0) for last, one in zip(before, accepted, strict=False)]


@dataclass(slots=True)
class Side:
    """One way to generate, and the state of its text; the first round is not timed."""

    name: str
    runtime: Runtime
    drafter: Timed | None
    steps: Iterator[Step] | None = None
    tokens: tuple[int, ...] = ()
    n_rounds: int = 0
    n_timed: int = 0
    n_drafted: int = 0
    cpu_s: float = 0.0
    draft_s: float = 0.0
    expected: float = 0.0
    """The expected tokens of a round with a fixed number of drafted tokens; else 0."""

    def begin(self, prompt: list[int], n_tokens: int, sampler: Sampler) -> None:
        """Decodes the prompt, and samples the first token."""
        loop, sequence = SpeculativeLoop.of(self.runtime.round), SequenceState()
        if self.drafter is not None:
            answer = [prompt[-1] + STRIDE * (i + 1) for i in range(n_tokens)]
            self.drafter.follow(len(prompt), answer, "text")
        loop.prefill(sequence, prompt, remember=False)
        self.steps = loop.generate(sequence, sampler, n_tokens)
        self.tokens = next(self.steps).tokens

    def round(self) -> bool:
        """Runs a round; returns False if the text has ended."""
        assert self.steps is not None
        draft_s = self.drafter.cpu_s if self.drafter is not None else 0.0
        start = process_time()
        step = next(self.steps, None)
        took = process_time() - start
        if step is None:
            return False
        self.tokens += step.tokens
        if self.n_rounds:
            self.n_timed += len(step.tokens)
            self.n_drafted += step.n_drafted
            self.cpu_s += took
            self.draft_s += (self.drafter.cpu_s if self.drafter is not None else 0.0) - draft_s
        self.n_rounds += 1
        return True

    def row(self, plain: Side) -> dict[str, Any]:
        """The figures to print and to store; times in milliseconds of processor time."""
        rounds, tokens = max(self.n_rounds - 1, 1), max(self.n_timed, 1)
        plain_s = plain.cpu_s / max(plain.n_timed, 1)
        n = min(len(self.tokens), len(plain.tokens))
        return {
            "equal": self.tokens[:n] == plain.tokens[:n], "tokens": self.n_timed,
            "rounds": rounds, "drafted": self.n_drafted, "tokens_per_round": tokens / rounds,
            "draft_ms": 1e3 * self.draft_s / rounds,
            "rest_ms": 1e3 * (self.cpu_s - self.draft_s) / rounds,
            "token_ms": 1e3 * self.cpu_s / tokens,
            "over_plain": plain_s / max(self.cpu_s / tokens, 1e-9),
            "expected_over_plain": self.expected * plain_s / max(self.cpu_s / rounds, 1e-9),
        }  # fmt: skip


@contextlib.contextmanager
def open_sides(model: Model, draft: Model | None, args: argparse.Namespace) -> Iterator[list[Side]]:
    """Opens plain decoding, and each draft with each length."""
    params = ContextParams(n_ctx=512, n_batch=64, n_ubatch=64, n_threads=1)
    given = conditional(args.accepted)

    def real(n: int, n_output: int) -> Drafter:
        return Mtp(max_draft=n, n_output=n_output) if draft is None else SmallModel(draft, n)

    with contextlib.ExitStack() as stack:

        def side(name: str, drafter: Drafter | None, given: Sequence[float], fixed: bool) -> Side:
            timed = None if drafter is None else Timed(drafter, given, model.info.n_vocab)
            if timed is not None:
                stack.callback(timed.close)
            runtime = open_runtime(
                model, params, timed or NoDrafter(), timed.max_draft if timed else None,
                controller=FixedLength() if fixed else ProfitController(),
            )  # fmt: skip
            stack.callback(runtime.context.close)
            expected = 1.0 + sum(args.accepted[: len(given)]) if fixed else 0.0
            return Side(name, runtime, timed, expected=expected)

        sides = [side("plain", None, (), True)]
        n_ids = [0, model.info.n_vocab // SHARE] if args.ids is None else args.ids
        outputs = [(n, f"{n:,} ids" if n else "all ids") for n in n_ids]
        if draft is not None:
            outputs = [(0, "draft")]
        for n_output, name in outputs:
            sides += [
                side(f"{name}, {n}", real(n, n_output), given[:n], True) for n in args.lengths
            ]
        if args.controller:
            n_output, name = outputs[-1]
            chances = (given + [given[-1]] * MAX_DRAFT)[:MAX_DRAFT]
            sides.append(side(f"{name}, controller", real(MAX_DRAFT, n_output), chances, False))
        yield sides


def show(sides: list[Side]) -> dict[str, Any]:
    """Prints a line for each side; returns their figures."""
    rows = {side.name: side.row(sides[0]) for side in sides}
    print(f"load {os.getloadavg()[0]:.1f}; rounds but the first of each side", flush=True)
    for side in sides:
        name, row = side.name, rows[side.name]
        print(
            f"{name}: {row['tokens_per_round']:.2f} tokens a round, draft {row['draft_ms']:.1f} + "
            f"rest {row['rest_ms']:.1f} ms a round, {row['token_ms']:.1f} ms a token, "
            f"{row['over_plain']:.3f} of plain, {row['tokens']} tokens, "
            f"{'the same text' if row['equal'] else 'ANOTHER TEXT'}"
            + (f"; as accepted on average {row['expected_over_plain']:.3f}" * (side.expected > 0)),
            flush=True,
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints; returns 1 if a text differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-d", "--draft", type=Path, help="a small model [the MTP head]")
    parser.add_argument("--lengths", type=int, nargs="+", default=[3])
    parser.add_argument("--ids", type=int, nargs="+", help="ids of a head, 0: all [0, a quarter]")
    parser.add_argument("--accepted", type=float, nargs="+", default=[0.83, 0.65, 0.49])
    parser.add_argument("--controller", action="store_true")
    parser.add_argument("-n", "--max-tokens", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    if max(args.lengths) > len(args.accepted):
        parser.error("--accepted needs a value for each drafted token of --lengths")
    end = monotonic() + args.seconds
    prompt = [300 + i for i in range(args.prompt)]
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(Model(args.model, load_mtp=args.draft is None))
        draft = None if args.draft is None else stack.enter_context(Model(args.draft))
        sides = stack.enter_context(open_sides(model, draft, args))
        for side in sides:
            sampler = stack.enter_context(
                contextlib.closing(Sampler(model, SamplerParams(temperature=0.0)))
            )
            side.begin(prompt, args.max_tokens, sampler)
        going, told = sides, monotonic()
        while going and monotonic() < end:
            going = [side for side in going if side.round()]
            if monotonic() > told + 120.0:
                told = monotonic()
                show(sides)
        rows = show(sides)
        if args.json is not None:
            args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(not all(row["equal"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
