"""The messages quoted in docs/troubleshooting.md are those of the code."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
# Of other programs: CMake, and the system at a connection.
FOREIGN = ("No CMAKE_CXX_COMPILER could be found", "cannot be reached: Connection refused")
_JOIN = re.compile(r'"\s*\n\s*f?"')
_PLACE = re.compile(r"\b(?:N|M|FILE|xllamacpp|libcublas\.so)\b|\.{3}|'eagle3'")


def sources() -> str:
    """The code, with the parts of a text that stands on several lines joined."""
    paths = chain(
        (ROOT / "pyllama_spec").rglob("*.py"), (ROOT / "csrc").rglob("*.cpp"),
        [ROOT / "vendor" / "sync.py"],
    )  # fmt: skip
    return _JOIN.sub("", "\n".join(path.read_text(encoding="utf-8") for path in sorted(paths)))


def quoted(text: str) -> list[str]:
    """Texts in backticks that read like a message: some words, and no code."""
    spans = re.findall(r"`([^`\n]+)`", text)
    return [
        one
        for one in spans
        if one.count(" ") >= 2 and not re.search(r"[={]|^(?:pyllama|apt|-)", one)
    ]


MESSAGES = [one for one in quoted(PAGE.read_text(encoding="utf-8")) if one not in FOREIGN]


@pytest.fixture(scope="module")
def code() -> str:
    return sources()


@pytest.mark.parametrize("message", MESSAGES)
def test_a_quoted_message_is_in_the_code(message: str, code: str) -> None:
    parts = [part.strip() for part in _PLACE.split(message)]
    for part in (part for part in parts if len(part) > 5):
        assert part in code, f"no message has {part!r}; did it change?"


def test_messages_are_quoted() -> None:
    assert len(MESSAGES) > 20
    assert PAGE.stat().st_size < 9 * 1024
