"""Compares the profit controller with plain decoding and fixed lengths, within one run.

    python benchmarks/profit.py -m TARGET.gguf -d DRAFT.gguf --fixed 4 --fixed 4:0.4 [-n 128]

All sides generate each prompt directly after each other; their order rotates with prompts and
repeats. A fixed side is N or N:P_MIN. It prints for each side the speed-up over plain decoding in
the rounds of all prompts, the worst prompt, and the share of rounds without a draft.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyllama_spec.bench.config import load_prompts
from pyllama_spec.bench.sides import Run, Side
from pyllama_spec.chat.template import ChatTemplate
from pyllama_spec.drafters import DraftOptions, NoDrafter, make_drafter
from pyllama_spec.engine import ContextParams, Model
from pyllama_spec.engine.system import stock_kernels
from pyllama_spec.llama.open_model import open_runtime
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.speculative import FixedLength, ProfitController


@dataclass(frozen=True, slots=True)
class Seen:
    """The figures of a run; n_plain are the rounds without a draft, text is a hash of it."""

    n_decoded: int
    decode_s: float
    cpu_s: float
    n_rounds: int
    n_plain: int
    n_drafted: int
    n_accepted: int
    text: str

    @classmethod
    def of(cls, run: Run) -> Seen:
        """The figures of a run."""
        digest = hashlib.sha256(repr(run.tokens).encode()).hexdigest()
        drafted, accepted = [one for one, _ in run.rounds], [one for _, one in run.rounds]
        return cls(
            run.timing.n_decoded, run.timing.decode_s, run.cpu_s, len(run.rounds), drafted.count(0),
            sum(drafted), sum(accepted), digest[:16],
        )  # fmt: skip


Times = dict[str, dict[str, list[Seen]]]


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


def rate(runs: list[Seen]) -> float:
    """The median tokens per second of the repeats."""
    return statistics.median(run.n_decoded / run.decode_s for run in runs if run.decode_s > 0)


def table(times: Times) -> dict[str, Any]:
    """The figures of each side."""
    out: dict[str, Any] = {}
    for name in times:
        totals, worst = [], {}
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
        every = [run for runs in times[name].values() for run in runs]
        rounds, drafted = sum(run.n_rounds for run in every), sum(run.n_drafted for run in every)
        same = all(
            run.text == times["plain"][key][0].text
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
            "worst": worst[least], "worst_prompt": least,
            "tokens_per_round": sum(run.n_decoded for run in every) / rounds,
            "accepted": sum(run.n_accepted for run in every) / max(drafted, 1),
            "without_draft": sum(run.n_plain for run in every) / rounds, "same_text": same,
        }  # fmt: skip
    return out


def show(repeat: int, by_side: dict[str, Any]) -> None:
    """Prints a line for each side."""
    for name, row in by_side.items():
        print(
            f"{repeat} {name:8} {row['total']:.3f} ({row['low']:.3f} .. "
            f"{row['high']:.3f}) worst {row['worst']:.3f} {row['worst_prompt']}, "
            f"{row['tokens_per_round']:.2f} tokens a round, {row['accepted']:.2f} accepted, "
            f"processor time with prompts {row['cpu']:.3f}, "
            f"{row['without_draft']:.0%} without, same text {row['same_text']}",
            flush=True,
        )


def parser() -> argparse.ArgumentParser:
    """The parser of the options."""
    out = argparse.ArgumentParser(description=__doc__)
    out.add_argument("-m", "--model", type=Path, required=True)
    out.add_argument("-d", "--draft", required=True)
    out.add_argument("--fixed", action="append", default=[], metavar="N[:P_MIN]")
    out.add_argument("-n", "--max-tokens", type=int, default=128)
    out.add_argument("--repeat", type=int, default=3)
    out.add_argument("--n-draft", type=int, default=None)
    out.add_argument("--lookup", type=int, default=None)
    out.add_argument("--prompts", type=Path, default=None)
    out.add_argument("--skip", default="field", help="a category to skip")
    out.add_argument("-c", "--n-ctx", type=int, default=1024)
    out.add_argument("-t", "--threads", type=int, default=None)
    out.add_argument(
        "--stock", action="store_true", help="the engine's own kernels, whose rows may differ"
    )
    out.add_argument("--json", type=Path, default=None)
    return out


def main() -> None:
    """Measures, and prints."""
    args = parser().parse_args()
    prompts = [p.as_chat(None) for p in load_prompts(args.prompts) if p.category != args.skip]
    names = ["plain", "profit", *args.fixed]
    times: Times = {name: {} for name in names}
    with contextlib.ExitStack() as stack:
        if args.stock:
            stack.enter_context(stock_kernels())
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
                    seen = Seen.of(sides[name].run(tokens, args.max_tokens))
                    times[name].setdefault(key, []).append(seen)
            by_side = table(times)
            show(repeat + 1, by_side)
        if args.json is not None:
            raw = {
                name: {key: [asdict(run) for run in runs] for key, runs in side.items()}
                for name, side in times.items()
            }
            out = {"table": by_side, "times": raw}
            args.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
