"""The blocks of code in README, CONTRIBUTING and docs/, and what is said of each.

A block of bash or python runs, unless a comment precedes it:

    <!-- not run: why -->       its commands are still parsed
    <!-- newcomer: why -->      tests/train runs it
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
RUNS, TEXT = ("bash", "python"), ("text", "json", "toml", "gbnf")
_MARK = re.compile(r"<!-- (not run|newcomer): (\S.*?) -->\s*$", re.DOTALL)
_INLINE = re.compile(r"`(pyllama-spec [^`]+)`")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code.

    Attributes:
        page: its file, such as "docs/start.md".
        line: its first line of code, from 1.
        section: the heading above it.
        language: the text after the fence; "" for an indented block.
        mark: "not run", "newcomer", or "".
        reason: the reason of the mark.

    """

    page: str
    line: int
    section: str
    language: str
    code: str
    mark: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README, CONTRIBUTING, the pages of docs/ and what is said of the trained drafts."""
    docs = sorted((ROOT / "docs").glob("*.md"))
    drafts = ROOT / "examples" / "drafts" / "README.md"
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *docs, drafts]


def _walk(tokens: list[Token], page: str) -> Iterator[Block]:
    section, above = "", ""
    for before, token in zip([None, *tokens], tokens, strict=False):
        if before is not None and before.type == "heading_open":
            section = token.content
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            is_fence = token.type == "fence"
            mark = _MARK.search(above)
            yield Block(
                page, token.map[0] + 1 + is_fence, section,
                token.info.strip().partition(" ")[0] if is_fence else "", token.content,
                mark[1] if mark else "", mark[2] if mark else "",
            )  # fmt: skip
        if token.type != "paragraph_close":
            above = token.content if token.type == "html_block" else ""


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return list(_walk(MarkdownIt().parse(text), page.relative_to(ROOT).as_posix()))


def inline_commands(page: Path) -> list[str]:
    """Commands of ours within sentences and tables of a page, without what may be left out."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return _INLINE.findall(text)
