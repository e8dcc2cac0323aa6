"""Maintains a store: adds files, removes texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.suffix.memory import RememberedText, newest_texts
from pyllama_spec.drafters.suffix.memory import now_minute as now
from pyllama_spec.drafters.suffix.store import Store
from pyllama_spec.drafters.suffix.token_index import MAX_MATCH
from pyllama_spec.engine.checks import real
from pyllama_spec.engine.vocab import Vocab
from pyllama_spec.errors import ArgumentError

# A file's text is remembered in parts of so many tokens, each after the last ones of the one before
# it, so that a file is chained like a conversation.
PART_TOKENS = 1 << 14
# Files with more bytes than this are data, not written text.
MAX_FILE_BYTES = 16 << 20
# The overlap that shows a text of which only one end is left.
_PIECE_BYTES = 16
_MINUTES_PER_DAY = 24 * 60

Progress = Callable[[float], None]
# By the place of a text: see parents_of().
Parents = dict[int, tuple[int, int] | None]


def parents_of(texts: Sequence[RememberedText], chosen: set[int]) -> Parents:
    """The parents of some texts, and their parents, up to the first text.

    A store holds a conversation in parts: what a turn added, after the MAX_MATCH tokens before it.

    Returns:
        By its place the place of the text before and how many tokens of that count, the leading
        ones included; None for one that begins a conversation.
    """
    places = {one.key: i for i, one in enumerate(texts)}
    parents: Parents = {}
    for i in sorted(chosen):
        at: int | None = i
        while at is not None and at not in parents:
            before = places.get(texts[at].parent)
            parents[at] = None if before is None else (before, texts[at].n_before)
            at = before
    return parents


def files_below(paths: Iterable[Path]) -> tuple[list[Path], int]:
    """The named files and those in named folders except hidden ones, and the number of links there.

    A link that is named is followed. One in a folder is not: it may lead out of what was named.
    """
    found: list[Path] = []
    n_links = 0
    for path in paths:
        try:
            path.stat()
        except OSError as error:
            raise ArgumentError(
                problem=f"{path} cannot be read: {error.strerror}", remedy="give files or folders"
            ) from None
        if not path.is_dir():
            found.append(path)
            continue
        for folder, names, files in os.walk(path):
            links = {name for name in (*names, *files) if Path(folder, name).is_symlink()}
            n_links += sum(not name.startswith(".") for name in links)
            names[:] = sorted(n for n in names if n not in links and not n.startswith("."))
            files = sorted(n for n in files if n not in links and not n.startswith("."))
            found += [Path(folder, name) for name in files]
    return found, n_links


def text_of(path: Path) -> str:
    """A file's text; "" if it is not text or cannot be read."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return ""
        data = path.read_bytes()
        return "" if b"\0" in data[:8192] else data.decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def ids_of(vocab: Vocab, text: str) -> list[list[int]]:
    """A text as parts of PART_TOKENS ids. Names of special tokens stay text."""
    ids = vocab.tokenize(text, add_special=False, parse_special=False) if text else []
    return [
        ids[max(at - MAX_MATCH, 0) : at + PART_TOKENS] for at in range(0, len(ids), PART_TOKENS)
    ]


def build(store: Store, vocab: Vocab, files: Sequence[Path], progress: Progress) -> int:
    """Adds files to a store; returns how many were text."""
    n_texts = 0
    for i, path in enumerate(files):
        parts = ids_of(vocab, text_of(path))
        n_texts += bool(parts)
        store.write_all(parts)
        progress((i + 1) / len(files))
    return n_texts


def forget(store: Store, vocab: Vocab, text: str) -> tuple[int, int]:
    """Removes from a store the files and conversations that contain a text.

    A beginning that conversations share, such as a system prompt, is of the one that had it first.

    Returns:
        The numbers of removed parts: those with the text, and the others.
    """
    wanted = text.encode()
    if not wanted:
        raise ArgumentError(
            "text", "", problem="is in every text", remedy="empty the store with --all"
        )
    with store.locked():
        texts = store.texts()
        parents = parents_of(texts, set(range(len(texts))))
        firsts: list[int] = []  # the place of the first part of each one's conversation
        found: set[int] = set()
        for i, one in enumerate(texts):
            ids, first, parent = one.ids, i, parents[i]
            if parent is not None:
                ids = np.concatenate([_read_before(texts, parents, i), ids[MAX_MATCH:]])
                before, end = parent
                # One that leaves a text within its first question only begins alike.
                is_answered = (
                    end == len(texts[before].ids) or texts[before].origins[: end + 1].any()
                )
                if is_answered or firsts[before] != before:
                    # What stands farther before is found in the other parts.
                    first, ids = firsts[before], ids[-len(one.ids) - len(wanted) :]
            firsts.append(first)
            if _is_part(bytes_of(vocab, ids), wanted):
                found.add(i)
        gone = {firsts[i] for i in found}
        kept = [one for one, first in zip(texts, firsts, strict=True) if first not in gone]
        if gone:
            store.keep(kept)
    return len(found), len(texts) - len(kept) - len(found)


def _read_before(
    texts: Sequence[RememberedText], parents: Parents, i: int
) -> npt.NDArray[np.int32]:
    """The tokens of a conversation before the new ones of a part."""
    parts: list[npt.NDArray[np.int32]] = []
    parent = parents[i]
    while parent is not None:
        before, end = parent
        parent = parents[before]
        parts.append(texts[before].ids[MAX_MATCH if parent is not None else 0 : end])
    return np.concatenate(parts[::-1])


def _is_part(data: bytes, wanted: bytes) -> bool:
    """Whether a text contains another one, lies in it, or overlaps it at one of its ends.

    Of a long conversation the beginning may have left for room.
    """
    if wanted in data or (data and data in wanted):
        return True
    return any(
        data.endswith(wanted[:n]) or data.startswith(wanted[-n:])
        for n in range(min(_PIECE_BYTES, len(wanted)), min(len(wanted), len(data)) + 1)
    )


def bytes_of(vocab: Vocab, ids: npt.NDArray[np.int32]) -> bytes:
    """The bytes of ids. Skips ids of a damaged store that the vocabulary lacks."""
    return vocab.detokenize([i for i in ids.tolist() if i < vocab.n_tokens], special=True)


def prune(store: Store, *, max_tokens: int | None = None, days: float | None = None) -> int:
    """Removes texts of some age, then the oldest until the rest fits; returns how many."""
    if days is not None:
        real(days, "days", 0.0)
    with store.locked():
        texts = store.texts()
        kept = texts
        if days is not None:
            begin = now() - days * _MINUTES_PER_DAY
            kept = [one for one in kept if one.minute >= begin]
        limit = store.max_tokens if max_tokens is None else max_tokens
        if sum(one.n_entry for one in kept) > limit:
            kept = newest_texts(kept, limit)
        store.keep(kept, max_tokens=limit)
    return len(texts) - len(kept)
