"""Small models as drafts of one target: the text, acceptance and what a round costs, side by side.

    python -m benchmarks.draft_models -m TARGET.gguf -d SMALL.gguf -d OTHER.gguf --fixed 4 -t 1

For each prompt, greedy and then seeded at temperature 0.8 with penalties, the text is generated
plainly, with the controller, and with each fixed number of drafted tokens, in an order that turns
with the prompts. Copies of the text are off: what is measured is the model. Ratios are of the
processor time of the process, prompts included, which programs beside it disturb less than a clock;
and of the clock over the rounds alone. What is known so far is written after each prompt, so that a
run may be ended early. Ends with 1 where a text differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from pyllama_spec.bench.config import load_prompts
from pyllama_spec.bench.sides import Run, Side
from pyllama_spec.chat.template import ChatTemplate
from pyllama_spec.drafters import NoDrafter, SmallModel
from pyllama_spec.engine import ContextParams, Model
from pyllama_spec.llama.loading import open_runtime
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.speculative import FixedLength, ProfitController

PROMPTS = Path(__file__).parent / "mixed_prompts.jsonl"
WAYS = {
    "greedy": RequestOptions(temperature=0.0),
    "seeded": RequestOptions(
        temperature=0.8, seed=7, repeat_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.2
    ),
}
# The most that the controller may draft.
MAX_DRAFT = 8


@dataclass(slots=True)
class Sum:
    """Of one side and way, over prompts."""

    n_texts: int = 0
    n_equal: int = 0
    n_tokens: int = 0
    n_rounds: int = 0
    n_asked: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    decode_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    cpu_s: float = 0.0
    # Plain decoding's, over this side's: of each prompt.
    by_clock: list[float] = field(default_factory=list)
    by_cpu: list[float] = field(default_factory=list)

    def add(self, run: Run, plain: Run) -> None:
        """A text."""
        self.n_texts += 1
        self.n_equal += run.tokens == plain.tokens
        self.n_tokens += run.n_decoded
        self.n_rounds += len(run.rounds)
        self.n_asked += sum(drafted > 0 for drafted, _ in run.rounds)
        self.n_drafted += sum(drafted for drafted, _ in run.rounds)
        self.n_accepted += sum(accepted for _, accepted in run.rounds)
        self.decode_s += run.decode_s
        self.draft_s += run.draft_s
        self.verify_s += run.verify_s
        self.cpu_s += run.cpu_s
        if run.n_decoded and run.decode_s > 0.0:
            self.by_clock.append(plain.decode_s / run.decode_s)
            self.by_cpu.append(plain.cpu_s / run.cpu_s)

    def row(self, plain: Sum) -> dict[str, Any]:
        """What is printed and kept."""
        rounds = max(self.n_rounds, 1)
        return {
            "texts": self.n_texts, "equal": self.n_equal, "tokens": self.n_tokens,
            "rounds": self.n_rounds, "rounds_with_draft": self.n_asked,
            "drafted": self.n_drafted, "accepted": self.n_accepted,
            "acceptance": self.n_accepted / max(self.n_drafted, 1),
            "tokens_per_round": self.n_tokens / rounds,
            "draft_ms": 1e3 * self.draft_s / rounds, "verify_ms": 1e3 * self.verify_s / rounds,
            "rest_ms": 1e3 * (self.decode_s - self.draft_s - self.verify_s) / rounds,
            "by_cpu": plain.cpu_s / max(self.cpu_s, 1e-9),
            "by_clock": plain.decode_s / max(self.decode_s, 1e-9),
            "median_by_cpu": statistics.median(self.by_cpu or [1.0]),
            "median_by_clock": statistics.median(self.by_clock or [1.0]),
            "worst_by_cpu": min(self.by_cpu or [1.0]),
        }  # fmt: skip


@contextlib.contextmanager
def open_sides(
    model: Model, drafts: dict[str, Model], fixed: list[int], options: RequestOptions, threads: int
) -> Iterator[dict[str, Side]]:
    """Plain decoding, and for each draft the controller and fixed lengths, by their names."""
    params = ContextParams(n_ctx=1024, n_batch=128, n_ubatch=128, n_threads=threads)
    with contextlib.ExitStack() as stack:
        sides = {"plain": Side(open_runtime(model, params, NoDrafter(), None), options)}
        for name, draft in drafts.items():
            for n in (0, *fixed):
                drafter = SmallModel(draft, n or MAX_DRAFT)
                controller = FixedLength() if n else ProfitController()
                runtime = open_runtime(
                    model, params, drafter, n or MAX_DRAFT, controller=controller
                )
                sides[f"{name} {n or 'profit'}"] = Side(runtime, options, drafter)
        for side in sides.values():
            stack.enter_context(side)
        yield sides


def show(way: str, name: str, row: dict[str, Any]) -> None:
    """A line."""
    print(
        f"{way} {name}: {row['equal']} of {row['texts']} texts equal, {row['drafted']} drafted, "
        f"{row['acceptance']:.2f} accepted, {row['tokens_per_round']:.2f} tokens a round, "
        f"draft {row['draft_ms']:.1f} + verify {row['verify_ms']:.1f} + rest {row['rest_ms']:.2f} "
        f"ms a round, drafted in {row['rounds_with_draft']} of {row['rounds']} rounds; "
        f"by processor time {row['by_cpu']:.3f} (median {row['median_by_cpu']:.3f}, worst "
        f"{row['worst_by_cpu']:.3f}), by the clock {row['by_clock']:.3f} (median "
        f"{row['median_by_clock']:.3f})",
        flush=True,
    )


def main() -> int:
    """Measures; 1 where texts differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-d", "--draft", type=Path, action="append", required=True)
    parser.add_argument("--fixed", type=int, action="append", default=[])
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no prompt later")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    end = monotonic() + args.seconds
    with Model(args.model) as model, contextlib.ExitStack() as stack:
        drafts = {path.stem: stack.enter_context(Model(path)) for path in args.draft}
        by_way = {
            way: stack.enter_context(open_sides(model, drafts, args.fixed, WAYS[way], args.threads))
            for way in args.ways
        }
        template = ChatTemplate.of_model(model)
        sums = {way: {name: Sum() for name in sides} for way, sides in by_way.items()}
        rows: dict[str, dict[str, dict[str, Any]]] = {}
        for at, prompt in enumerate(load_prompts(args.prompts)):
            if monotonic() > end:
                break
            ids = prompt.as_chat(None).tokens(model.vocab, template)
            for way, sides in by_way.items():
                names = list(sides)
                turn = at % len(names)
                runs = {n: sides[n].run(ids, args.max_tokens) for n in names[turn:] + names[:turn]}
                for name in names:
                    sums[way][name].add(runs[name], runs["plain"])
                rows[way] = {n: sums[way][n].row(sums[way]["plain"]) for n in names}
            print(f"{at + 1} prompts: {prompt.id}", file=sys.stderr, flush=True)
            if args.json is not None:
                args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        for way, by_name in rows.items():
            for name, row in by_name.items():
                show(way, name, row)
    return int(any(row["equal"] < row["texts"] for by in rows.values() for row in by.values()))


if __name__ == "__main__":
    sys.exit(main())
