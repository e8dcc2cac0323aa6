"""Measures how fast the controller reacts to a copied passage between two parts of prose.

    python benchmarks/switching_text.py -m TARGET.gguf -d prompt-lookup [--plot OUT.png]

The text is given: a sampler returns its next token, whatever the logits, so that the copy begins at
a known place. It prints the rounds from there to the first one that accepts two tokens or more,
and the rounds after its end in which drafts were still verified.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from pyllama_spec.drafters import DraftOptions, make_drafter
from pyllama_spec.engine import Context, ContextParams, Model
from pyllama_spec.llama.loading import open_runtime
from pyllama_spec.speculative import ProfitController, RoundCounts, SequenceState, SpeculativeLoop
from pyllama_spec.speculative.acceptance import StepSampler

PASSAGE = (
    "The river rises in the northern hills, runs south past seven mills and two market towns, and "
    "meets the sea at a harbour that has been silting up since the reign of the second king. Every "
    "spring the council sends eleven boats with rakes and buckets, and every autumn the sand is "
    "back where it was. A lighthouse keeper kept count of the wrecks: forty-one in his time, of "
    "which nine were fishing boats, three were ferries and the rest carried timber or salt."
)
BEFORE = (
    "People who live near water learn to read small signs. A gull that walks inland, a rope that "
    "hangs slack, the smell of mud before rain: none of them means much alone, and together they "
    "are better than any forecast. My neighbour, who never learned to swim, could tell the hour of "
    "the tide from the colour of the posts. She quoted an old notice by heart: "
)
AFTER = (
    " That was all it said. Nobody asked who had written it, or why it hung in the bakery rather "
    "than in the town hall. Children learned to spell from it, visitors took photographs, and once "
    "a professor came to compare it with a map that showed no harbour at all. He stayed for lunch, "
    "praised the soup, forgot his umbrella, and was never heard of again in our part of the world."
)


class Given(StepSampler):
    """Returns the tokens of a given text in order, whatever the logits."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._left = list(tokens)

    def sample(self, context: Context, row: int) -> int:
        """Returns the next token of the text."""
        return self._left.pop(0)

    def accept(self, token: int, *, generated: bool = True) -> None:
        """Does nothing."""


def draw(
    rounds: Sequence[RoundCounts], at: Sequence[int], span: tuple[int, int], out: Path
) -> None:
    """Plots the verified and accepted tokens of each round by its position in the text."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(10, 4))
    axes = figure.subplots()
    axes.axvspan(*span, color="#dddddd", label="the copied passage")
    axes.step(
        at, [one.n_verified for one in rounds], where="post", color="#4477aa", label="verified"
    )
    axes.plot(at, [one.n_accepted for one in rounds], ".", color="#ee7733", label="accepted")
    axes.set_xlabel("tokens of the answer")
    axes.set_ylabel("drafted tokens of a round")
    axes.legend(loc="upper right")
    figure.tight_layout()
    figure.savefig(out, dpi=100)


def main() -> None:
    """Generates, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-d", "--draft", default="prompt-lookup")
    parser.add_argument("-t", "--threads", type=int, default=None)
    parser.add_argument("--plot", type=Path, default=None)
    args = parser.parse_args()
    with Model(args.model) as model:
        prompt = model.vocab.tokenize(PASSAGE + "\n\n", add_special=True)
        parts = [model.vocab.tokenize(part, add_special=False) for part in (BEFORE, PASSAGE, AFTER)]
        text = [token for part in parts for token in part]
        params = ContextParams(n_ctx=1024, n_threads=args.threads)
        drafter = make_drafter(args.draft, DraftOptions(None, is_adaptive=True))
        controller = ProfitController()
        runtime = open_runtime(model, params, drafter, None, controller=controller)
        loop, state = SpeculativeLoop.of(runtime.round), SequenceState()
        loop.prefill(state, prompt)
        for _ in loop.generate(state, Given(text), len(text)):
            pass
        rounds, at, place = loop.stats.round_counts, [], 1
        for one in rounds:
            at.append(place)
            place += 1 + one.n_accepted
        begin, end = len(parts[0]), len(parts[0]) + len(parts[1])
        first = next(i for i, place in enumerate(at) if place >= begin)
        follows = next(
            (i for i, one in enumerate(rounds) if i >= first and one.n_accepted >= 2), len(rounds)
        )
        last = next((i for i, place in enumerate(at) if place >= end), len(rounds))
        late = [i for i, one in enumerate(rounds) if i >= last and one.n_verified]
        print(f"{len(rounds)} rounds of {len(text)} tokens; the passage is {begin} .. {end}")
        print(f"rounds from its beginning to the first draft of it accepted: {follows - first}")
        print(f"drafts verified behind its end, by rounds behind it: {[i - last for i in late]}")
        wasted = sum(one.n_verified - one.n_accepted for one in rounds)
        print(f"drafted tokens verified for nothing in all: {wasted}")
        if args.plot is not None:
            draw(rounds, at, (begin, end), args.plot)
        runtime.context.close()
        drafter.close()


if __name__ == "__main__":
    main()
