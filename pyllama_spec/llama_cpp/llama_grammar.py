"""Grammars that constrain texts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyllama_spec.constraints import JSON_OBJECT, regex_grammar, schema_grammar
from pyllama_spec.errors import ArgumentError
from pyllama_spec.files import read_plain

LLAMA_GRAMMAR_DEFAULT_ROOT = "root"
JSON_GBNF = JSON_OBJECT
JSON_ARR_GBNF = JSON_OBJECT.replace("root   ::= object", "root   ::= array")
# Points of a list, one per line.
LIST_GBNF = r"""
root ::= ( "- " [^\r\n]+ "\n" )+
"""


class LlamaGrammar:
    """GBNF rules, for `grammar=` of a request; here of regular expressions as well.

    A fault in the rules shows when they are used.
    """

    def __init__(self, *args: Any, _grammar: str, **kwargs: Any) -> None:
        del args, kwargs
        self._grammar = _grammar
        self._root = LLAMA_GRAMMAR_DEFAULT_ROOT  # programs read it there

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar from GBNF rules with a rule `root`."""
        del verbose
        if not isinstance(grammar, str) or not grammar.strip():
            raise ArgumentError("grammar", grammar, "a text of GBNF rules")
        return cls(_grammar=grammar)

    @classmethod
    def from_file(cls, file: str | os.PathLike[str], verbose: bool = True) -> LlamaGrammar:
        """A grammar from a file of GBNF rules."""
        try:
            # An editor may have begun it with a byte order mark.
            text = read_plain(Path(file)).removeprefix("\ufeff")
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError("file", str(file), problem=f"cannot be read: {error}") from None
        if not text.strip():
            raise ArgumentError(
                "file", str(file), "GBNF rules with a rule root", problem="is empty"
            )
        return cls.from_string(text, verbose)

    @classmethod
    def from_json_schema(
        cls, json_schema: str | Mapping[str, Any], verbose: bool = True
    ) -> LlamaGrammar:
        """A grammar of the JSON texts that a schema allows; the schema is JSON text or a dict."""
        return cls.from_string(schema_grammar(json_schema, param="json_schema"), verbose)

    @classmethod
    def from_regex(cls, regex: str) -> LlamaGrammar:
        """A grammar of a regular expression (ECMA-262) for the whole answer; an addition here."""
        return cls.from_string(regex_grammar(regex))


def json_schema_to_gbnf(schema: str, prop_order: list[str] | None = None) -> str:
    """GBNF rules for a schema, with keys in the schema's order."""
    if prop_order:
        raise ArgumentError(
            "prop_order", problem="is not supported", remedy="order the keys of the schema"
        )
    return schema_grammar(schema, param="schema")
