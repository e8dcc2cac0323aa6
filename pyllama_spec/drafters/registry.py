"""The registry of drafters: by name, and by the architecture in a draft's file.

A new kind is a file or folder here, with a function that opens it, and one line below. A program
can add its own with register().
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from pyllama_spec.drafters.base import (
    NO_DRAFT,
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    NoDrafter,
    overrides,
)
from pyllama_spec.drafters.options import DraftOptions
from pyllama_spec.drafters.prompt_lookup import PromptLookup
from pyllama_spec.engine.checks import meant
from pyllama_spec.errors import ArgumentError, ModelLoadError, UnsupportedError, shown


class GrammarOnly(Drafter):
    """Proposes nothing; the round itself drafts the text that a grammar forces."""

    name = "grammar"

    def __init__(self, max_draft: int = 8) -> None:
        super().__init__()
        self.max_draft = max_draft

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Proposes nothing."""
        return [NO_DRAFT] * len(requests)

    def commit(self, done: Sequence[Committed]) -> None:
        """Ignores the tokens."""


NONE, PROMPT_LOOKUP, GRAMMAR, MTP = "none", "prompt-lookup", "grammar", "mtp"
SUFFIX = "suffix"
# None of these: drafters/automatic.py chooses one when it knows the target.
AUTO = "auto"
# MODULE:FUNCTION, which a command takes for a drafter of the user's.
_WORD = r"[^\W\d]\w*"
OWN_DRAFTER = re.compile(rf"({_WORD}(?:\.{_WORD})*):({_WORD})")


Opener = Callable[[Path, DraftOptions], Drafter]

# The architecture in a draft's file -> what opens it: a function, or "module:function".
_KINDS: dict[str, Opener | str] = {
    "dflash": "pyllama_spec.drafters.dflash:open_dflash",
    "eagle3": "pyllama_spec.drafters.eagle3:open_eagle3",
}
# Any other architecture: a model of its own.
_SMALL_MODEL = "pyllama_spec.drafters.small_model:open_small_model"
# What opens a file with the architecture of a target that holds an MTP head alone.
_HEAD_ALONE = "pyllama_spec.drafters.mtp:open_mtp"


def _open_own_head(options: DraftOptions) -> Drafter:
    from pyllama_spec.drafters.mtp import open_mtp  # imported when it is asked for, as the kinds

    return open_mtp(None, options)


def _open_suffix(options: DraftOptions) -> Drafter:
    from pyllama_spec.drafters.suffix import open_suffix

    return open_suffix(options)


# Drafters that need no file of their own.
_NAMED: Mapping[str, Callable[[DraftOptions], Drafter]] = {
    NONE: lambda options: NoDrafter(),
    GRAMMAR: lambda options: (
        GrammarOnly() if options.max_draft is None else GrammarOnly(max(options.max_draft, 1))
    ),
    PROMPT_LOOKUP: lambda options: (
        PromptLookup() if options.max_draft is None else PromptLookup(max(options.max_draft, 1))
    ),
    SUFFIX: _open_suffix,
    MTP: _open_own_head,
}
# Prefixes of architectures that only draft for another model, of kinds that are not supported,
# and a remark on each.
_OTHER_DRAFTS = {
    "eagle": "",
    "dspark": "",
    "medusa": "",
    "gemma4-assistant": ", since they compute with the target's own keys and values",
}


# What a drafter of the user's own does in place of an option.
_INSTEAD_OF = {
    "p_min": "; your propose_one() may cut drafts that it is not sure of",
    "lookup": "; LookupFirst(drafter, min_ngram) copies before it asks yours",
}


def register(arch: str, opener: Opener) -> None:
    """Adds a kind of draft, or replaces one.

    Args:
        arch: the value of general.architecture in its files.
        opener: makes the drafter of a file.
    """
    _KINDS[arch] = opener


def kinds() -> tuple[str, ...]:
    """The architectures of the drafts that can be opened."""
    return tuple(_KINDS)


def known_drafts() -> str:
    """The known drafters, for the message about an unknown one."""
    return (
        f"what drafts is a GGUF of a draft ({', '.join(_KINDS)}) that was made for the target, or "
        f'of a smaller model, draft="{MTP}" for the head in the target\'s own file, '
        f'draft="{SUFFIX}" or "{PROMPT_LOOKUP}", which need no file, or a Drafter of your own'
    )


def is_draft(arch: str) -> bool:
    """Whether files of an architecture are drafts for other models, not targets."""
    return arch in _KINDS or arch.startswith(tuple(_OTHER_DRAFTS))


def is_named(draft: object, name: str) -> bool:
    """Whether `draft=` is this name; a drafter of the user's is not compared with it."""
    return isinstance(draft, str) and draft == name


def needs_file(name: str) -> bool:
    """Whether `draft=` is the path of a file, not a drafter's name."""
    return name not in _NAMED and name != AUTO


def make_drafter(draft: object, options: DraftOptions) -> Drafter:
    """The drafter of `draft=`."""
    check_draft(draft, options)
    if isinstance(draft, str) and draft in _NAMED:
        return _NAMED[draft](options)
    if isinstance(draft, (str, os.PathLike)):
        return open_draft(draft, options)
    if isinstance(draft, Drafter):
        if not any(overrides(draft, name, Drafter) for name in ("propose_one", "propose")):
            kind = type(draft).__name__
            raise ArgumentError(
                f"the drafter {kind} has neither propose_one() nor propose(): write "
                f"{kind}.propose_one(self, request), which returns a Draft (docs/drafters.md)"
            )
        return draft
    return NoDrafter()


def check_draft(draft: object, options: DraftOptions) -> None:
    """Checks what make_drafter() takes, as far as that needs no file."""
    if not (draft is None or isinstance(draft, (str, os.PathLike, Drafter))):
        raise ArgumentError(_hint(draft))
    is_name = isinstance(draft, str) and draft in _NAMED
    is_model = isinstance(draft, (str, os.PathLike)) and (not is_name or draft == MTP)
    for name, value in (("p_min", options.p_min), ("lookup", options.lookup)):
        if value is not None and not is_model:
            own = isinstance(draft, Drafter)
            raise ArgumentError(
                f"{name}={shown(value)} applies to a draft that is given as a file, not to "
                f"{shown(draft)}" + (_INSTEAD_OF[name] if own else "")
            )
    has_lookup = is_model or (is_name and draft == SUFFIX)
    if options.memory is not None and not has_lookup:
        raise ArgumentError(
            f"draft_memory={shown(os.fspath(options.memory))} is for a draft that looks texts up: "
            f'"{SUFFIX}", "{MTP}", "{AUTO}" or one that is given as a file, not {shown(draft)}'
        )


def open_draft(path: str | os.PathLike[str], options: DraftOptions | None = None) -> Drafter:
    """Opens a draft's file of any kind."""
    _check_name(os.fspath(path))
    return _resolved(_opener_of(Path(path)))(Path(path), options or DraftOptions())


def check_draft_file(path: str | os.PathLike[str]) -> None:
    """Raises what open_draft() would raise for the file's keys. Loads nothing."""
    _check_name(os.fspath(path))
    _opener_of(Path(path))


def _check_name(name: str) -> None:
    """Refuses what Path() would make another name of."""
    if not name:
        raise ArgumentError('draft="" is not a file name; give None for no draft')
    if "://" in name:
        raise ArgumentError(
            f"draft={shown(name)} is an address; download the file and give its path"
        )


def _opener_of(file: Path) -> Opener | str:
    """The function that opens a draft's file; raises as open_draft()."""
    own = OWN_DRAFTER.fullmatch(str(file))
    if own is not None and not file.exists():
        name = own[2]
        raise ArgumentError(
            f"draft={str(file)!r}: only a command takes MODULE:FUNCTION; in Python give an object: "
            f"from {own[1]} import {name}, then draft={name}()"
        )
    if not file.exists() and file.suffix != ".gguf" and len(file.parts) == 1:
        names = (*_NAMED, AUTO)
        named = ", ".join(f'"{name}"' for name in names)
        raise ArgumentError(
            f"draft={str(file)!r} is no file that exists and no name of a draft"
            f"; names are {named}{meant(str(file).replace('_', '-'), names)}"
        )
    if not file.exists():
        raise ModelLoadError(f"the draft {file} does not exist; check its path")
    # Imported here: a drafter by name needs no reader of files.
    from pyllama_spec.gguf.reader import read_key

    key = read_key(file, "general.architecture")
    if key is None or not isinstance(key.value, bytes):
        raise ModelLoadError(
            f"{file} does not say what kind of model it holds: general.architecture is missing"
        )
    arch = key.value.decode("utf-8", "replace")
    opener = _KINDS.get(arch)
    other = next((kind for kind in _OTHER_DRAFTS if arch.startswith(kind)), None)
    if opener is None and other is not None:
        raise UnsupportedError(
            f"drafts of kind {arch!r} are not supported by this version ({file.name})"
            f"{_OTHER_DRAFTS[other]}; {known_drafts()}"
        )
    if opener is None:
        opener = _HEAD_ALONE if holds_head_alone(file) else _SMALL_MODEL
    return opener


def holds_head_alone(file: Path) -> bool:
    """Whether a file has an MTP head and no layers before it."""
    from pyllama_spec.gguf.reader import read_gguf

    read = read_gguf(file, lambda name: name.endswith(".nextn_predict_layers"))
    n_heads = sum(key.value for key in read.keys.values() if isinstance(key.value, int))
    return n_heads > 0 and not any(name.startswith("blk.0.") for name in read.tensors)


def _resolved(opener: Opener | str) -> Opener:
    # By name, so that a kind is imported when a file of it is opened, and not before.
    if not isinstance(opener, str):
        return opener
    module, _, function = opener.partition(":")
    imported: Opener = getattr(import_module(module), function)
    return imported


def _hint(draft: object) -> str:
    """The reason why a value of `draft=` is wrong."""
    if isinstance(draft, type):
        return f"draft={draft.__name__} is a class; give an object of it: {draft.__name__}()"
    if hasattr(draft, "create_completion"):
        return f"draft= takes the path of a GGUF, and no open model; {known_drafts()}"
    if inspect.isroutine(draft):
        name = getattr(draft, "__name__", "draft")
        return f"draft={shown(draft)} is a function; give the drafter that it returns: {name}()"
    names = ", ".join(f'"{name}"' for name in (*_NAMED, AUTO))
    return f"draft={shown(draft)} is not None, {names}, a path or a Drafter"
