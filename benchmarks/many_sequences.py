"""The cost of sequences that share rounds, and the gain of drafts for them.

    python benchmarks/many_sequences.py -m TARGET.gguf [-n 64] [--repeat 5] [--json OUT]

1. Plain decoding of 1, 2, 4, 8 and 16 sequences through the round, against a C loop that only
   calls the engine, as its own batched benchmark does: tokens of all per second, interleaved.
2. A copy task, eight times: each sequence repeats a function under another name. Plain decoding
   against prompt lookup, interleaved; the texts must be equal.

Ratios are medians over pairs, since a machine's speed drifts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from pyllama_spec.drafters import Drafter, NoDrafter, PromptLookup
from pyllama_spec.engine import Context, Model, Sampler, SamplerParams
from pyllama_spec.engine.baseline import baseline_decode
from pyllama_spec.speculative import Round, SequenceRun, SequenceState

WIDTHS = (1, 2, 4, 8, 16)
GREEDY = SamplerParams(temperature=0)
_TEXT_A = "The history of the bicycle begins with a frame of wood and two wheels that"
_FUNCTION = '''\
def summarize_orders(orders, currency, tax_rate, discount):
    """Return one line of text per customer and a grand total."""
    totals = {}
    skipped = []
    for order in orders:
        customer = order.get("customer")
        if customer is None:
            skipped.append(order["id"])
            continue
        subtotal = 0.0
        for item in order["items"]:
            subtotal += float(item["price"]) * int(item["quantity"])
        if subtotal > 1000.0:
            subtotal *= 1.0 - discount
        totals[customer] = totals.get(customer, 0.0) + round(subtotal * (1.0 + tax_rate), 2)
    lines = []
    for customer in sorted(totals):
        lines.append(f"{customer}: {totals[customer]:.2f} {currency}")
    return lines, skipped
'''
PROMPT = (
    "<|im_start|>user\nRepeat this function exactly, with `summarize_orders` renamed to "
    "`report_orders`. Write code only.\n\n```python\n"
    f"{_FUNCTION}```<|im_end|>\n<|im_start|>assistant\n```python\ndef report_orders("
)
NAMES = ("report", "list", "print", "collect", "format", "tell", "show", "describe")


def begin(round_: Round, prompts: Sequence[Sequence[int]], n: int) -> list[SequenceRun]:
    """Starts sequences: each decodes its prompt and samples one token."""
    runs = []
    for i, prompt in enumerate(prompts):
        sampler = Sampler(round_.target.model, GREEDY)
        run = SequenceRun(SequenceState(i), list(prompt), sampler, n)
        round_.begin(run)
        runs.append(run)
    while any(run.n_missing for run in runs):
        round_.step([run for run in runs if run.n_missing])
    return runs


def finish(round_: Round, runs: Sequence[SequenceRun]) -> float:
    """Generates until all sequences end; returns the seconds."""
    start = perf_counter()
    left = [run for run in runs if not run.is_over]
    while left:
        for _, step in round_.step(left):
            if step.error is not None:
                raise step.error
        left = [run for run in left if not run.is_over]
    return perf_counter() - start


def plain_against_engine(model: Model, n: int, repeats: int, widths: Sequence[int]) -> list[Any]:
    """Measures part 1; returns a row for each number of sequences."""
    words = _TEXT_A.split()
    out = []
    for width in widths:
        prompts = [model.vocab.tokenize(" ".join(words[i % 9 :])) for i in range(width)]
        with Context(model, n_ctx=256 * width, n_seq_max=width, n_outputs_max=width) as context:
            round_ = Round(context, NoDrafter())
            ours, raw = [], []
            for i in range(repeats + 1):
                seconds, n_rounds = full_rounds(round_, begun(round_, prompts, n))
                runs = begun(round_, prompts, n)
                places = [run.state.n_decoded for run in runs]
                ids = [run.state.tokens[-1] for run in runs]
                raw_seconds = baseline_decode(context, places, ids, n_rounds)
                if i:  # the first pair warms up
                    ours.append(width * n_rounds / seconds)
                    raw.append(width * n_rounds / raw_seconds)
        ratios = [a / b for a, b in zip(ours, raw, strict=True)]
        out.append({
            "n_sequences": width, "rounds": n_rounds, "tps": statistics.median(ours),
            "engine_tps": statistics.median(raw), "ratio": statistics.median(ratios),
            "ratio_min": min(ratios), "ratio_max": max(ratios),
        })  # fmt: skip
    return out


def begun(round_: Round, prompts: Sequence[Sequence[int]], n: int) -> list[SequenceRun]:
    """Empties the memory, then calls begin()."""
    round_.target.memory.clear()
    return begin(round_, prompts, n)


def full_rounds(round_: Round, runs: Sequence[SequenceRun]) -> tuple[float, int]:
    """Runs rounds of equal width until a sequence ends; returns the seconds and the rounds.

    Raises:
        RuntimeError: a text ends at once, so that there are too few rounds to measure.

    """
    start, n_rounds = perf_counter(), 0
    while not any(run.is_over for run in runs):
        round_.step(runs)
        n_rounds += 1
    if n_rounds < (runs[0].max_tokens - 1) // 2:
        raise RuntimeError(f"a text ended after {n_rounds} rounds: choose other prompts")
    return perf_counter() - start, n_rounds


def copies(model: Model, n: int, repeats: int) -> dict[str, Any]:
    """Measures part 2: eight copies of a function, plain and with prompt lookup."""
    texts = [PROMPT.replace("report_orders", f"{name}_orders") for name in NAMES]
    prompts = [model.vocab.tokenize(text, parse_special=True) for text in texts]
    width, n_ctx = len(prompts), max(map(len, prompts)) + n
    with Context(model, n_ctx=n_ctx * width, n_seq_max=width, n_outputs_max=64) as context:

        def run(drafter: Drafter) -> tuple[float, list[list[int]], Round, list[SequenceRun]]:
            context.memory.clear()
            round_ = Round(context, drafter)
            runs = begin(round_, prompts, n)
            seconds = finish(round_, runs)
            n_tokens = sum(run.n_generated - 1 for run in runs)
            return n_tokens / seconds, [run.state.tokens for run in runs], round_, runs

        plain, spec, same = [], [], True
        for i in range(repeats + 1):
            rate, expected, _, _ = run(NoDrafter())
            rate_spec, got, _, runs = run(PromptLookup())
            same = same and expected == got
            if i:
                plain.append(rate)
                spec.append(rate_spec)
        drafted = sum(run.stats.drafted for run in runs)
        accepted = sum(run.stats.accepted for run in runs)
        rounds = sum(run.stats.rounds for run in runs)
    ratios = [b / a for a, b in zip(plain, spec, strict=True)]
    return {
        "plain_tps": statistics.median(plain), "lookup_tps": statistics.median(spec),
        "speedup": statistics.median(ratios), "speedup_min": min(ratios),
        "speedup_max": max(ratios), "same_text": same, "acceptance": accepted / max(drafted, 1),
        "tokens_per_round": (accepted + rounds) / max(rounds, 1),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables; returns 1 if a text of the copies differs."""
    parser = argparse.ArgumentParser(description="sequences that share rounds")
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-n", type=int, default=64, help="tokens per sequence")
    parser.add_argument("--copy", type=int, default=200, help="tokens per copy; 0 to skip")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--widths", type=int, nargs="*", default=list(WIDTHS))
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args(argv)
    model = Model(args.model)
    result: dict[str, Any] = {"target": args.model.name}
    if args.widths:
        result["plain"] = plain_against_engine(model, args.n, args.repeat, args.widths)
        print(f"{'sequences':>9} {'tok/s':>8} {'engine':>8} {'ratio':>18}")
        for row in result["plain"]:
            spread = f"({row['ratio_min']:.3f} .. {row['ratio_max']:.3f})"
            print(
                f"{row['n_sequences']:>9} {row['tps']:>8.1f} {row['engine_tps']:>8.1f} "
                f"{row['ratio']:.3f} {spread}"
            )
    if args.copy:
        result["copies"] = c = copies(model, args.copy, args.repeat)
        print(
            f"eight copies: plain {c['plain_tps']:.1f} tok/s, prompt lookup "
            f"{c['lookup_tps']:.1f}, speed-up {c['speedup']:.2f} ({c['speedup_min']:.2f} .. "
            f"{c['speedup_max']:.2f}), {c['tokens_per_round']:.2f} tokens per round, acceptance "
            f"{c['acceptance']:.2f}, same text: {c['same_text']}"
        )
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if result.get("copies", {}).get("same_text", True) else 1


if __name__ == "__main__":
    sys.exit(main())
