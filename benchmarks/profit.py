"""The profit controller beside plain decoding and fixed lengths: ratios within one run.

    python benchmarks/profit.py -m TARGET.gguf -d DRAFT.gguf --fixed 4 --fixed 4:0.4 [-n 128]

Every prompt goes through all sides directly after each other, in an order that turns with each
repeat. A fixed side is N or N:P_MIN. Printed are, for each side, total tokens over total seconds of
the rounds against plain decoding's, the worst prompt, and the share of rounds without a draft.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
from pathlib import Path
from typing import Any

from pyllama_spec.bench.prompt_file import load_prompts
from pyllama_spec.bench.sides import Run, Side
from pyllama_spec.drafters import DraftOptions, NoDrafter, make_drafter
from pyllama_spec.engine import ContextParams, Model
from pyllama_spec.generation.chat_template import ChatTemplate
from pyllama_spec.generation.options import RequestOptions
from pyllama_spec.llama.loading import open_runtime
from pyllama_spec.speculative import FixedLength, ProfitController

Times = dict[str, dict[str, list[Run]]]


def open_side(model: Model, args: argparse.Namespace, name: str) -> Side:
    """A side by its name: plain, profit, or a fixed length."""
    params = ContextParams(n_ctx=args.n_ctx, n_threads=args.threads)
    options = RequestOptions(max_tokens=args.max_tokens, temperature=0.0)
    if name == "plain":
        return Side(open_runtime(model, params, NoDrafter(), None), options)
    is_file = Path(args.draft).is_file()
    if name == "profit":
        drafter = make_drafter(
            args.draft, DraftOptions(args.n_draft, lookup=args.lookup, is_adaptive=True)
        )
        controller: Any = ProfitController()
        n = args.n_draft
    else:
        length, _, p_min = name.partition(":")
        n, p = int(length), float(p_min or 0.0)
        drafter = make_drafter(args.draft, DraftOptions(n, p if is_file else None, args.lookup))
        controller = FixedLength()
    return Side(open_runtime(model, params, drafter, n, controller=controller), options, drafter)


def rate(runs: list[Run]) -> float:
    """Tokens per second of the repeat in the middle."""
    return statistics.median(run.n_decoded / run.decode_s for run in runs if run.decode_s > 0)


def table(times: Times) -> dict[str, Any]:
    """What is printed."""
    out: dict[str, Any] = {}
    for name in times:
        totals, worst, tokens, rounds, plain_rounds = [], {}, 0, 0, 0
        n_repeats = min(len(runs) for runs in times[name].values())
        for i in range(n_repeats):
            seconds = {
                side: sum(runs[i].decode_s for runs in times[side].values())
                for side in (name, "plain")
            }
            totals.append(seconds["plain"] / seconds[name])
        for key, runs in times[name].items():
            if runs[0].n_decoded:
                worst[key] = rate(runs) / rate(times["plain"][key])
            for run in runs:
                tokens += run.n_decoded
                rounds += len(run.rounds)
                plain_rounds += sum(drafted == 0 for drafted, _ in run.rounds)
        same = all(
            run.tokens == times["plain"][key][0].tokens
            for key, runs in times[name].items() for run in runs
        )  # fmt: skip
        least = min(worst, key=lambda key: worst[key])
        cpu = {
            side: sum(run.cpu_s for runs in times[side].values() for run in runs)
            for side in (name, "plain")
        }
        out[name] = {
            "cpu": cpu["plain"] / cpu[name] if cpu[name] else 0.0,
            "total": statistics.median(totals), "low": min(totals), "high": max(totals),
            "worst": worst[least], "worst_prompt": least, "tokens_per_round": tokens / rounds,
            "without_draft": plain_rounds / rounds, "same_text": same,
        }  # fmt: skip
    return out


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-d", "--draft", required=True)
    parser.add_argument("--fixed", action="append", default=[], metavar="N[:P_MIN]")
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--n-draft", type=int, default=None)
    parser.add_argument("--lookup", type=int, default=None)
    parser.add_argument("--prompts", type=Path, default=None)
    parser.add_argument("--skip", default="field", help="a category that is left out")
    parser.add_argument("-c", "--n-ctx", type=int, default=1024)
    parser.add_argument("-t", "--threads", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    prompts = [p.as_chat(None) for p in load_prompts(args.prompts) if p.category != args.skip]
    names = ["plain", "profit", *args.fixed]
    times: Times = {name: {} for name in names}
    with Model(args.model) as model, contextlib.ExitStack() as stack:
        template = ChatTemplate.of_model(model)
        sides = {name: stack.enter_context(open_side(model, args, name)) for name in names}
        ids = {prompt.id: prompt.tokens(model.vocab, template) for prompt in prompts}
        first = next(iter(ids.values()))
        for side in sides.values():  # pages of the file; the controller's curves start empty after
            side.run(first, 8)
        for repeat in range(args.repeat):
            for at, (key, tokens) in enumerate(ids.items()):
                turn = (repeat + at) % len(names)
                for name in [*names[turn:], *names[:turn]]:
                    times[name].setdefault(key, []).append(sides[name].run(tokens, args.max_tokens))
            found = table(times)
            for name, row in found.items():
                print(
                    f"{repeat + 1} {name:8} {row['total']:.3f} ({row['low']:.3f} .. "
                    f"{row['high']:.3f}) worst {row['worst']:.3f} {row['worst_prompt']}, "
                    f"{row['tokens_per_round']:.2f} tokens a round, "
                    f"processor time with prompts {row['cpu']:.3f}, "
                    f"{row['without_draft']:.0%} without, same text {row['same_text']}",
                    flush=True,
                )
        described = sides["profit"].runtime.round.scheduler.controller.describe()
        print(json.dumps(described))
        if args.json is not None:
            args.json.write_text(json.dumps({"table": found, "controller": described}, indent=1))


if __name__ == "__main__":
    main()
