"""Resolves draft="auto": the MTP head in the target's file, else a draft beside the file.

Where there is neither, drafts are copied from the text by Suffix, which is ahead of prompt lookup
in both runs of docs/results.md that have the two. The drafter's `note` says which of them was
chosen, and why.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pyllama_spec.drafters.base import Drafter
from pyllama_spec.drafters.options import DraftOptions
from pyllama_spec.drafters.registry import (
    AUTO,
    MTP,
    SUFFIX,
    check_draft_file,
    holds_head_alone,
    is_draft,
    is_named,
    make_drafter,
    needs_file,
    open_draft,
)
from pyllama_spec.engine.closeable import closed_on_failure
from pyllama_spec.engine.model import Model, most_heads
from pyllama_spec.errors import ArgumentError, PyllamaSpecError
from pyllama_spec.gguf.reader import read_key, read_keys

INSTEAD = f'give a draft\'s file, or draft="{SUFFIX}"'
_ARCH, _N_HEADS = "general.architecture", ".nextn_predict_layers"
# The maximum number of a folder's files to read, which bounds the time.
_MAX_FILES = 64
# How files are named that hold a head alone.
_HEAD_PREFIX = "mtp-"


def wants_head(draft: object, target: str | os.PathLike[str]) -> bool:
    """Whether the draft needs the target loaded with its MTP head."""
    if isinstance(draft, Drafter):
        return draft.wants_head
    if is_named(draft, MTP):
        return True
    if not is_named(draft, AUTO):
        return False
    with contextlib.suppress(PyllamaSpecError):  # loading the file reports its faults
        return not _head_fault(Path(target))
    return False


def check_head(
    target: str | os.PathLike[str], instead: str = INSTEAD, whose: str = f'draft="{MTP}"'
) -> None:
    """Raises unless a file's keys show an MTP head to draft with. Loads nothing."""
    path = Path(target)
    fault = _head_fault(path)
    if fault:
        raise ArgumentError(f"{whose}: {path.name} {fault}; {instead}")


def check_before(draft: object, target: str | os.PathLike[str]) -> None:
    """Raises if the files' keys rule out the draft. Loads nothing."""
    if is_named(draft, MTP) or (isinstance(draft, Drafter) and draft.wants_head):
        check_head(target)
    elif isinstance(draft, (str, os.PathLike)) and needs_file(os.fspath(draft)):
        check_draft_file(draft)


def open_before(
    draft: object,
    target: str | os.PathLike[str],
    options: DraftOptions,
    instead: str = INSTEAD,
) -> Drafter | None:
    """The drafter of `draft=` for a target that is not loaded yet; None for "auto".

    A large target takes minutes to load, so a fault of the draft is reported before that.
    """
    if is_named(draft, AUTO):
        return None
    drafter = make_drafter(draft, options)
    with closed_on_failure(None if drafter is draft else drafter):
        if drafter.wants_head:
            name = drafter.name
            own = f"wants_head of the drafter {name!r}"
            check_head(target, instead, f'draft="{MTP}"' if name == MTP else own)
    return drafter


def _head_fault(path: Path) -> str:
    """The reason why a file's head cannot draft, by its keys alone; "" for none."""
    keys = read_keys(path, lambda name: name == _ARCH or name.endswith(_N_HEADS))
    arch = keys[_ARCH].value if _ARCH in keys else b""
    name = arch.decode("utf-8", "replace") if isinstance(arch, bytes) else ""
    found = keys.get(name + _N_HEADS)
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
    if not is_named(draft, AUTO):
        return make_drafter(draft, options)
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
    from pyllama_spec.drafters.suffix import open_suffix  # imported when it is asked for

    # Of the options only those of copies apply. Nobody asked for a memory of other requests unless
    # one is named: callers who share a model would see by the time what others wrote.
    return _noted(open_suffix(options, remembers=options.memory is not None), reason)


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
                key = read_key(path, _ARCH) if path.is_file() else None
                arch = key.value if key is not None else b""
                name = arch.decode("utf-8", "replace") if isinstance(arch, bytes) else ""
                # The tables of other files with a target's architecture are not read.
                is_head = path.name.startswith(_HEAD_PREFIX) and holds_head_alone(path)
                if is_draft(name) or is_head:
                    found.append(path)
    return found
