"""Streams an answer and colours it: ``python examples/coloured_stream.py MODEL.gguf [DRAFT]``.

Each piece of the text says who drafted it. Green is the draft model, cyan a copy of the text,
magenta a copy of an earlier request, yellow the grammar. Uncoloured tokens are the target's own.
"""

import sys

from pyllama_spec import Llama

COLOURS = {"model": 32, "copy": 36, "memory": 35, "grammar": 33}
MESSAGES = [{"role": "user", "content": "Count from 1 to 20, then do it once more."}]


def main(model_path: str, draft: str = "prompt-lookup") -> None:
    # The controller would draft nothing where that is faster; "fixed" drafts in every round.
    with Llama(model_path, draft=draft, controller="fixed", n_ctx=1024) as llm:
        stream = llm.create_chat_completion(
            MESSAGES, max_tokens=96, temperature=0.0, stream=True, return_token_sources=True
        )
        for chunk in stream:
            for piece in chunk["choices"][0].get("token_sources", ()):
                colour = COLOURS.get(piece["source"])
                text = f"\033[{colour}m{piece['text']}\033[0m" if colour else piece["text"]
                print(text, end="", flush=True)
    print(f"\n{chunk['speculation']['tokens_per_round']:.2f} tokens per round")


if __name__ == "__main__":
    main(*(sys.argv[1:] or sys.exit(__doc__)))
