"""Makes the arguments of commands from the tables of options; each is stored under its name."""

from __future__ import annotations

import argparse
import re
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from pyllama_spec.drafters import Drafter
from pyllama_spec.drafters.registry import DRAFT_NAMES, NONE
from pyllama_spec.errors import ArgumentError, shown
from pyllama_spec.llama import Llama
from pyllama_spec.llama.open_options import KEYWORDS, OpenOptions
from pyllama_spec.options import Option, Read, file_name, options_of
from pyllama_spec.requests.options import RequestOptions

_WORD = r"[^\W\d]\w*"
_OWN_DRAFTER = re.compile(rf"({_WORD}(?:\.{_WORD})*):({_WORD})")
_OWN = "or MODULE:FUNCTION, which makes a drafter of your own"
DRAFT_HELP = f"{', '.join(DRAFT_NAMES)}, the GGUF of a draft or of a smaller model, {_OWN}"
# The drafters of the command that runs.
_made: list[Drafter] = []


@contextmanager
def own_drafts_closed() -> Iterator[None]:
    """Around a command: closes the drafters that it made."""
    try:
        yield
    finally:
        while _made:
            _made.pop().close()


def own_draft(draft: str) -> str | Drafter:
    """Calls the function that -d MODULE:FUNCTION names; returns any other text unchanged.

    The module is looked for where Python looks, and last in the current folder. A class is such a
    function too, if it takes no arguments.
    """
    found = _OWN_DRAFTER.fullmatch(draft)
    if found is None or Path(draft).exists():
        return draft
    module, name = found.groups()
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        drafter = getattr(import_module(module), name)()
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error!s:.300}"
        raise ArgumentError(
            "draft", draft,
            problem=f"failed: {what} ({Path(frame.filename).name}, line {frame.lineno})",
        ) from error  # fmt: skip
    if not isinstance(drafter, Drafter):
        raise ArgumentError("draft", draft, "a Drafter", problem=f"gives {shown(drafter)}")
    _made.append(drafter)
    return drafter


_Parser: TypeAlias = "argparse.ArgumentParser | argparse._ActionsContainer"
# The groups of OpenOptions that place a target and a draft, and bound a draft.
PLACES = ("target", "projector", "layers", "context")
DRAFTING = ("draft length", "draft")
_OF_DRAFT = tuple(
    one.name for one in options_of(OpenOptions).values()
    if (one.group in DRAFTING and one.name != "n_ctx") or one.name == "draft_gpu_layers"
)  # fmt: skip


def argument(read: Read) -> Read:
    """An argument's type: reads a text, and words what is wrong with it as argparse does."""

    def checked(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            is_ours = isinstance(error, ArgumentError)
            why = str(error) if is_ours else f"invalid value: {text!r:.80}"
            raise argparse.ArgumentTypeError(why) from None

    return checked


path_argument = argument(file_name)


def add_options(
    parser: _Parser,
    table: type,
    *groups: str,
    helps: Mapping[str, str] | None = None,
    but: Iterable[str] = (),
) -> None:
    """Adds the options of a table's groups, `but` some; `helps` is help that differs from it."""
    known = options_of(table).values()
    for one in (one for group in groups for one in known if one.group == group):
        if one.cli and one.name not in but:
            _add(parser, one, (helps or {}).get(one.name, one.help))


def _add(parser: _Parser, one: Option, help_: str) -> None:
    default = one.default if one.cli_default is ... else one.cli_default
    more: dict[str, Any] = {"dest": one.name, "help": help_, "default": default}
    if one.kind == "bool" and not one.words:
        action = argparse.BooleanOptionalAction if default else "store_true"
        more |= {"action": action, "default": bool(default)}
    else:
        is_simple = one.read is None and one.words is None
        simple: dict[str, Any] = {"int": int, "float": float, "str": str} if is_simple else {}
        more["type"] = simple.get(one.kind) or argument(one.parse)
        if one.choices:
            more["choices"] = one.choices
        elif one.words and one.kind == "bool":
            more["metavar"] = "{" + ",".join(one.words) + "}"
        else:
            more["metavar"] = one.metavar
        if one.is_repeated:
            more |= {"action": "append", "default": list(default)}
    parser.add_argument(*one.cli.split(), **more)


def given(args: argparse.Namespace, known: Collection[str]) -> dict[str, Any]:
    """The options with these names that have a value, as keywords."""
    if getattr(args, "rpc_servers", None) and args.n_gpu_layers is None:
        args.n_gpu_layers = -1
    return {name: value for name, value in vars(args).items()
            if name in known and value is not None}  # fmt: skip


def llama_keywords(args: argparse.Namespace) -> dict[str, Any]:
    """The keywords of Llama() for the model and the draft that the options name."""
    draft = None if args.draft == NONE else own_draft(args.draft)
    return {**given(args, KEYWORDS), "model_path": args.model_path, "draft": draft}


def open_llama(args: argparse.Namespace) -> Llama:
    """Opens the model and the draft that the options name."""
    return Llama(**llama_keywords(args))


def add_model_options(
    parser: argparse.ArgumentParser,
    instead: argparse._MutuallyExclusiveGroup | None = None,
    helps: Mapping[str, str] | None = None,
) -> None:
    """Adds the options for the model and how it is opened."""
    (instead or parser).add_argument(
        "-m", "--model", dest="model_path", type=path_argument, metavar="MODEL",
        required=instead is None, help="the target's GGUF",
    )  # fmt: skip
    parser.add_argument("-d", "--draft", default=NONE, help=DRAFT_HELP)
    add_options(parser, OpenOptions, *DRAFTING, *PLACES, helps=helps)
    quiet = (helps or {}).get("quiet", "print no figures after a text")
    parser.add_argument("-q", "--quiet", action="store_true", help=quiet)
    add_options(parser, OpenOptions, "threads")


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a generation."""
    add_options(parser, RequestOptions, "sampling")
    parser.add_argument("--grammar", type=Path, metavar="GRAMMAR",
        help="a file with GBNF rules")  # fmt: skip


# ---- options that would do nothing though their writer relies on them


def check_pairs(args: argparse.Namespace) -> None:
    """Refuses an option that has no effect beside the others."""
    is_off = getattr(args, "controller", None) == "off"
    is_plain = getattr(args, "draft", None) == NONE and not getattr(args, "config", None)
    pairs = (
        # With serve --config, the file says it of each model.
        (("pooling_type",), _lacks(args, "embedding"), "is for --embeddings: give it too"),
        (("cache_size",), _lacks(args, "cache_dir"), "is for --cache-dir: give it too"),
        (("rpc_timeout",), _lacks(args, "rpc_servers"), "is for --rpc-servers: give them too"),
        (("n_draft", "p_min", "lookup"), is_off,
         "does nothing beside --controller off, which drafts nothing: leave out one"),
        (_OF_DRAFT, is_plain, "is for a draft: add -d"),
    )  # fmt: skip
    for idle, is_idle, why in pairs:
        for name in idle if is_idle else ():
            value = getattr(args, name, None)
            # By shared noise a seed has another text, without a draft too.
            if value is not None and (name, value) != ("acceptance", "noise"):
                raise ArgumentError(name, problem=why)


def _lacks(args: argparse.Namespace, name: str) -> bool:
    return hasattr(args, name) and not (getattr(args, name) or getattr(args, "config", None))
