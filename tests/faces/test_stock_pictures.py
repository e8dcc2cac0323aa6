"""What is said about pictures is what the engine's own server said of the same files.

tools/comparison/pictures.py made the record, with the package whose source this tree is built from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pyllama_spec import Llama
from tests.media_tools import file_of, picture, projector, seeing, sound, sound_part, url_of, wav

RECORD = Path(__file__).with_name("stock_pictures.json")
N = 24


class Case(NamedTuple):
    """A chat: texts with pictures of these sizes between them; of several turns in the second.

    A size without a height is a sound of as many tenths of a second.
    """

    family: str
    texts: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    turns: int = 1


CASES = [
    Case(family, *rest)
    for family in ("gemma3", "qwen3vl", "idefics3")
    for rest in (
        (("see ", ""), ((40, 50),)), (("see ", " what the man is "), ((64, 64),)),
        (("a ", ": what?"), ((20, 100),)), (("a ", ": what?"), ((101, 83),)),
        (("x", " y"), ((160, 140),)), (("one ", " and ", " the"), ((30, 30), (50, 33))),
        (("then ", " it"), ((44, 36),), 2),
    )
]  # fmt: skip
CASES += [
    Case("ultravox", ("hear ", " what"), ((0, 12),)), Case("ultravox", ("", " and "), ((0, 4),)),
    Case("ultravox", ("a ", " and ", "?"), ((0, 20), (0, 7))),
]  # fmt: skip


def request(case: Case) -> dict[str, Any]:
    """The body of the request; no token that is a part of a character is allowed."""
    content: list[dict[str, Any]] = []
    for i, text in enumerate(case.texts):
        content += [{"type": "text", "text": text}] if text else []
        if i < len(case.sizes) and not case.sizes[i][0]:
            content.append(sound_part(wav(sound(case.sizes[i][1] / 10, seed=i))))
        elif i < len(case.sizes):
            content.append(url_of(file_of(picture(*case.sizes[i], seed=i + 1))))
    before = [
        {"role": "user", "content": "hello there"}, {"role": "assistant", "content": "and the"},
    ]  # fmt: skip
    forbidden = dict.fromkeys(map(str, range(128, 256)), -100)
    return {
        "messages": [*(before if case.turns > 1 else []), {"role": "user", "content": content}],
        "max_tokens": N, "temperature": 0, "logit_bias": forbidden,
    }  # fmt: skip


@pytest.mark.parametrize("family", ["gemma3", "qwen3vl", "idefics3", "ultravox"])
def test_the_servers_answers(family: str) -> None:
    recorded = json.loads(RECORD.read_text())
    files = seeing(family).path, projector(family).path
    n_compared = 0
    with Llama(files[0], mmproj_path=files[1], n_ctx=1024, n_threads=1) as llm:
        for case, theirs in zip(CASES, recorded, strict=True):
            if case.family == family:
                answer = llm.create_chat_completion(**request(case), return_token_ids=True)
                assert answer["choices"][0]["token_ids"][: len(theirs)] == theirs
                n_compared += len(theirs)
    assert n_compared > (80 if family != "ultravox" else 30)
