"""Compiles and runs a chat template with jinja2, which only this module imports.

Imported when the first template is compiled: a program that never makes a chat does without
jinja2, and `import pyllama_spec` takes less time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser

from pyllama_spec.chat.prompt_provenance import RUNNING
from pyllama_spec.chat.template_limits import LimitedEnvironment, guarded_filter, limited
from pyllama_spec.errors import ArgumentError, UnsupportedError


class _TemplateRefusal(Exception):  # noqa: N818 - it is raised by a template, for its user
    """The message of a template's raise_exception()."""


class _Generation(jinja2.ext.Extension):
    """{% generation %} marks an assistant's text for training; here it only outputs its content."""

    tags = {"generation"}  # noqa: RUF012 - the name and the type are jinja2's

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateProgram:
    """A compiled template.

    Args:
        source: Jinja text.

    Attributes:
        words: the strings in the template.
        lookups: the strings that it does not only print.

    Raises:
        UnsupportedError: the text is not a template that jinja2 can compile.

    """

    def __init__(self, source: str) -> None:
        env = LimitedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        env.filters["tojson"] = guarded_filter("tojson", _to_json)
        env.globals["raise_exception"] = _raise_exception
        try:
            self._template = env.from_string(source)
            self.words, self.lookups = _constants(env.plain_tree(source))
        except UnsupportedError:
            raise
        except Exception as error:  # noqa: BLE001 - Python compiles what jinja2 writes: anything
            raise UnsupportedError(
                f"the chat template cannot be compiled ({type(error).__name__}: {error!s:.200}); "
                "give another as chat_template="
            ) from None

    def run(self, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        """Runs the template and returns its text.

        Raises:
            ArgumentError: the template refuses the messages, or fails on them.
            UnsupportedError: the template leaves its sandbox, or does not come to an end.

        """
        try:
            with limited():
                return self._template.render(messages=messages, **variables)
        except UnsupportedError:
            raise
        except _TemplateRefusal as error:
            raise ArgumentError(f"the chat template refuses these messages: {error}") from None
        except jinja2.exceptions.SecurityError as error:
            raise UnsupportedError(
                f"the chat template does what its sandbox forbids ({error}); give another as "
                "chat_template="
            ) from None
        except (MemoryError, RecursionError) as error:
            raise UnsupportedError(
                f"the chat template exceeds the memory or the recursion depth ({error}); give "
                "another as chat_template="
            ) from None
        except Exception as error:  # noqa: BLE001 - a template is a program: anything can happen
            raise ArgumentError(
                f"the chat template failed on these messages: {type(error).__name__}: {error}"
            ) from None


def _constants(tree: jinja2.nodes.Template) -> tuple[frozenset[str], tuple[str, ...]]:
    """The template's strings, and those that it uses for more than output."""
    compared = (
        jinja2.nodes.Compare, jinja2.nodes.Call, jinja2.nodes.Filter, jinja2.nodes.Test,
        jinja2.nodes.Assign,
    )  # fmt: skip
    lookups = {
        const.value
        for node in tree.find_all(compared)
        for const in node.find_all(jinja2.nodes.Const)
        if isinstance(const.value, str) and const.value
    }
    every = (const.value for const in tree.find_all(jinja2.nodes.Const))
    return frozenset(v for v in every if isinstance(v, str)), tuple(sorted(lookups))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, which jinja2's own filter adds."""
    stand_ins = RUNNING.get()
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii and stand_ins is None,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    return text if stand_ins is None else stand_ins.json(text, ensure_ascii=ensure_ascii)


def _raise_exception(message: str) -> NoReturn:
    raise _TemplateRefusal(message)
