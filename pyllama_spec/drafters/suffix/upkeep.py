"""Maintains a store: adds files, measures its value, removes texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import Committed, Drafter, DraftRequest
from pyllama_spec.drafters.suffix.drafter import Suffix
from pyllama_spec.drafters.suffix.memory import RememberedText, most_useful
from pyllama_spec.drafters.suffix.memory import now_minute as now
from pyllama_spec.drafters.suffix.store import Store
from pyllama_spec.drafters.suffix.token_index import MAX_MATCH
from pyllama_spec.engine.checks import real
from pyllama_spec.engine.vocab import Vocab
from pyllama_spec.errors import ArgumentError

# A store holds a conversation in parts: what a turn added, after the MAX_MATCH tokens before it. A
# turn that continues the middle of a text, after its whole question, drops the rest of that text,
# as the thoughts of an answer are dropped. One that continues within the question shows that two
# conversations begin alike, as with a system prompt.

# By the place of a text: see parents_of().
Parents = dict[int, tuple[int, int] | None]


def parents_of(texts: Sequence[RememberedText], chosen: set[int]) -> Parents:
    """The parents of some texts, and their parents, up to the first text.

    By its place the place of the text before and how many tokens of that count, the leading
    ones included; None for one that begins a conversation.
    """
    places = {one.key: i for i, one in enumerate(texts)}
    parents: Parents = {}
    for i in sorted(chosen):
        at: int | None = i
        while at is not None and at not in parents:
            before = places.get(texts[at].parent)
            # Of a forged file the numbers may be any.
            is_before = before is not None and before < at and before >= 0
            n = texts[at].n_before
            parents[at] = (before, n) if before is not None and is_before else None
            at = before if is_before else None
    return parents


def with_their_conversations(
    texts: Sequence[RememberedText],
    parents: Parents,
    found: set[int],
    is_before: Callable[[int, int], bool],
) -> set[int]:
    """Some texts of a store with the other parts of their conversations.

    A beginning that others share is of the conversation that had it first, and stays with that.
    """
    # Of a shorter text than what leads on, what continues it has all.
    short = {t.ids.tobytes(): i for i, t in enumerate(texts) if len(t.ids) <= MAX_MATCH}
    parts: dict[int, set[int]] = {i: {i} for i in range(len(texts))}

    def join(i: int, j: int) -> None:
        if parts[i] is not parts[j]:
            parts[i] |= parts[j]
            for k in parts[j]:
                parts[k] = parts[i]

    have_read, goes_on = set(), set()
    for j, text in enumerate(texts):
        parent = parents[j]
        if parent is None:
            for n in range(1, min(MAX_MATCH, len(text.ids) - 1) + 1):
                i = short.get(text.ids[:n].tobytes())
                if i is not None and i < j:
                    join(i, j)
            continue
        i, end = parent
        is_whole = end == len(texts[i].ids) or texts[i].origins[: end + 1].any()
        if is_whole or i in goes_on:
            join(i, j)
            goes_on.add(j)
        elif i in have_read or (i in found and is_before(i, end)):
            have_read.add(j)
    return set().union(*(parts[i] for i in found | have_read))


# A file's text is remembered in parts of so many tokens.
PART_TOKENS = 1 << 14
# Files with more bytes than this are data, not written text.
MAX_FILE_BYTES = 16 << 20
# The maximum number of held-out tokens to replay.
_PLAYED_TOKENS = 20_000
_HELD_OUT_EVERY = 10
# The overlap that shows a text remembered in two parts.
_PIECE_BYTES = 16
_MINUTES_PER_DAY = 24 * 60

Progress = Callable[[float], None]
# Given tokens and the index of the first one: the commits of them.
Commits = Callable[[list[int], int], Iterable[Committed]]


class Played(NamedTuple):
    """The result of a drafter on known answers."""

    n_rounds: int = 0
    n_drafted: int = 0
    n_accepted: int = 0

    @property
    def n_tokens(self) -> int:
        """The number of tokens that the rounds gave."""
        return self.n_rounds + self.n_accepted

    @property
    def tokens_per_round(self) -> float:
        """Tokens per round; 1 for plain decoding."""
        return self.n_tokens / max(self.n_rounds, 1)

    def plus(self, other: Played) -> Played:
        """The sum of both counts."""
        return Played(*map(sum, zip(self, other, strict=True)))


class Found(NamedTuple):
    """The files that the user named."""

    files: list[Path]
    n_links: int


def files_below(paths: Iterable[Path]) -> Found:
    """The named files, and those in named folders except hidden ones.

    A link that is named is followed. One in a folder is not: it may lead out of what was named.
    """
    found: list[Path] = []
    n_links = 0
    for path in paths:
        _check_readable(path)
        if not path.is_dir():
            found.append(path)
            continue
        for folder, names, files in os.walk(path):
            links = {name for name in (*names, *files) if Path(folder, name).is_symlink()}
            n_links += sum(not name.startswith(".") for name in links)
            names[:] = sorted(n for n in names if n not in links and not n.startswith("."))
            files = sorted(n for n in files if n not in links and not n.startswith("."))
            found += [Path(folder, name) for name in files]
    return Found(found, n_links)


def _check_readable(path: Path) -> None:
    try:
        path.stat()
        if not os.access(path, os.R_OK):
            raise PermissionError
    except PermissionError:
        raise ArgumentError(
            problem=f"{path} cannot be read by this user",
            remedy="give the right to read it, or leave it out",
        ) from None  # fmt: skip
    except OSError:
        raise ArgumentError(
            problem=f"{path} does not exist", remedy="give files or folders"
        ) from None


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
    return [ids[at : at + PART_TOKENS] for at in range(0, len(ids), PART_TOKENS)]


def build(
    store: Store, vocab: Vocab, files: Sequence[Path], progress: Progress
) -> tuple[int, Played | None]:
    """Adds files to a store; measures it on every tenth file before adding those."""
    n_texts = 0
    held_out: list[list[int]] = []
    for i, path in enumerate(files):
        parts = ids_of(vocab, text_of(path))
        n_texts += bool(parts)
        if i % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1:
            held_out += parts
        elif parts:
            store.write_all(parts)
        progress(0.9 * (i + 1) / len(files))
    replayed = played(store, held_out) if held_out else None
    store.write_all(held_out)
    progress(1.0)
    return n_texts, replayed


def play(
    drafter: Drafter, prompt: Sequence[int], answer: Sequence[int], commits: Commits | None = None
) -> Played:
    """Replays a known answer with a drafter, as if a target generated it."""

    def commit(tokens: list[int], start: int) -> None:
        for done in (Committed(0, tokens, start),) if commits is None else commits(tokens, start):
            drafter.commit([done])

    drafter.begin_request(0, remember=True, user="")
    drafter.truncate(0, 0)
    text, at = [*prompt, answer[0]], 1
    commit(text, 0)
    n_rounds = n_drafted = n_accepted = 0
    while at < len(answer):
        n = min(drafter.max_draft, len(answer) - at)
        [draft] = drafter.propose([DraftRequest(0, text, n, n_lookup=n)])
        ids, right = draft.ids[: len(answer) - at - 1], 0
        while right < len(ids) and ids[right] == answer[at + right]:
            right += 1
        new = list(answer[at : at + right + 1])
        commit(new, len(text))
        text += new
        at += len(new)
        n_rounds, n_drafted, n_accepted = n_rounds + 1, n_drafted + len(ids), n_accepted + right
    drafter.end_request(0)
    return Played(n_rounds, n_drafted, n_accepted)


def play_all(drafter: Drafter, requests: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Played:
    """Replays prompts with their answers, one after the other; see play()."""
    out = Played()
    for prompt, answer in requests:
        out = out.plus(play(drafter, prompt, answer))
    return out


def played(store: Store, texts: Iterable[Sequence[int]]) -> Played:
    """Replays the first of some texts with a store, without writing to it."""
    parts: list[tuple[Sequence[int], Sequence[int]]] = []
    room = _PLAYED_TOKENS
    for text in texts:
        if len(text) > 1 and room > 0:
            parts.append(((), text[: room + 1]))
            room -= len(parts[-1][1]) - 1
    return play_all(Suffix(store=_Untouched(store)), parts)


class _Untouched:
    """A read-only store."""

    def __init__(self, store: Store) -> None:
        self.index = store.index

    def refresh(self) -> None:
        """Does nothing."""

    def add(self, ids: Sequence[int], origins: Sequence[int] = ()) -> None:
        """Does nothing."""

    def note_use(self, at: int, n: int) -> None:
        """Does nothing."""


def is_part(data: bytes, wanted: bytes) -> bool:
    """Whether a text contains another one, lies in it, or overlaps it at one of its ends.

    A conversation is remembered in parts: what one has the end of, the other one has the rest of.
    """
    if wanted in data or (data and data in wanted):
        return True
    for n in range(min(_PIECE_BYTES, len(wanted)), min(len(wanted), len(data)) + 1):
        if data.endswith(wanted[:n]) or data.startswith(wanted[-n:]):
            return True
    return False


def borders_of(
    texts: Sequence[RememberedText], parents: Parents
) -> Iterator[tuple[int, int, int, int]]:
    """The borders at which one text of a store continues in another.

    Yields:
        The places of both, and how many tokens of the first come before the border and how many of
        the second before it again.
    """
    for j, text in enumerate(texts):
        parent = parents[j]
        if parent is not None:
            yield parent[0], j, parent[1], MAX_MATCH
        if not j:
            continue
        before = texts[j - 1]
        # If a part's beginning was known, only the rest is stored.
        is_part_of_file = len(before.ids) == PART_TOKENS or parents[j - 1] is not None
        if is_part_of_file and not before.known_origins and not text.known_origins:
            yield j - 1, j, len(before.ids), 0


def is_across(first: bytes, second: bytes, wanted: bytes) -> bool:
    """Whether a text spans the border between a text and its continuation.

    Either of them may lie in it as a whole.
    """
    border = first[-1:] + second[:1]
    at = wanted.find(border) if len(border) == 2 else -1
    while at >= 0:
        head, tail = wanted[: at + 1], wanted[at + 1 :]
        if (first.endswith(head) or head.endswith(first)) and (
            second.startswith(tail) or tail.startswith(second)
        ):
            return True
        at = wanted.find(border, at + 1)
    return False


def _across_borders(
    vocab: Vocab, texts: Sequence[RememberedText], parents: Parents, wanted: bytes
) -> set[int]:
    """The texts that contain a text only together with their continuation."""
    out: set[int] = set()
    for i, j, end, begin in borders_of(texts, parents):
        ids = texts[i].ids[:end]
        first = bytes_of(vocab, ids)
        # The first token of a text may lose its space, so the second is never read alone.
        both = np.concatenate([ids, texts[j].ids[begin:]])
        if is_across(first, bytes_of(vocab, both)[len(first) :], wanted):
            # What two conversations begin with is of both, and stays with the other one.
            out |= {i, j} if end == len(texts[i].ids) else {j}
    return out


def forget(store: Store, vocab: Vocab, text: str) -> tuple[int, int]:
    """Removes from a store all texts that contain a text, with their whole conversations.

    What lies in the text as a whole goes too, and parts of a file or a conversation that have it
    together.
    """
    wanted = text.encode()
    if not wanted:
        raise ArgumentError(
            "text", "", problem="is in every text", remedy="empty the store with --all"
        )
    with store.locked():
        texts = store.texts()
        parents = parents_of(texts, set(range(len(texts))))
        found = {i for i, one in enumerate(texts) if is_part(bytes_of(vocab, one.ids), wanted)}
        found |= _across_borders(vocab, texts, parents, wanted)

        def is_before(i: int, n: int) -> bool:
            return wanted in bytes_of(vocab, texts[i].ids[:n])

        gone = with_their_conversations(texts, parents, found, is_before) if found else found
        if gone:
            store.keep([one for i, one in enumerate(texts) if i not in gone])
    return len(found), len(gone) - len(found)


def bytes_of(vocab: Vocab, ids: npt.NDArray[np.int32]) -> bytes:
    """The bytes of ids. Skips ids of a damaged store that the vocabulary lacks."""
    return vocab.detokenize([i for i in ids.tolist() if i < vocab.n_tokens], special=True)


def prune(store: Store, *, max_tokens: int | None = None, days: float | None = None) -> int:
    """Removes old texts, then the least useful until the rest fits; returns how many."""
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
            kept = most_useful(kept, limit)
        store.keep(kept, max_tokens=limit)
    return len(texts) - len(kept)
