"""Prompt lookup in its best case: repeat a function of 40 lines with one name changed.

``python benchmarks/copy_task.py -m TARGET.gguf [--json OUT]``: greedy, plain and speculative
interleaved in one process. The speed-up is the median over pairs; both texts must be equal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyllama_spec.drafters import Drafter, NoDrafter, PromptLookup
from pyllama_spec.engine import Context, Model, Sampler, SamplerParams
from pyllama_spec.speculative import Controller, SequenceState, SpeculativeLoop, make_controller

FUNCTION = '''\
def summarize_orders(orders, currency, tax_rate, discount):
    """Return one line of text per customer and a grand total."""
    totals = {}
    counts = {}
    skipped = []
    for order in orders:
        customer = order.get("customer")
        if customer is None:
            skipped.append(order["id"])
            continue
        subtotal = 0.0
        for item in order["items"]:
            price = float(item["price"])
            quantity = int(item["quantity"])
            if quantity <= 0:
                continue
            subtotal += price * quantity
        if subtotal > 1000.0:
            subtotal *= 1.0 - discount
        tax = subtotal * tax_rate
        total = round(subtotal + tax, 2)
        totals[customer] = totals.get(customer, 0.0) + total
        counts[customer] = counts.get(customer, 0) + 1
    lines = []
    grand_total = 0.0
    for customer in sorted(totals):
        amount = totals[customer]
        number = counts[customer]
        grand_total += amount
        lines.append(
            f"{customer}: {amount:.2f} {currency} "
            f"in {number} orders"
        )
    lines.append(f"total: {grand_total:.2f} {currency}")
    if skipped:
        lines.append(
            f"skipped {len(skipped)} orders without a customer: "
            f"{', '.join(str(number) for number in skipped)}"
        )
    return lines
'''

PROMPT = (
    "<|im_start|>user\nRepeat this function exactly, with `summarize_orders` renamed to "
    "`report_orders`. Write code only.\n\n```python\n"
    + FUNCTION
    + "```<|im_end|>\n<|im_start|>assistant\n```python\ndef report_orders("
)


def run(
    context: Context,
    drafter: Drafter,
    prompt: Sequence[int],
    n: int,
    controller: Controller | None = None,
) -> tuple[list[int], SpeculativeLoop]:
    """Generates greedily from an emptied context; returns the tokens and the loop."""
    context.memory.clear()
    loop, state = SpeculativeLoop(context, drafter, None, controller), SequenceState()
    loop.prefill(state, prompt)
    for _ in loop.generate(state, Sampler(context.model, SamplerParams(temperature=0)), n):
        pass
    return state.tokens[len(prompt) :], loop


def measure(path: Path, n_tokens: int, repeats: int, choice: str) -> dict[str, Any]:
    """Runs both sides interleaved, `repeats` times each after a warm-up."""
    model = Model(path)
    context = Context(model, n_ctx=2048)
    prompt = model.vocab.tokenize(PROMPT, parse_special=True)
    plain: list[SpeculativeLoop] = []
    spec: list[SpeculativeLoop] = []
    same = True
    for i in range(repeats + 1):
        expected, a = run(context, NoDrafter(), prompt, n_tokens)
        got, b = run(context, PromptLookup(), prompt, n_tokens, make_controller(choice))
        same = same and expected == got
        if i > 0:
            plain.append(a)
            spec.append(b)
    ratios = [b.timing.decode_tps / a.timing.decode_tps for a, b in zip(plain, spec, strict=True)]
    return {
        "target": path.name,
        "n_tokens": plain[0].timing.n_decoded,
        "plain_tps": statistics.median(x.timing.decode_tps for x in plain),
        "spec_tps": statistics.median(x.timing.decode_tps for x in spec),
        "speedup": statistics.median(ratios),
        "speedup_min": min(ratios),
        "speedup_max": max(ratios),
        "same_text": same,
        "speculation": spec[0].stats.as_dict(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line per target; exit code 1 if a text differs."""
    parser = argparse.ArgumentParser(description="prompt lookup on a copy task")
    parser.add_argument("-m", "--model", type=Path, action="append", required=True)
    parser.add_argument("-n", type=int, default=320)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--controller", choices=("fixed", "profit"), default="fixed")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args(argv)
    results = [measure(path, args.n, args.repeat, args.controller) for path in args.model]
    for r in results:
        s = r["speculation"]
        print(
            f"{r['target']}: plain {r['plain_tps']:.1f} tok/s, prompt lookup "
            f"{r['spec_tps']:.1f} tok/s, speed-up {r['speedup']:.2f} "
            f"({r['speedup_min']:.2f} .. {r['speedup_max']:.2f}), "
            f"{s['tokens_per_round']:.2f} tokens per round, acceptance "
            f"{s['acceptance_rate']:.2f}, same text: {r['same_text']}"
        )
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0 if all(r["same_text"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
