"""Writes prompts of N tokens for `bench --prompts`, of this repository's documents and code.

    python -m benchmarks.long_prompts -m MODEL.gguf -n 4096 -o long.jsonl
    pyllama-spec bench -m MODEL.gguf -d suffix --prompts long.jsonl --n-ctx 4416 -n 128 --repeat 1

One asks for a summary of documents, one for a function of the code with small changes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from pyllama_spec.engine import Model

_ROOT = Path(__file__).resolve().parents[1]
_ASKED = {
    "document": "Summarise the text above in ten sentences.",
    "code": "Write the last complete function of the text above again, with type hints and one "
    "more comment.",
}
# Tokens that the question and the chat template add.
_AROUND = 40


def texts() -> dict[str, str]:
    """The text with which each kind of prompt begins."""
    pages = ("start", "server", "drafters", "train", "suffix", "limits")
    files = {
        "document": [_ROOT / "docs" / f"{page}.md" for page in pages],
        "code": sorted((_ROOT / "pyllama_spec" / "speculative").glob("*.py")),
    }
    return {
        kind: "\n\n".join(path.read_text(encoding="utf-8") for path in paths)
        for kind, paths in files.items()
    }


def prompts(model: Model, n_tokens: int) -> Iterator[dict[str, str]]:
    """Yields a line for each kind whose text has enough tokens."""
    for kind, text in texts().items():
        ids = model.vocab.tokenize(text, add_special=False)[: n_tokens - _AROUND]
        if len(ids) == n_tokens - _AROUND:
            body = model.vocab.detokenize(ids).decode(errors="ignore")
            prompt = f"{body}\n\n{_ASKED[kind]}"
            yield {"id": f"{kind}-{n_tokens}", "category": "long", "prompt": prompt}


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-m", "--model", required=True, help="model whose tokens are counted")
    parser.add_argument("-n", type=int, required=True, help="tokens of each prompt")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    with Model(args.model, vocab_only=True) as model:
        lines = [json.dumps(line) + "\n" for line in prompts(model, args.n)]
    if len(lines) < len(_ASKED):
        parser.error(
            f"-n {args.n}: not every text gives such a prompt; give more than {_AROUND}, "
            "and fewer than the texts have"
        )
    args.output.write_text("".join(lines), encoding="utf-8")
    print(f"{args.output}: {len(lines)} prompts of about {args.n} tokens")


if __name__ == "__main__":
    main()
