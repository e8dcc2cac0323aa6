"""Run in a clean environment: ``beside_llama_cpp.py FIRST MODEL N ID...``, FIRST ours or theirs.

Two ggml libraries in one process: both load, both generate, and again after the other did.
Prints the four lists of tokens as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

Generate = Callable[[], list[int]]


def ours(path: str, n: int, prompt: list[int]) -> Generate:
    """pyllama_spec, opened."""
    from pyllama_spec.drafters import PromptLookup
    from pyllama_spec.engine import Context, Model, Sampler, SamplerParams
    from pyllama_spec.speculative import SequenceState, SpeculativeLoop

    context = Context(Model(path), n_ctx=256, n_threads=2)

    def generate() -> list[int]:
        loop, state = SpeculativeLoop(context, PromptLookup()), SequenceState()
        context.memory.remove(state.seq_id)
        loop.prefill(state, prompt)
        sampler = Sampler(context.model, SamplerParams(temperature=0))
        return [token for step in loop.generate(state, sampler, n) for token in step.tokens]

    return generate


def theirs(path: str, n: int, prompt: list[int]) -> Generate:
    """llama-cpp-python, opened."""
    import llama_cpp

    llama = llama_cpp.Llama(path, n_ctx=256, n_threads=2, verbose=False)

    def generate() -> list[int]:
        tokens: list[int] = []
        for token in llama.generate(prompt, temp=0.0, repeat_penalty=1.0):
            tokens.append(int(token))
            if len(tokens) == n:
                break
        return tokens

    return generate


def main(first: str, path: str, n: int, prompt: list[int]) -> None:
    """Opens both, the named one first, and lets them take turns."""
    order = [ours, theirs] if first == "ours" else [theirs, ours]
    generators = [make(path, n, prompt) for make in order]
    print(json.dumps([generate() for generate in (*generators, *generators)]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), [int(x) for x in sys.argv[4:]])
