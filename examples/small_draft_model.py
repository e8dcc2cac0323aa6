"""A small model drafts for a large one: ``python examples/small_draft_model.py LARGE SMALL``.

Any GGUF that generates text can draft. The text is the large model's own, which this program checks
by generating it once more without the draft. `pyllama-spec doctor -m LARGE -d SMALL` says whether
such a draft pays on your machine.
"""

import argparse

from pyllama_spec import Llama

PROMPT = "The days of the week are Monday, Tuesday,"


def main(large: str, small: str) -> None:
    with Llama(large, draft=small, n_draft=4, n_ctx=512) as llm:
        drafted = llm.create_completion(PROMPT, max_tokens=48, temperature=0.0)
        plain = llm.create_completion(PROMPT, max_tokens=48, temperature=0.0, n_draft=0)
    print(drafted["choices"][0]["text"])
    print("same text:", drafted["choices"][0]["text"] == plain["choices"][0]["text"])
    found = drafted["speculation"]
    print(f"{found['drafter']}: {found['accepted']} of {found['drafted']} accepted,", end=" ")
    print(f"{found['tokens_per_round']:.2f} tokens per round, {found['state']}")
    if found["reason_off"]:
        print("the controller disabled it:", found["reason_off"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("large", help="the GGUF of the target")
    parser.add_argument("small", help="the GGUF of a smaller model")
    main(**vars(parser.parse_args()))
