"""Measures the controller on an answer of 4,000 tokens whose acceptance rate drifts.

    python -m benchmarks.drifting_text -m TARGET.gguf -d DRAFT.gguf --fixed 2 --fixed 4:0.4

The target samples the text first, at a temperature that changes from stretch to stretch, without an
end token. Then all sides decode this text, interleaved: plain decoding, the controller, and fixed
lengths N or N:P_MIN. For each stretch it prints the time of plain decoding over that of the side,
and the controller's tokens per round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from benchmarks.profit import open_side
from benchmarks.switching_text import Given
from pyllama_spec.bench.sides import Side
from pyllama_spec.chat.template import ChatTemplate
from pyllama_spec.engine import Model, Sampler, Vocab
from pyllama_spec.engine.sampler import SamplerParams
from pyllama_spec.speculative import SequenceState, SpeculativeLoop

Found = list[float]

PROMPT = "Tell me the history of a small town by the sea, from its beginning until today."
TEMPERATURES = (0.0, 0.7, 1.5, 0.7, 0.0, 2.0, 1.0, 0.0)


def write(side: Side, prompt: Sequence[int], n: int, vocab: Vocab) -> list[int]:
    """Samples a text of n tokens, an equal part of it at each temperature."""
    loop, state, text = SpeculativeLoop.of(side.runtime.round), SequenceState(), list[int]()
    ends = dict.fromkeys((i for i in range(vocab.n_tokens) if vocab.is_eog(i)), float("-inf"))
    for seed, temperature in enumerate(TEMPERATURES):
        params = SamplerParams(
            temperature=temperature, top_k=0, top_p=1.0, min_p=0.02, seed=seed,
            repeat_penalty=1.1, logit_bias=ends,
        )  # fmt: skip
        with contextlib.closing(Sampler(side.runtime.model, params)) as sampler:
            loop.prefill(state, [*prompt, *text])
            steps = loop.generate(state, sampler, n // len(TEMPERATURES))
            text += [token for step in steps for token in step.tokens]
            side.runtime.round.sequences.forget(state)
            state = SequenceState()
    return text


def replay(side: Side, prompt: Sequence[int], text: Sequence[int]) -> tuple[Found, Found]:
    """Decodes a given text; returns the seconds and the tokens per round of each stretch."""
    loop, state = SpeculativeLoop.of(side.runtime.round), SequenceState()
    loop.prefill(state, prompt)
    seconds, rounds = [0.0] * len(TEMPERATURES), [0] * len(TEMPERATURES)
    size, place, last = len(text) // len(TEMPERATURES), 0, perf_counter()
    for step in loop.generate(state, Given(text), len(text)):
        now = perf_counter()
        if place:  # the first token comes from the prompt
            at = min(place // size, len(TEMPERATURES) - 1)
            seconds[at] += now - last
            rounds[at] += 1
        place, last = place + len(step.tokens), now
    side.runtime.round.sequences.forget(state)
    return seconds, [size / n for n in rounds]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-d", "--draft", required=True)
    parser.add_argument("--fixed", action="append", default=[], metavar="N[:P_MIN]")
    parser.add_argument("-n", "--max-tokens", type=int, default=4000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--n-draft", type=int, default=None)
    parser.add_argument("--lookup", type=int, default=None)
    parser.add_argument("-t", "--threads", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    args.n_ctx = args.max_tokens + 256
    names = ["plain", "profit", *args.fixed]
    with Model(args.model) as model:
        rendered = ChatTemplate.of_model(model).render([{"role": "user", "content": PROMPT}])
        prompt = rendered.tokenize(model.vocab)
        sides = {name: open_side(model, args, name) for name in names}
        text = write(sides["plain"], prompt, args.max_tokens, model.vocab)
        seconds: dict[str, list[Found]] = {name: [] for name in names}
        lengths: Found = []
        for repeat in range(args.repeat):
            turn = repeat % len(names)
            for name in [*names[turn:], *names[:turn]]:
                took, per_round = replay(sides[name], prompt, text)
                seconds[name].append(took)
                if name == "profit":
                    lengths = per_round
        for side in sides.values():
            side.close()
    medians = {
        name: [statistics.median(runs[i] for runs in sweeps) for i in range(len(TEMPERATURES))]
        for name, sweeps in seconds.items()
    }
    plain = medians["plain"]
    print("temperature " + " ".join(f"{t:6.1f}" for t in TEMPERATURES) + "    all")
    for name, side_s in medians.items():
        ratios = [a / b for a, b in zip(plain, side_s, strict=True)]
        row = " ".join(f"{ratio:6.2f}" for ratio in (*ratios, sum(plain) / sum(side_s)))
        print(f"{name:11} {row}")
    print("tokens a round, the controller: " + " ".join(f"{n:.2f}" for n in lengths))
    if args.json is not None:
        args.json.write_text(json.dumps(seconds, indent=1))


if __name__ == "__main__":
    main()
