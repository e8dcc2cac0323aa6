"""Records what the engine's own server says about pictures.

``python -m tools.comparison.pictures`` installs xllamacpp, as tools.comparison.server does, and
asks its server about the cases of tests/faces/test_stock_pictures.py with the same tiny files.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.faces.test_stock_pictures import CASES, RECORD, request
from tests.media_tools import projector, seeing
from tools.comparison.server import responses

# Nearer to each other than this, two tokens may change places by rounding alone.
_NEAR = 0.1


def tokens_of(answer: dict[str, Any]) -> list[int]:
    """The ids of an answer, up to the first that another one nearly equals."""
    out: list[int] = []
    for step in answer["choices"][0]["logprobs"]["content"]:
        first, second = (one["logprob"] for one in step["top_logprobs"])
        if first - second < _NEAR:
            break
        out.append(step["id"])
    return out


def main() -> int:
    """Writes the record."""
    jobs = [
        {
            "model": str(seeing(case.family).path), "mmproj": str(projector(case.family).path),
            "n_ctx": 1024, "request": {**request(case), "logprobs": True, "top_logprobs": 2},
        }
        for case in CASES
    ]  # fmt: skip
    found = [tokens_of(response) for response in responses(jobs)]
    RECORD.write_text(json.dumps(found) + "\n")
    print(f"{len(found)} answers in {RECORD}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
