"""The gain of drafting forced text: ``python benchmarks/forced_text.py MODEL.gguf``.

Decoding is greedy, by a schema with long keys. The sides are interleaved four times, the first as a
warm-up. Figures are medians of the decoding time. "free" is the same chat without a schema.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

from pyllama_spec import Llama

KEYS = (
    "customer_identification_number", "preferred_delivery_address_line",
    "number_of_previous_orders", "name_of_account_manager", "total_amount_outstanding_in_euro",
    "most_recent_complaint_category",
)  # fmt: skip
NUMBER = {"type": "integer", "minimum": 0, "maximum": 999}
TEXT = {"type": "string", "maxLength": 12}
SCHEMA = {
    "type": "object",
    "properties": {key: TEXT if i % 2 else NUMBER for i, key in enumerate(KEYS)},
    "required": list(KEYS),
    "additionalProperties": False,
}
MESSAGES = [{"role": "user", "content": "Invent a customer record as JSON."}]
N_REPEAT = 4


def main(path: str) -> None:
    """Prints a line for each side."""
    form = {"type": "json_object", "schema": SCHEMA}
    sides = {
        name: Llama(path, n_ctx=512, draft=name) for name in ("none", "grammar", "prompt-lookup")
    }
    seconds: dict[str, list[float]] = {}
    last: dict[str, Any] = {}
    for _ in range(N_REPEAT):
        for name, llm in [*sides.items(), ("free", sides["none"])]:
            response = llm.create_chat_completion(
                MESSAGES, temperature=0.0, max_tokens=200,
                response_format=None if name == "free" else form,
            )  # fmt: skip
            n = response["usage"]["completion_tokens"]
            seconds.setdefault(name, []).append(response["timing"]["decode_s"] / n)
            last[name] = response
    texts = {last[name]["choices"][0]["message"]["content"] for name in sides}
    assert len(texts) == 1, "the text depends on the draft"
    json.loads(texts.pop())
    for name, each in seconds.items():
        speculation = last[name]["speculation"]
        print(
            f"{name:14} {1000 * statistics.median(each[1:]):6.2f} ms per token, "
            f"{speculation['tokens_per_round']:.2f} tokens per round, "
            f"{speculation['accepted']} of {speculation['drafted']} drafted accepted"
        )


if __name__ == "__main__":
    main(sys.argv[1])
