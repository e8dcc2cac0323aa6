"""Records the draft at every token of some answers, for simulations of controllers.

    python benchmarks/record_traces.py -m TARGET.gguf -d DRAFT.gguf -o tests/traces/NAME.json.gz

Every round requests a full draft and verifies none of it: the text is plain decoding's. The trace
has for each position the draft's probabilities, and how many of its tokens were right. A policy
simulated on it (tests/controller_world.py) may start a draft at any position.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyllama_spec import Llama
from pyllama_spec.bench.config import load_prompts
from pyllama_spec.speculative.controller import Controller, Span, Spent


class Recorder(Controller):
    """Requests full drafts, verifies none of them, and stores them."""

    name = "recorder"

    def __init__(self) -> None:
        self.drafts: list[Span] = []

    def verify_lengths(self, spans: Sequence[Span]) -> Sequence[int]:
        """Returns 0 for each sequence: no drafted token is verified."""
        return [0] * len(spans)

    def learn(self, spans: Sequence[Span], spent: Spent) -> None:
        """Stores the spans, in the order of the text."""
        self.drafts.extend(spans)


def trace_of(drafts: Sequence[Span]) -> list[list[Any]]:
    """For each position: a copy's match length, the number of right tokens, the probabilities."""
    text = [span.tokens[0] for span in drafts]
    out: list[list[Any]] = []
    for at, span in enumerate(drafts):
        n_right = 0
        for token, true in zip(span.draft.ids, text[at:], strict=False):
            if token != true:
                break
            n_right += 1
        p = [round(p, 3) for p in span.draft.probabilities or ()]
        out.append([span.draft.match_length, n_right, p or len(span.draft.ids)])
    return out


def main() -> None:
    """Records the traces, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-d", "--draft", required=True)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("-n", "--max-tokens", type=int, default=256)
    parser.add_argument("--n-draft", type=int, default=8)
    parser.add_argument("--prompts", type=Path, default=None)
    parser.add_argument("--lookup", type=int, default=None, help="0: no lookups")
    args = parser.parse_args()
    traces = {}
    for prompt in load_prompts(args.prompts):
        recorder = Recorder()
        with Llama(
            args.model, draft=args.draft, n_draft=args.n_draft, lookup=args.lookup,
            controller=recorder, n_ctx=1024,
        ) as llm:  # fmt: skip
            request = prompt.as_chat(None)
            if request.messages:
                steps = llm.generate_chat_steps(
                    request.messages, max_tokens=args.max_tokens, temperature=0.0
                )
            else:
                steps = llm.generate_steps(
                    request.text, max_tokens=args.max_tokens, temperature=0.0
                )
            for _ in steps:
                pass
        traces[prompt.id] = trace_of(recorder.drafts)
        print(prompt.id, len(traces[prompt.id]), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(args.out, "wt") as file:
        json.dump(traces, file)


if __name__ == "__main__":
    main()
