"""Run by the interpreter of a clean environment: ``python -I generate.py MODEL N ID...``.

Prints the greedy continuation of the ids, once plain and once with prompt lookup, as JSON.
"""

from __future__ import annotations

import json
import sys

import pyllama_spec
from pyllama_spec.drafters import Drafter, NoDrafter, PromptLookup
from pyllama_spec.engine import Context, Model, Sampler, SamplerParams, engine_version, row_kernels
from pyllama_spec.speculative import SequenceState, SpeculativeLoop


def continuation(
    model: Model, drafter: Drafter, prompt: list[int], n: int
) -> tuple[list[int], int]:
    """The next n tokens, and how many of them were drafted."""
    with Context(model, n_ctx=256, n_threads=1) as context:
        loop, state = SpeculativeLoop(context, drafter), SequenceState()
        loop.prefill(state, prompt)
        sampler = Sampler(model, SamplerParams(temperature=0))
        tokens = [token for step in loop.generate(state, sampler, n) for token in step.tokens]
        return tokens, loop.stats.accepted


def report(path: str, n: int, prompt: list[int]) -> dict[str, object]:
    """The generated text, and the files that generated it."""
    with Model(path) as model:
        plain, _ = continuation(model, NoDrafter(), prompt, n)
        drafted, n_accepted = continuation(model, PromptLookup(), prompt, n)
    return {
        "plain": plain,
        "drafted": drafted,
        "n_accepted": n_accepted,
        "package": pyllama_spec.__file__,
        "engine": engine_version(),
        "row_kernels": row_kernels(),
        "python": list(sys.version_info[:2]),
    }


if __name__ == "__main__":
    print(json.dumps(report(sys.argv[1], int(sys.argv[2]), [int(x) for x in sys.argv[3:]])))
