"""A program written for llama-cpp-python that answers from notes, with one import changed.

``python examples/drop_in_notes.py MODEL.gguf``

The note nearest to a question is found by embeddings, and the answer quotes it: what stands in the
prompt already is what prompt lookup drafts.
"""

import sys

import numpy as np
import numpy.typing as npt

from pyllama_spec.llama_cpp import LLAMA_POOLING_TYPE_MEAN, Llama  # was: from llama_cpp import ...

NOTES = [
    "The coffee machine on the second floor is cleaned every Friday at five in the afternoon.",
    "Visitors get a badge at the front desk; it opens the doors of the first floor only.",
    "The bicycle cellar is locked at night. The key hangs in the kitchen, behind the door.",
]
QUESTIONS = ["Where is the key of the bicycle cellar?", "When is the coffee machine cleaned?"]


def vectors(llm: Llama, texts: list[str]) -> npt.NDArray[np.float64]:
    """A row of length 1 for each text, without what all of these texts have in common."""
    rows = np.array([item["embedding"] for item in llm.create_embedding(texts)["data"]])
    centred = rows - rows.mean(axis=0)
    unit_rows: npt.NDArray[np.float64] = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    return unit_rows


def main(model_path: str) -> list[str]:
    reader = Llama(
        model_path=model_path, embedding=True, pooling_type=LLAMA_POOLING_TYPE_MEAN, n_ctx=512,
        verbose=False,
    )  # fmt: skip
    nearest = (vectors(reader, QUESTIONS) @ vectors(reader, NOTES).T).argmax(axis=1)
    reader.close()
    llm = Llama(model_path=model_path, n_ctx=1024, verbose=False, draft="prompt-lookup")
    answers = []
    for question, at in zip(QUESTIONS, nearest, strict=True):
        answer = llm.create_chat_completion(
            messages=[{"role": "user", "content": f"Note: {NOTES[at]}\n\n{question}"}],
            temperature=0.0, max_tokens=48,
        )["choices"][0]["message"]["content"]  # fmt: skip
        print(f"{question}\n  note:   {NOTES[at]}\n  answer: {answer}")
        answers.append(answer)
    llm.close()
    return answers


if __name__ == "__main__":
    main(*(sys.argv[1:] or sys.exit(__doc__)))
