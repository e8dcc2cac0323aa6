"""Writes SmolLM2's greedy texts, to be compared between systems.

python -m tests.windows.texts OUT.json MODEL.gguf ...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyllama_spec import Llama

_PROMPTS = ("The capital of France is", "def quicksort(values):", "Once upon a time")
_N_TOKENS = 32
_DRAFT = Path("examples/drafts/smollm2-135m-eagle3.gguf")


def texts(model: Path) -> list[list[str]]:
    """Texts without a draft and with two: one prompt after the other."""
    found: list[list[str]] = []
    for draft in (None, "suffix", _DRAFT):
        with Llama(model, draft=draft, n_ctx=256, n_threads=1) as llm:
            answers: list[Any] = [
                llm.create_completion(prompt, max_tokens=_N_TOKENS, temperature=0)
                for prompt in _PROMPTS
            ]
            found.append([answer["choices"][0]["text"] for answer in answers])
    return found


def main() -> None:
    """Compares plain texts with drafted ones at once, and leaves the rest to the caller."""
    out, *models = map(Path, sys.argv[1:])
    found = {model.name: texts(model) for model in models}
    for name, (plain, *drafted) in found.items():
        assert all(one == plain for one in drafted), name
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8", newline="\n")
    print(f"{len(found)} models, {len(_PROMPTS)} prompts, {_N_TOKENS} tokens: {out.name}")


if __name__ == "__main__":
    main()
