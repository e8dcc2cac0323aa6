"""A drafter of one's own: it proposes what a table of phrases says.

``python examples/custom_drafter.py MODEL.gguf``

The text is the target's whatever a drafter proposes; a good one only makes it come sooner.
"""

import sys
from collections.abc import Sequence

from pyllama_spec import Draft, Llama
from pyllama_spec.drafters import Features


class PhraseBook:
    """Proposes the rest of a known phrase once its beginning has been generated."""

    name = "phrase-book"
    target_layers: tuple[int, ...] = ()  # it needs no hidden states of the target
    max_draft = 8

    def __init__(self) -> None:
        self.phrases: list[list[int]] = []
        self.tokens: list[int] = []

    def begin(self, seq: int, tokens: Sequence[int], features: Features) -> None:
        self.tokens.extend(tokens)  # the prompt, batch by batch

    def commit(self, seq: int, tokens: Sequence[int], features: Features) -> None:
        self.tokens.extend(tokens)  # what was generated

    def propose(self, seq: int, pending: int, n: int) -> Draft:
        for phrase in self.phrases:
            for known in range(min(len(phrase) - 1, len(self.tokens)), 1, -1):
                if self.tokens[-known:] == phrase[:known]:
                    return Draft(phrase[known : known + n])
        return Draft()

    def truncate(self, seq: int, n_keep: int) -> None:
        del self.tokens[n_keep:]

    def copy(self, seq: int, to: int) -> None:
        raise NotImplementedError("one sequence is enough here")

    def close(self) -> None:
        self.tokens.clear()


def main(path: str) -> str:
    drafter = PhraseBook()
    with Llama(model_path=path, draft=drafter, n_ctx=512) as llama:
        numbers = "".join(f" {i}," for i in range(1, 41))
        drafter.phrases = [llama.tokenize(numbers, add_bos=False)]
        prompt = "Count to forty:" + numbers[: numbers.index(" 13")]
        result = llama.create_completion(prompt, max_tokens=32, temperature=0)
    text = str(result["choices"][0]["text"])
    print(text, result["speculation"], sep="\n")
    return text


if __name__ == "__main__":
    main(sys.argv[1])
