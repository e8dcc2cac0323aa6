"""Copies from earlier requests: ``python examples/remembered_requests.py MODEL.gguf STORE``.

draft="suffix" drafts from the text itself and from what earlier requests said. The store keeps that
on disk: run the program twice, and the second run drafts from the first one's answers.
"""

import sys

from pyllama_spec import Llama

ORDERS = ["3 lamps for Maria Lopez", "12 chairs for John Miller", "2 tables for Ann Lee"]


def main(model_path: str, store: str) -> list[float]:
    per_round = []
    with Llama(model_path, draft="suffix", draft_memory=store, n_ctx=1024) as llm:
        for order in ORDERS:
            result = llm.create_completion(
                f"Order: {order}\nConfirmation:", max_tokens=48, temperature=0.0
            )
            found = result["speculation"]
            per_round.append(found["tokens_per_round"])
            print(f"{order}: {found['accepted']} tokens copied, {per_round[-1]:.2f} per round")
        # Not for the store: remember=False keeps a request out of it.
        llm.create_completion("My password is", max_tokens=8, remember=False)
    return per_round


if __name__ == "__main__":
    main(*(sys.argv[1:] or sys.exit(__doc__)))
