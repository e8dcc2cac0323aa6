"""A program written for llama-cpp-python that reads letters into a table, with one import changed.

``python examples/drop_in_extract.py MODEL.gguf``

What a schema leaves no choice about, such as the names of its fields, is drafted without asking a
model: draft="grammar" drafts this alone, any other draft this as well.
"""

import csv
import json
import sys

from pyllama_spec.llama_cpp import Llama  # was: from llama_cpp import Llama

LETTERS = [
    "Hello, this is Maria Lopez. I ordered 3 lamps last week and one of them is broken.",
    "Good morning, John Miller here. Please cancel the 12 chairs, we do not need them any more.",
    "Dear shop, where are my 2 tables? I wait since March. Regards, Ann Lee",
]
ASK = "The customer's name and how many articles were ordered, as JSON:"
FIELDS = ["full_name_of_the_customer", "number_of_articles_ordered"]
ORDER = {
    "type": "object",
    "properties": {
        "full_name_of_the_customer": {"type": "string", "maxLength": 24},
        "number_of_articles_ordered": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": FIELDS,
    "additionalProperties": False,
}


def read_order(llm: Llama, letter: str) -> dict[str, object]:
    answer = llm.create_chat_completion(
        messages=[
            {"role": "user", "content": f"{letter}\n\n{ASK}"},
        ],
        response_format={"type": "json_object", "schema": ORDER},
        temperature=0.0,
        max_tokens=128,
    )
    return dict(json.loads(answer["choices"][0]["message"]["content"]))


def main(model_path: str) -> list[dict[str, object]]:
    llm = Llama(model_path=model_path, n_ctx=1024, verbose=False, draft="grammar")
    orders = [read_order(llm, letter) for letter in LETTERS]
    table = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
    table.writeheader()
    table.writerows(orders)
    llm.close()
    return orders


if __name__ == "__main__":
    main(*(sys.argv[1:] or sys.exit(__doc__)))
