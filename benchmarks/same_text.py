"""Whether speculative text is plain text: SmolLM2 in many types, greedy and seeded.

    python -m benchmarks.same_text -d DRAFT.gguf [--types Q4_K_M Q8_0] [-n 256] [--json OUT]

Each prompt goes through plain decoding and through four drafted tokens in every round, once greedy
and once with a seed at temperature 0.8. It prints the share of equal texts, the tokens of the plain
side, and the tokens committed per round. Ends with 1 if a text differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from pyllama_spec.bench.config import load_prompts
from pyllama_spec.bench.sides import Side
from pyllama_spec.chat.template import ChatTemplate
from pyllama_spec.drafters import DraftOptions, NoDrafter, make_drafter
from pyllama_spec.engine import ContextParams, Model
from pyllama_spec.llama.loading import open_runtime
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.speculative import FixedLength
from tests.conftest import smollm2

TYPES = ("Q4_K_M", "Q5_K_M", "Q6_K", "Q3_K_M", "IQ4_XS", "Q4_1", "Q8_0", "BF16")
N_DRAFT = 4
WAYS = {
    "greedy": RequestOptions(temperature=0.0),
    "seeded": RequestOptions(temperature=0.8, seed=7),
}


def open_side(model: Model, args: argparse.Namespace, options: RequestOptions, draft: str) -> Side:
    """Plain decoding for "none", else a fixed number of drafted tokens in every round."""
    params = ContextParams(n_ctx=1024, n_threads=args.threads)
    if draft == "none":
        return Side(open_runtime(model, params, NoDrafter(), None), options)
    drafter = make_drafter(draft, DraftOptions(N_DRAFT))
    runtime = open_runtime(model, params, drafter, N_DRAFT, controller=FixedLength())
    return Side(runtime, options, drafter)


def compare(path: Path, args: argparse.Namespace, options: RequestOptions) -> dict[str, Any]:
    """A line of the table."""
    differ, n_tokens, n_rounds, n_committed = [], 0, 0, 0
    with Model(path) as model, contextlib.ExitStack() as stack:
        plain = stack.enter_context(open_side(model, args, options, "none"))
        drafted = stack.enter_context(open_side(model, args, options, str(args.draft)))
        template = ChatTemplate.of_model(model)
        prompts = [p.as_chat(None) for p in load_prompts(args.prompts)][: args.n_prompts]
        for prompt in prompts:
            ids = prompt.tokens(model.vocab, template)
            expected, speculative = (side.run(ids, args.n) for side in (plain, drafted))
            if expected.tokens != speculative.tokens:
                differ.append(prompt.id)
            n_tokens += len(expected.tokens)
            n_rounds += len(speculative.rounds)
            n_committed += speculative.n_decoded
    return {
        "equal": len(prompts) - len(differ), "texts": len(prompts), "differ": differ,
        "tokens": n_tokens, "tokens_per_round": n_committed / max(n_rounds, 1),
    }  # fmt: skip


def main() -> int:
    """Prints a line for each type and way; 1 where texts differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-d", "--draft", type=Path, required=True)
    parser.add_argument("--types", nargs="+", default=TYPES)
    parser.add_argument("--prompts", type=Path, default=None)
    parser.add_argument("--n-prompts", type=int, default=24)
    parser.add_argument("-n", type=int, default=256, help="tokens per text at most")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for kind in args.types:
        for way, options in WAYS.items():
            row = {"type": kind, "way": way, **compare(smollm2(kind), args, options)}
            rows.append(row)
            print(
                f"{kind:<7} {way} {row['equal']} of {row['texts']} texts equal, {row['tokens']} "
                f"tokens, {row['tokens_per_round']:.2f} per round {' '.join(row['differ'])}",
                flush=True,
            )
            if args.json is not None:
                args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(any(row["differ"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
