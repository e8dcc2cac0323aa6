"""Options that cannot be given together, or are of no use without another one.

One rule for all commands. An option that would do nothing is refused, with the reason. Of an
option that is given twice the last one counts, as in other programs; in two spellings a note says
so, since their writer may not know that they are one option.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pyllama_spec.drafters.registry import AUTO, MTP, NONE, needs_file
from pyllama_spec.errors import ArgumentError, shown
from pyllama_spec.terminal import dim, fitted

_TWICE = "_given_twice"


class _Idle(NamedTuple):
    """When options do nothing, and what to do about it."""

    names: Sequence[str]
    when: Callable[[argparse.Namespace], bool]
    why: str


def _has(name: str) -> Callable[[argparse.Namespace], bool]:
    return lambda args: bool(getattr(args, name, None))


def _lacks(name: str) -> Callable[[argparse.Namespace], bool]:
    # With serve --config, the file says it of each model.
    return lambda args: hasattr(args, name) and not (getattr(args, name) or _has("config")(args))


def _drafts_without_model(args: argparse.Namespace) -> bool:
    """Whether all drafts are of drafters that have no model, such as suffix.

    Without any, open_llama() says that -d is missing.
    """
    drafts = getattr(args, "draft", None) or ()
    drafts = [drafts] if isinstance(drafts, str) else drafts
    return not {*drafts} <= {NONE} and not any(
        one in (AUTO, MTP) or needs_file(one) for one in drafts
    )


def _is_off(args: argparse.Namespace) -> bool:
    return getattr(args, "controller", None) == "off"


_IDLE = (
    _Idle(("rpc_timeout",), _lacks("rpc_servers"), "is for --rpc-servers: give them too"),
    _Idle(("cache_size",), _lacks("cache_dir"), "is for --cache-dir: give it too"),
    _Idle(("pooling",), _lacks("embeddings"), "is for --embeddings: give it too"),
    _Idle(("log_clients",), _has("quiet"), "adds to the lines that -q leaves out: leave out one"),
    _Idle(("max_rows",), _lacks("model"), "is for a measurement: add -m"),
    _Idle(
        ("draft_gpu_layers", "draft_n_ctx"), _drafts_without_model,
        "is for a draft with a model: leave it out",
    ),
    _Idle(
        ("n_draft", "p_min", "lookup"), _is_off,
        "does nothing beside --controller off, which drafts nothing: leave out one",
    ),
)  # fmt: skip


def check_pairs(args: argparse.Namespace) -> None:
    """Tells what was given twice, and refuses what would do nothing.

    Raises:
        ArgumentError: an option has no effect beside the others.

    """
    for note in getattr(args, _TWICE, ()):
        print(dim(fitted(f"[note: {note}]", sys.stderr, 1), sys.stderr), file=sys.stderr)
    for names, when, why in _IDLE:
        for name in names:
            value = getattr(args, name, None)
            if value is not None and value is not False and when(args):
                raise ArgumentError(f"--{name.replace('_', '-')} {why}")


class Once(argparse._StoreAction):
    """Stores an option's value, as argparse does, and notes an earlier one that it replaces."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Called by argparse for each time that the option is there."""
        note_twice(self.dest, values, namespace, option_string)
        setattr(namespace, self.dest, values)


class OnceSwitch(argparse.BooleanOptionalAction):
    """--switch and --no-switch, of which the last one counts too."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Called by argparse for each time that the switch is there."""
        super().__call__(parser, namespace, values, option_string)
        note_twice(self.dest, getattr(namespace, self.dest), namespace, option_string)


def note_twice(dest: str, value: object, namespace: argparse.Namespace, option: str | None) -> None:
    """Notes the value of an option; check_pairs() tells of another one in another spelling.

    Args:
        dest: the name of the option in the namespace.
        value: the value to store.
        namespace: the namespace of the command.
        option: the spelling of the option; None for an argument without a name.

    """
    if option is None:
        return
    given = namespace.__dict__.setdefault("_given", {})
    before, old = given.get(dest, (option, value))
    if before != option and old != value:
        noted = namespace.__dict__.setdefault(_TWICE, [])
        noted.append(f"{_said(option, value)} replaces {_said(before, old)}: the last one counts")
    given[dest] = option, value


def _said(option: str, value: object) -> str:
    if isinstance(value, bool):
        return option
    return f"{option} {value if isinstance(value, (int, float)) else shown(str(value))}"
