"""Differences between a copy and the text, such as a name, and where the copy may resume.

After a difference no n-gram matches until some tokens are equal again, though the text often
continues as the copied one does. So the drafter remembers the difference for some tokens, and
resumes the copy: after the next equal tokens, or, before there are any, after as many tokens as the
last difference had. chances.py counts the acceptance of such copies as of any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyllama_spec.drafters.suffix.memory import Source
from pyllama_spec.drafters.suffix.token_index import TokenIndex

# The most tokens that the text may have from the difference on before the copy is given up.
_MAX_GAP = 12
# A longer difference is not skipped before a token after it is equal: of 242 such copies 2 were
# right on the traces and mixed prompts of benchmarks/, and 35 of 392 after shorter ones.
_MAX_UNSEEN = 3
# How many more of them the copied text may have.
_MAX_EXTRA = 12
# The most equal tokens after a difference that are looked for; the index finds longer matches.
_MAX_EQUAL = 3


class Lengths(NamedTuple):
    """The length of a difference: in the copied text, and in this one."""

    in_source: int = 1
    in_text: int = 1


class Gap(NamedTuple):
    """A difference between a text and the text it was copied from.

    Attributes:
        source: the text that was copied from; None for the text itself.
        at: the index in that text of the token that did not come.
        begin: the index in the own text of the token that came instead.

    """

    source: Source | None
    at: int
    begin: int


class ResumePoint(NamedTuple):
    """A position at which a copy may resume.

    Attributes:
        at: the index of the next token in the copied text.
        n_equal: the number of equal tokens before it, after the difference.
        lengths: the lengths of the difference if the copy is right to resume here.

    """

    at: int
    n_equal: int
    lengths: Lengths


def is_too_long(n: int) -> bool:
    """Whether a difference of n tokens is longer than a name or number within a text."""
    return n > _MAX_GAP


def resume_point(
    gap: Gap, index: TokenIndex, text: Sequence[int], last: Lengths
) -> ResumePoint | None:
    """The position at which the copy may continue.

    Args:
        gap: the difference.
        index: the index of the copied text. It may have changed since: gap.at may be past its end.
        text: the tokens of the text from the difference on.
        last: the lengths of the last difference after which a copy was right.

    Returns:
        None where there is nothing to continue.

    """
    n = len(text)
    if not n:
        return None
    new = list(text)
    copied: list[int] = index.tokens[gap.at : min(gap.at + n + _MAX_EXTRA, index.n)].tolist()
    for n_equal in range(min(n, _MAX_EQUAL), 0, -1):
        ending = new[n - n_equal :]
        for end in range(n_equal, len(copied)):
            if copied[end - n_equal : end] == ending:
                return ResumePoint(gap.at + end, n_equal, Lengths(end - n_equal, n - n_equal))
    if last.in_text != n and n > _MAX_UNSEEN:
        return None
    n_skipped = last.in_source if last.in_text == n else n
    if n_skipped >= len(copied):
        return None
    return ResumePoint(gap.at + n_skipped, 0, Lengths(n_skipped, n))
