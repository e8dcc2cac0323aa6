"""What a text has to follow, where GBNF cannot say it: regular expressions and Lark grammars."""

from __future__ import annotations

from typing import Literal, NamedTuple

GuideKind = Literal["regex", "lark", "json_schema"]
# How a Lark grammar begins where GBNF may stand as well; the engine's own server has it so.
LARK_SIGN = "%llguidance"


class Guide(NamedTuple):
    """A grammar that llguidance follows.

    Attributes:
        kind: what the text is.
        text: a regular expression in the syntax of Rust's regex crate, which the whole answer
            matches; Lark rules with a rule `start`; or a JSON schema.

    """

    kind: GuideKind
    text: str
