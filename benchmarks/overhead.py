"""The cost of the loop itself: Python, sampling and bookkeeping, beside the decodes.

Run from the repository: ``python benchmarks/overhead.py [-m TARGET.gguf]``.

Without -m the target is a tiny model with the vocabulary of SmolLM2. It prints the overhead per
round of a chain of 8 with greedy sampling (everything but draft and decode), after 1k and after 16k
tokens of prefix: medians of interleaved runs, since a machine's speed drifts.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from pyllama_spec.drafters import Draft, Drafter, DraftRequest, NoDrafter, PromptLookup
from pyllama_spec.engine import Context, Model, Sampler, SamplerParams
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.models import model_path

CHAIN = 8
PREFIXES = (1024, 16384)


class Replay(Drafter):
    """Proposes the tokens of plain decoding, so that all of them are accepted."""

    name = "replay"
    max_draft = CHAIN

    def __init__(self, answer: Sequence[int], n_prompt: int) -> None:
        self.answer, self.n_prompt = answer, n_prompt

    def propose_one(self, request: DraftRequest) -> Draft:
        """The next tokens of the known answer."""
        at = len(request.tokens) - self.n_prompt
        return Draft(self.answer[at : at + request.n_requested])


def generate(
    context: Context, state: SequenceState, drafter: Drafter, prompt: Sequence[int], n: int
) -> SpeculativeLoop:
    """Generates greedily, with the state's prefix reused; returns the loop with its figures."""
    loop = SpeculativeLoop(context, drafter)
    sampler = Sampler(context.model, SamplerParams(temperature=0))
    loop.prefill(state, prompt)
    for step in loop.generate(state, sampler, n):
        if step.finish_reason == "stop":
            break
    return loop


def line(name: str, n_prefix: int, loops: Sequence[SpeculativeLoop]) -> str:
    """A line of the table: microseconds per round."""
    overhead = [1e6 * x.timing.overhead_s / x.stats.rounds for x in loops]
    drafting = [1e6 * x.timing.draft_s / x.stats.rounds for x in loops]
    spread = f"{min(overhead):.0f} .. {max(overhead):.0f}"
    return (
        f"{name:<14} {n_prefix:>7} {loops[0].stats.drafted / loops[0].stats.rounds:>8.2f} "
        f"{statistics.median(overhead):>10.1f} ({spread:>11}) {statistics.median(drafting):>9.1f}"
    )


def overhead_by_prefix(path: Path, repeats: int, n_tokens: int) -> list[str]:
    """Measures the overhead per round; returns a line for each drafter and prefix length."""
    model = Model(path)
    cases: dict[tuple[str, int], list[SpeculativeLoop]] = {}
    setups = {}
    for n in PREFIXES:
        context = Context(model, n_ctx=PREFIXES[-1] + n_tokens + 64)
        state, prompt = SequenceState(), [300 + i * 7919 % 20011 for i in range(n)]
        generate(context, state, NoDrafter(), prompt, n_tokens)
        setups[n] = (context, state, prompt, state.tokens[n:])
    for _ in range(repeats):
        for n, (context, state, prompt, answer) in setups.items():
            for drafter in (Replay(answer, n), PromptLookup(CHAIN, min_ngram=1), NoDrafter()):
                loop = generate(context, state, drafter, prompt, n_tokens)
                cases.setdefault((drafter.name, n), []).append(loop)
    return [line(name, n, loops) for (name, n), loops in cases.items()]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-m", "--model", type=Path, default=None, help="a real target")
    parser.add_argument("-n", type=int, default=256, help="tokens per run")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    tiny = model_path("llama", n_vocab=49152, n_layer=2, n_ctx_train=65536)
    print(f"{'drafter':<14} {'prefix':>7} {'drafted':>8} {'overhead us/round':>24} {'draft us':>9}")
    print(*overhead_by_prefix(args.model or tiny, args.repeat, args.n), sep="\n")


if __name__ == "__main__":
    main()
