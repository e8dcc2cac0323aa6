"""Reads the flags of llama-server from the engine's source.

The C++ source adds options one by one. It is parsed as text: the names in braces, a hint for each
value, and the chained calls that set the option's programs and its environment variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[2] / "vendor/llama.cpp/common/arg.cpp"
_BEGIN = "add_opt(common_arg("
_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[()]', re.DOTALL)
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_NAME = r'\s*"(-[^"]+)"\s*'
_NAMES = re.compile(rf"\s*\{{((?:{_NAME},?)+)\}}\s*(?:,\s*\{{((?:{_NAME},?)+)\}})?")
_TAKES = re.compile(r"\]\s*\(\s*common_params\s*&[^,)]*((?:,[^,)]*)*)\)")
_PROGRAMS = re.compile(r"LLAMA_EXAMPLE_(\w+)")


class TheirFlag(NamedTuple):
    """An option of llama-server.

    Attributes:
        names: the names that set it.
        negated: the names that switch it off.
        n_values: the number of words after a name.
        variable: its environment variable, or "".
        group: its group in the help of llama-server.
        is_removed: whether llama-server only refuses it and names a replacement.

    """

    names: tuple[str, ...]
    negated: tuple[str, ...]
    n_values: int
    variable: str
    group: str
    is_removed: bool

    @property
    def all_names(self) -> tuple[str, ...]:
        """All names, of both kinds."""
        return (*self.names, *self.negated)


def _calls(source: str) -> Iterator[str]:
    """The arguments of each add_opt(), without comments."""
    at = source.find(_BEGIN)
    while at >= 0:
        depth = 0
        for token in _TOKEN.finditer(source, at):
            depth += {"(": 1, ")": -1}.get(token[0], 0)
            if token[0] == ")" and depth == 0:
                yield _COMMENT.sub(r"\1", source[at + len(_BEGIN) : token.start()])
                break
        at = source.find(_BEGIN, at + 1)


def _programs(call: str, lists: dict[str, str], setter: str) -> set[str]:
    """The programs that `.set_examples()` or `.set_excludes()` names."""
    given = re.search(rf"\.{setter}\(\s*(\{{[^}}]*\}}|\w+)\s*\)", call)
    if given is None:
        return set()
    return {*_PROGRAMS.findall(lists.get(given[1], given[1]))}


def their_flags(source: str) -> list[TheirFlag]:
    """The flags of llama-server, in the order of its help.

    Args:
        source: the text of common/arg.cpp.

    Raises:
        ValueError: an option has an unknown form.

    """
    lists = dict(re.findall(r"initializer_list<enum llama_example> (\w+) = \{([^}]*)\}", source))
    found: dict[str, TheirFlag] = {}
    for call in _calls(source):
        programs = _programs(call, lists, "set_examples") or {"COMMON"}
        if not programs & {"COMMON", "SERVER"} or "SERVER" in _programs(
            call, lists, "set_excludes"
        ):
            continue
        names, takes = _NAMES.match(call), _TAKES.search(call)
        if names is None or takes is None:
            raise ValueError(f"an option of a form that is not known: {call.strip()[:80]}")
        values = [one for one in takes[1].split(",") if one.strip()]
        variable = re.search(r'\.set_env\("([^"]+)"\)', call)
        group = next((one for one in ("sampling", "spec") if f".set_{one}()" in call), "")
        flag = TheirFlag(
            tuple(re.findall(_NAME, names[1])),
            tuple(re.findall(_NAME, names[3] or "")),
            sum("bool" not in one for one in values),
            variable[1] if variable else "",
            group or ("common" if "SERVER" not in programs else "server"),
            "arg_removed(" in call,
        )
        found.setdefault(flag.names[0], flag)
    return list(found.values())
