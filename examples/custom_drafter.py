"""A drafter of your own, with a table of phrases: ``python examples/custom_drafter.py MODEL.gguf``.

The text is the target's whatever a drafter proposes; a good one makes it come sooner.
"""

import sys

from pyllama_spec import Draft, Drafter, DraftRequest, Llama


class PhraseBook(Drafter):
    """Proposes the rest of a phrase whose beginning ends the text."""

    name = "phrase-book"

    def __init__(self) -> None:
        self.phrases: list[list[int]] = []

    def propose_one(self, request: DraftRequest) -> Draft:
        for phrase in self.phrases:
            for known in range(len(phrase) - 1, 1, -1):
                if request.tokens[-known:] == phrase[:known]:
                    return Draft(phrase[known : known + request.n_requested])
        return Draft()


def main(path: str) -> None:
    drafter = PhraseBook()
    with Llama(model_path=path, draft=drafter, n_ctx=512) as llama:
        numbers = "".join(f" {i}," for i in range(1, 41))
        drafter.phrases = [llama.tokenize(numbers, add_bos=False)]
        prompt = "Count to forty:" + numbers[: numbers.index(" 13")]
        result = llama.create_completion(prompt, max_tokens=32, temperature=0)
    print(result["choices"][0]["text"], result["speculation"], sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
