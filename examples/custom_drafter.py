"""A drafter of your own, which knows a phrase: ``python examples/custom_drafter.py MODEL.gguf``.

The text is the target's whatever a drafter proposes; a good one makes it come sooner.
"""

import sys

from pyllama_spec import Draft, Drafter, DraftRequest, Llama
from pyllama_spec.engine import Model

NUMBERS = "".join(f" {i}," for i in range(1, 41))


class Phrase(Drafter):
    """Proposes the rest of a phrase whose beginning ends the text."""

    name, ids = "phrase", list[int]()

    def check(self, target: Model) -> None:  # called by Llama(): here the tokenizer is at hand
        self.ids = target.vocab.tokenize(NUMBERS, add_special=False)

    def propose_one(self, request: DraftRequest) -> Draft:
        for known in range(len(self.ids) - 1, 1, -1):
            if request.tokens[-known:] == self.ids[:known]:
                return Draft(self.ids[known : known + request.n_requested])
        return Draft()


def main(path: str) -> None:
    with Llama(model_path=path, draft=Phrase(), n_ctx=512) as llama:
        prompt = "Count to forty:" + NUMBERS[: NUMBERS.index(" 13")]
        result = llama.create_completion(prompt, max_tokens=32, temperature=0)
    print(result["choices"][0]["text"], result["speculation"], sep="\n")


if __name__ == "__main__":
    main(*(sys.argv[1:] or sys.exit(__doc__)))
