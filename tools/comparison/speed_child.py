"""Measures import, load, prompt and decoding speed of one side in this process.

``python -m tools.comparison.speed_child SIDE MODEL ENGINE DRAFT`` prints JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from time import process_time, thread_time
from typing import Any

from tools.comparison.engine import find_engine

CHAT = [{"role": "user", "content": "Write a quicksort algorithm in Python. Write code only."}]
WORDS = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 40
N_PROMPT, N_TEXT = 512, 96


def timed(call: Callable[[], Any], clock: Callable[[], float] = process_time) -> tuple[Any, float]:
    """The result of a call, and its processor time in seconds."""
    start = clock()
    value = call()
    return value, clock() - start


def main(side: str, model: str, engine: str, draft: str) -> int:
    """Prints the measurements as JSON."""
    if side != "theirs":
        find_engine(engine)
    name = "llama_cpp" if side == "theirs" else "pyllama_spec.llama_cpp"
    module, import_s = timed(lambda: importlib.import_module(name), thread_time)
    options: dict[str, Any] = {
        "n_ctx": 1024, "n_threads": 1, "n_threads_batch": 1, "verbose": False,
    }  # fmt: skip
    if side == "draft":
        options["draft"] = draft
    llm, load_s = timed(lambda: module.Llama(model, **options))
    ids = llm.tokenize(WORDS.encode())[:N_PROMPT]
    assert len(ids) == N_PROMPT
    llm(ids[:8], max_tokens=1, temperature=0.0)
    llm.reset()
    _, prompt_s = timed(lambda: llm(ids, max_tokens=1, temperature=0.0))
    _, first_s = timed(lambda: llm.create_chat_completion(CHAT, temperature=0.0, max_tokens=1))
    answer, whole_s = timed(
        lambda: llm.create_chat_completion(CHAT, temperature=0.0, max_tokens=N_TEXT)
    )
    n = answer["usage"]["completion_tokens"]
    print(
        json.dumps(
            {
                "import_s": import_s, "load_s": load_s, "prompt_tps": N_PROMPT / prompt_s,
                "decode_tps": n / whole_s, "first_s": first_s,
            }
        )
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
