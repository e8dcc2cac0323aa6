"""Compares the profit controller with plain decoding and fixed lengths, within one run.

    python -m benchmarks.profit -m TARGET.gguf -d DRAFT.gguf --fixed 4 --fixed 4:0.4 [-n 128]

All sides generate each prompt directly after each other; their order rotates with prompts and
repeats. A fixed side is N or N:P_MIN. It prints for each side the speed-up over plain decoding in
the rounds of all prompts, by processor time, the worst prompt, and the share of rounds without a
draft.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from pathlib import Path
from typing import Any

from pyllama_spec.bench.config import load_prompts
from pyllama_spec.bench.sides import Run, Side
from pyllama_spec.chat.template import ChatTemplate
from pyllama_spec.drafters import DraftOptions, NoDrafter, make_drafter
from pyllama_spec.engine import ContextParams, Model
from pyllama_spec.llama.open_model import open_runtime
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.speculative import FixedLength, ProfitController

# By side and prompt, the runs of all repeats.
Runs = dict[str, dict[str, list[Run]]]


def open_side(model: Model, args: argparse.Namespace, name: str) -> Side:
    """Opens a side by its name: plain, profit, or a fixed length."""
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
    runtime = open_runtime(model, params, drafter, n, controller=controller)
    return Side(runtime, options, drafter)


def line(name: str, runs: Runs) -> str:
    """The figures of a side."""
    mine, plain = runs[name], runs["plain"]
    seconds = {
        side: [sum(one.rounds_cpu_s for one in repeat) for repeat in zip(*by.values(), strict=True)]
        for side, by in ((name, mine), ("plain", plain))
    }
    gains = [a / b for a, b in zip(seconds["plain"], seconds[name], strict=True)]
    worst = {
        key: sum(one.rounds_cpu_s for one in plain[key]) / sum(one.rounds_cpu_s for one in of)
        for key, of in mine.items()
        if of[0].rounds
    }
    least = min(worst, key=lambda key: worst[key])
    rounds = [one for of in mine.values() for run in of for one in run.rounds]
    n_tokens = sum(run.timing.n_decoded for of in mine.values() for run in of)
    n_drafted = sum(drafted for drafted, _ in rounds)
    same = all(run.tokens == plain[key][0].tokens for key, of in mine.items() for run in of)
    return (
        f"{name:8} {statistics.median(gains):.3f} ({min(gains):.3f} .. {max(gains):.3f}) worst "
        f"{worst[least]:.3f} {least}, {n_tokens / len(rounds):.2f} tokens a round, "
        f"{sum(accepted for _, accepted in rounds) / max(n_drafted, 1):.2f} accepted, "
        f"{sum(not drafted for drafted, _ in rounds) / len(rounds):.0%} without, same text {same}"
    )


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-d", "--draft", required=True)
    parser.add_argument("--fixed", action="append", default=[], metavar="N[:P_MIN]")
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--n-draft", type=int)
    parser.add_argument("--lookup", type=int)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--skip", default="field", help="a category to skip")
    parser.add_argument("-c", "--n-ctx", type=int, default=1024)
    parser.add_argument("-t", "--threads", type=int, default=1)
    args = parser.parse_args()
    prompts = [p.as_chat(None) for p in load_prompts(args.prompts) if p.category != args.skip]
    names = ["plain", "profit", *args.fixed]
    runs: Runs = {name: {} for name in names}
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(Model(args.model))
        template = ChatTemplate.of_model(model)
        sides = {name: stack.enter_context(open_side(model, args, name)) for name in names}
        ids = {prompt.id: prompt.tokens(model.vocab, template) for prompt in prompts}
        first = next(iter(ids.values()))
        for side in sides.values():  # loads file pages; the controller's curves start empty after
            side.run(first, 8)
        for repeat in range(args.repeat):
            for at, (key, tokens) in enumerate(ids.items()):
                turn = (repeat + at) % len(names)
                for name in [*names[turn:], *names[:turn]]:
                    run = sides[name].run(tokens, args.max_tokens)
                    runs[name].setdefault(key, []).append(run)
            for name in names:
                print(repeat + 1, line(name, runs), flush=True)


if __name__ == "__main__":
    main()
