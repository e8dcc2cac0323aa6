"""The time that lookups save over plain decoding, on the traces of suffix_traces.py.

    python -m benchmarks.suffix_speed -m TARGET.gguf --trace agent [-n 20] [--earlier 0 100]

One process generates each text by plain decoding, by prompt lookup, and by suffix after some number
of earlier requests, with Llama's controller. The order of the sides rotates from text to text.
Times are CPU seconds of the rounds, without the prompt. After each text it prints its ratios, and
all sums so far, so that a run may be stopped early. The exit status is 1 if a text differs from
plain decoding's.

    by_total    plain decoding's time over the side's, of all texts together
    median      the median of the texts' own ratios; worst is the lowest
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import NamedTuple

from benchmarks.suffix_traces import FOLDER, N_MEASURED, Recorded, read_trace
from pyllama_spec.drafters import Drafter, NoDrafter, PromptLookup, Suffix
from pyllama_spec.engine import ContextParams, Model, Sampler
from pyllama_spec.llama.open_model import OpenModel, open_runtime
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.speculative import SequenceState, SpeculativeLoop, make_controller
from tests.suffix_tools import play

_GREEDY = RequestOptions(temperature=0.0)


class Run(NamedTuple):
    """A generated text, the CPU seconds of its rounds, and their counts of drafted tokens."""

    tokens: list[int]
    seconds: float
    n_rounds: int
    n_verified: int
    n_accepted: int

    def line(self, plain: Run) -> str:
        """The printed figures of this text."""
        return (
            f"{plain.seconds / self.seconds:.3f} of plain, {self.n_accepted} of {self.n_verified} "
            f"drafted tokens accepted in {self.n_rounds} rounds, "
            f"{1e3 * self.seconds / self.n_rounds:.2f} ms a round"
        )


@dataclass(slots=True)
class Sum:
    """The sums of one side over all texts."""

    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    n_tokens: int = 0
    n_rounds: int = 0
    n_equal: int = 0

    def add(self, run: Run, plain: Run) -> None:
        """Adds a text and the same text of plain decoding."""
        self.seconds.append(run.seconds)
        self.ratios.append(plain.seconds / run.seconds)
        self.n_tokens += len(run.tokens) - 1
        self.n_rounds += run.n_rounds
        self.n_equal += run.tokens == plain.tokens

    def line(self, plain: Sum) -> str:
        """The printed result."""
        return (
            f"by_total {sum(plain.seconds) / sum(self.seconds):.3f}  median "
            f"{statistics.median(self.ratios):.3f}  worst {min(self.ratios):.3f}  "
            f"{self.n_tokens / self.n_rounds:.2f} tokens per round, "
            f"{1e3 * sum(self.seconds) / self.n_tokens:.2f} ms a token, "
            f"{self.n_equal} of {len(self.ratios)} texts equal"
        )


class Side:
    """One way to generate; like Llama, it keeps its sequence for the next request."""

    def __init__(
        self, model: Model, drafter: Drafter, args: argparse.Namespace, params: ContextParams
    ) -> None:
        is_plain = isinstance(drafter, NoDrafter)
        controller = None if is_plain else make_controller("profit")
        self._runtime = open_runtime(model, params, drafter, None, controller=controller)
        self._open = OpenModel(model, self._runtime, own_drafter=drafter)
        self._sequence = SequenceState()

    def run(self, prompt: list[int], n_tokens: int) -> Run:
        """Generates a text."""
        model = self._runtime.model
        loop = SpeculativeLoop.of(self._runtime.round)
        sampler = Sampler(model, _GREEDY.sampler_params(model.vocab))
        try:
            loop.prefill(self._sequence, prompt)
            rounds = loop.generate(self._sequence, sampler, n_tokens)
            tokens = list(next(rounds).tokens)
            begin, n_rounds, n_verified, n_accepted = process_time(), 0, 0, 0
            for step in rounds:
                tokens += step.tokens
                n_rounds += 1
                n_verified += step.n_drafted
                n_accepted += step.n_accepted
            return Run(tokens, process_time() - begin, n_rounds, n_verified, n_accepted)
        finally:
            sampler.close()

    def close(self) -> None:
        """Frees its context."""
        self._open.close()


def make_drafters(args: argparse.Namespace, earlier: list[Recorded]) -> dict[str, Drafter]:
    """The drafters by name; those of suffix have seen the earlier requests that args asks for."""
    drafters: dict[str, Drafter] = {"plain": NoDrafter(), "prompt-lookup": PromptLookup()}
    drafters["prompt-lookup, 15"] = PromptLookup(15)
    for n in args.earlier:
        drafters[f"suffix, after {n}"] = suffix = Suffix()
        for one in earlier[max(len(earlier) - n, 0) :]:
            play(suffix, *one)
    return drafters


def measure(args: argparse.Namespace, model: Model, stack: contextlib.ExitStack) -> dict[str, Sum]:
    """Generates each text on each side."""
    params = ContextParams(n_ctx=4096, n_batch=512, n_threads=args.threads)
    trace = read_trace(args.trace, args.folder)
    n = min(N_MEASURED[args.trace], args.n_texts)
    texts, earlier = trace[-n:], trace[:-n]
    sides = {}
    for name, drafter in make_drafters(args, earlier).items():
        sides[name] = Side(model, drafter, args, params)
        stack.callback(sides[name].close)
    sums, names = {name: Sum() for name in sides}, list(sides)
    for at, (prompt, answer) in enumerate(texts):
        turn = at % len(names)
        runs = {n: sides[n].run(prompt, len(answer)) for n in names[turn:] + names[:turn]}
        if len(runs["plain"].tokens) < 2:  # no round: the prompt gave the only token
            continue
        print(f"text {at + 1} of {len(texts)}", flush=True)
        for name in names:
            sums[name].add(runs[name], runs["plain"])
            print(f"  {name:20} {runs[name].line(runs['plain'])}")
            print(f"  {'':20} all: {sums[name].line(sums['plain'])}", flush=True)
    return sums


def main() -> int:
    """Measures; returns 1 if a text differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--trace", choices=tuple(N_MEASURED), required=True)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the traces")
    parser.add_argument("--earlier", type=int, nargs="+", default=[0, 100])
    parser.add_argument("-n", "--n-texts", type=int, default=1000, help="only the last N")
    parser.add_argument("-t", "--threads", type=int, default=1)
    args = parser.parse_args()
    with Model(args.model) as model, contextlib.ExitStack() as stack:
        sums = measure(args, model, stack)
    return int(any(sum_.n_equal < len(sum_.ratios) for sum_ in sums.values()))


if __name__ == "__main__":
    sys.exit(main())
