"""Takes the best draft that a model comes with: ``python examples/auto_draft.py MODEL.gguf``.

draft="auto" takes the MTP head in the model's own file, else a draft that lies beside it, else
copies of the text, and says which and why. draft="mtp" insists on the head.
"""

import sys

from pyllama_spec import Llama, PyllamaSpecError


def main(model_path: str) -> None:
    try:
        llm = Llama(model_path, draft="auto", n_ctx=512)
    except PyllamaSpecError as error:  # what is wrong with the file, and what to do
        sys.exit(str(error))
    with llm:
        result = llm.create_completion("1, 2, 3, 4, 5, ", max_tokens=48, temperature=0.0)
    print(result["choices"][0]["text"])
    found = result["speculation"]
    print(f"{found['drafter']}: {found['note']}")
    print(f"{found['accepted']} of {found['drafted']} drafted tokens accepted, {found['state']}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or sys.exit(__doc__)))
