"""Makes the drafter of `draft=`: by name, or by the architecture in a draft's file.

A new kind of head is an entry of HEADS (kinds.py); another drafter is a file or folder here, with a
function that opens it, and one line below. A program can add its own with register().

draft="auto" is the MTP head in the target's file, else a draft beside the file. Where there is
neither, drafts are copied from the text by Suffix, which is ahead of prompt lookup. The drafter's
`note` says which of them was chosen, and why.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllama_spec.drafters.base import Drafter, NoDrafter
from pyllama_spec.drafters.kinds import HEADS, INSTEAD
from pyllama_spec.drafters.options import DraftOptions
from pyllama_spec.drafters.prompt_lookup import PromptLookup
from pyllama_spec.engine.checks import meant
from pyllama_spec.engine.closeable import closed_on_failure
from pyllama_spec.engine.model import Model, most_heads
from pyllama_spec.errors import (
    ArgumentError,
    ModelLoadError,
    PyllamaSpecError,
    UnsupportedError,
    shown,
)
from pyllama_spec.gguf.reader import read_gguf, read_key

if TYPE_CHECKING:
    from pyllama_spec.drafters.model_drafter import ModelDrafter


NONE, PROMPT_LOOKUP, GRAMMAR, MTP = "none", "prompt-lookup", "grammar", "mtp"
SUFFIX, AUTO = "suffix", "auto"
_ARCH, _N_HEADS = "general.architecture", ".nextn_predict_layers"
# The maximum number of a folder's files to read, which bounds the time.
_MAX_FILES = 64
# How files are named that hold a head alone.
_HEAD_PREFIX = "mtp-"

# Makes the drafter of a file.
Opener = Callable[[Path, DraftOptions], Drafter]
# What register() added, by the architecture in a draft's file.
_KINDS: dict[str, Opener] = {}


def _class_of(arch: str) -> type[ModelDrafter[Any]]:
    """The drafter for files of an architecture; "mtp" for heads alone. Imported when asked for."""
    if arch == MTP or arch in HEADS:
        from pyllama_spec.drafters.heads import Mtp, head_class

        return Mtp if arch == MTP else head_class(HEADS[arch])
    from pyllama_spec.drafters.small_model import SmallModel

    return SmallModel


def _open_suffix(options: DraftOptions) -> Drafter:
    from pyllama_spec.drafters.suffix import Suffix

    # A verify batch of 8 rows is cheap on a CPU, and where a controller weighs what more cost,
    # copies may be longer.
    return Suffix(options.length(7, 15), remembers=options.remembers, store=options.memory)


# Drafters that need no file of their own.
_NAMED: Mapping[str, Callable[[DraftOptions], Drafter]] = {
    NONE: lambda options: NoDrafter(),
    # The round itself drafts the text that a grammar forces.
    GRAMMAR: lambda options: NoDrafter(GRAMMAR, options.length(8, 8)),
    PROMPT_LOOKUP: lambda options: PromptLookup(options.length(7, 7)),
    SUFFIX: _open_suffix,
    MTP: lambda options: _class_of(MTP).open(None, options),
}
# Prefixes of architectures that only draft for another model, of kinds that are not supported.
_OTHER_DRAFTS = ("eagle", "dspark", "medusa", "gemma4-assistant")


def register(arch: str, opener: Opener) -> None:
    """Adds a kind of draft, or replaces one.

    Args:
        arch: the value of general.architecture in its files.
        opener: makes the drafter of a file.
    """
    _KINDS[arch] = opener


DRAFT_NAMES = (*_NAMED, AUTO)


def known_drafts() -> str:
    """The known drafters, for the message about an unknown one."""
    kinds = ", ".join((*HEADS, *_KINDS))
    return (
        f"what drafts is a GGUF of a draft ({kinds}) that was made for the target, or "
        f'of a smaller model, draft="{MTP}" for the head in the target\'s own file, '
        f'draft="{SUFFIX}" or "{PROMPT_LOOKUP}", which need no file, or a Drafter of your own'
    )


def is_draft(arch: str) -> bool:
    """Whether files of an architecture are drafts for other models, not targets."""
    return arch in HEADS or arch in _KINDS or arch.startswith(_OTHER_DRAFTS)


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
    return draft if isinstance(draft, Drafter) else NoDrafter()


def check_draft(draft: object, options: DraftOptions) -> None:
    """Checks what make_drafter() takes, as far as that needs no file."""
    if not (draft is None or isinstance(draft, (str, os.PathLike, Drafter))):
        expected = "a path, a name, a Drafter or None"
        raise ArgumentError("draft", draft, expected, known_drafts())
    is_name = isinstance(draft, str) and draft in _NAMED
    is_model = isinstance(draft, (str, os.PathLike)) and (not is_name or draft == MTP)
    has_lookup = is_model or (is_name and draft == SUFFIX)
    copies = f"{SUFFIX}, {MTP}, {AUTO} or a draft in a file"
    for name, value, fits, of in (
        ("p_min", options.p_min, is_model, "a draft in a file"),
        ("lookup", options.lookup, is_model, "a draft in a file"),
        ("draft_memory", options.memory, has_lookup, copies),
    ):  # fmt: skip
        if value is not None and not fits:
            raise ArgumentError(
                name, value, problem=f"is for {of}, and not for `draft`={shown(draft)}",
                remedy="leave it out",
            )  # fmt: skip


def open_draft(path: str | os.PathLike[str], options: DraftOptions | None = None) -> Drafter:
    """Opens a draft's file of any kind."""
    arch = _arch_of(path)
    opener: Opener = _KINDS[arch] if arch in _KINDS else _class_of(arch).open
    return opener(Path(path), options or DraftOptions())


def _arch_of(path: str | os.PathLike[str]) -> str:
    """The architecture in a draft's file; "mtp" for a head alone. Raises as open_draft()."""
    name, file = os.fspath(path), Path(path)
    if not file.exists() and file.suffix != ".gguf" and len(file.parts) == 1:
        names = (*_NAMED, AUTO)
        raise ArgumentError(
            "draft", name, problem="is no file that exists and no name of a draft",
            remedy=f"names are {', '.join(names)}{meant(name.replace('_', '-'), names)}",
        )  # fmt: skip
    if not file.exists():
        raise ModelLoadError(f"the draft {file} does not exist; check its path")
    arch = _read_arch(file)
    if not arch:
        raise ModelLoadError(f"{file} does not say what kind of model it holds: {_ARCH} is missing")
    if arch in HEADS or arch in _KINDS:
        return arch
    if is_draft(arch):
        raise UnsupportedError(
            f"drafts of kind {arch!r} are not supported by this version ({file.name}); "
            f"{known_drafts()}"
        )
    return MTP if holds_head_alone(file) else arch


def _read_arch(file: Path) -> str:
    """The architecture in a file; "" if it has none."""
    key = read_key(file, _ARCH)
    value = b"" if key is None else key.value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def holds_head_alone(file: Path) -> bool:
    """Whether a file has an MTP head and no layers before it."""
    read = read_gguf(file, lambda name: name.endswith(_N_HEADS))
    n_heads = sum(key.value for key in read.keys.values() if isinstance(key.value, int))
    return n_heads > 0 and not any(name.startswith("blk.0.") for name in read.tensors)


def wants_head(draft: object, target: str | os.PathLike[str]) -> bool:
    """Whether the draft needs the target loaded with its MTP head."""
    if isinstance(draft, Drafter):
        return draft.wants_head
    if draft == MTP:
        return True
    if draft != AUTO:
        return False
    with contextlib.suppress(PyllamaSpecError):  # loading the file reports its faults
        return not _head_fault(Path(target))
    return False


def check_before(draft: object, target: str | os.PathLike[str]) -> None:
    """Raises if the files' keys rule out the draft. Loads nothing."""
    if draft == MTP or (isinstance(draft, Drafter) and draft.wants_head):
        path = Path(target)
        fault = _head_fault(path)
        if fault:
            problem = f"cannot be used: {path.name} {fault}"
            raise ArgumentError("draft", MTP, problem=problem, remedy=INSTEAD)
    elif isinstance(draft, (str, os.PathLike)) and needs_file(os.fspath(draft)):
        _arch_of(draft)


def open_before(
    draft: object, target: str | os.PathLike[str], options: DraftOptions
) -> Drafter | None:
    """The drafter of `draft=` for a target that is not loaded yet; None for "auto".

    A large target takes minutes to load, so a fault of the draft is reported before that.
    """
    if draft == AUTO:
        return None
    if draft == MTP or isinstance(draft, Drafter):
        check_before(draft, target)
    return make_drafter(draft, options)


def _head_fault(path: Path) -> str:
    """The reason why a file's head cannot draft, by its keys alone; "" for none."""
    name = _read_arch(path)
    found = read_key(path, name + _N_HEADS)
    n = found.value if found is not None and isinstance(found.value, int) else 0
    if n < 1:
        return f"({name}) has no MTP head"
    n_most = most_heads(name)
    if not n_most:
        return f"has an MTP head of architecture {name!r}, which this version does not draft with"
    if n > n_most:
        return f"has {n} MTP heads, and this version drafts with one of architecture {name!r}"
    return ""


def make_drafter_for(target: Model, draft: object, options: DraftOptions) -> Drafter:
    """The drafter of `draft=` for an open target; see make_drafter()."""
    if draft != AUTO:
        return make_drafter(draft, options)
    # Nobody asked for a memory of other requests unless one is named: callers who share a model
    # would see by the time what others wrote.
    options = replace(options, remembers=options.memory is not None)
    if target.info.has_head:
        return _noted(make_drafter(MTP, options), "the file has an MTP head")
    for path in _drafts_beside(target.path):
        with contextlib.suppress(PyllamaSpecError):  # another model's, or broken
            drafter = open_draft(path, options)
            with closed_on_failure(drafter):
                drafter.check(target)
            return _noted(drafter, f"{path.name} lies beside the file and was made for it")
    n_heads = target.info.n_heads
    head = "no MTP head" if not n_heads else "no MTP head that this version can draft with"
    reason = f"the file has {head}, and no draft for it lies beside it"
    return _noted(_open_suffix(options), reason)


def _noted(drafter: Drafter, reason: str) -> Drafter:
    drafter.note = f"auto chose {drafter.name}: {reason}"
    return drafter


def _drafts_beside(target: Path) -> list[Path]:
    """The drafts in the target's folder, by architecture or name, in order."""
    found = []
    with contextlib.suppress(OSError):
        files = sorted(target.parent.glob("*.gguf"))[:_MAX_FILES]
        for path in files:
            with contextlib.suppress(PyllamaSpecError, OSError):
                if not path.is_file():
                    continue
                # The tables of other files with a target's architecture are not read.
                is_head = path.name.startswith(_HEAD_PREFIX) and holds_head_alone(path)
                if is_head or is_draft(_read_arch(path)):
                    found.append(path)
    return found
