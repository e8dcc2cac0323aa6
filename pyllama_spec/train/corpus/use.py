"""Training text from a draft memory: the target's answers to its owner.

A store holds a conversation in parts: each has what a turn added, after the MAX_MATCH tokens before
it. The target read everything before a part, so the parts are joined again. A text longer than the
read limit is cut into overlapping pieces. The parts to learn from are cut out of them in windows,
since a head sees no further than a window during the fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.suffix.memory import RememberedText, TokenOrigin
from pyllama_spec.drafters.suffix.token_index import MAX_MATCH
from pyllama_spec.drafters.suffix.upkeep import parents_of
from pyllama_spec.train.corpus.quality import fingerprint
from pyllama_spec.train.corpus.store import TextSequence

# The key of a thread: tokens of its first text, after the leading ones.
_KEY_TOKENS = 64
# Tokens that a window has before the first one that is learned, where there are as many.
_LEAD = 128
# The most tokens that a text needs from the text before it.
_MOST_BEFORE = 1 << 14

Ids = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True, eq=False)
class Thread:
    """A text as the target read it, joined from a store's parts."""

    key: float  # a number in 0 .. 1 from its first text; the same in every read of the store
    ids: list[int] = field(default_factory=list)  # its tokens
    # the TokenOrigin of each token; GIVEN for tokens of another thread
    origins: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a thread to read at once, and the windows to learn from."""

    key: float  # the key of the thread
    sequence: TextSequence  # its tokens; the mask marks those to learn
    windows: list[tuple[int, TextSequence]]  # the start of each window, and its sequence

    @property
    def n_window_tokens(self) -> int:
        """The number of tokens of all windows."""
        return sum(len(window.tokens) for _, window in self.windows)


def newest_with_answers(texts: Sequence[RememberedText], n_tokens: int) -> set[int]:
    """The newest texts that together have n tokens of a target's own."""
    chosen: set[int] = set()
    n = 0
    for i in range(len(texts) - 1, -1, -1):
        if n >= n_tokens:
            break
        n_own = int(np.count_nonzero(texts[i].origins))
        if n_own:
            chosen.add(i)
            n += n_own
    return chosen


def threads_of(texts: Sequence[RememberedText], chosen: set[int]) -> list[Thread]:
    """Joins texts with their continuations.

    Returns:
        The threads with something to learn, in the order of their first texts.
    """
    parents = parents_of(texts, chosen)
    threads: list[Thread] = []
    # The thread of each text, and the position of its first token there.
    places: dict[int, tuple[Thread, int]] = {}
    for i in sorted(parents):
        text, parent = texts[i], parents[i]
        ids, n_lead = text.ids.tolist(), 0 if parent is None else MAX_MATCH
        origins = text.origins.tobytes() if i in chosen else bytes(len(ids))
        thread = None
        if parent is not None:
            before, at = places[parent[0]]
            thread, end = before, at + parent[1]
        if thread is None or end < len(thread.ids):
            context = [] if thread is None else thread.ids[max(end - _MOST_BEFORE, 0) : end]
            thread = Thread(_key(ids[n_lead:]), context, bytearray(len(context)))
            threads.append(thread)
        places[i] = thread, len(thread.ids) - n_lead
        thread.ids += ids[n_lead:]
        thread.origins += origins[n_lead:]
    return [thread for thread in threads if any(thread.origins)]


def _key(ids: Sequence[int]) -> float:
    digest = fingerprint(list(ids[:_KEY_TOKENS]))
    return int.from_bytes(digest, "little") / (1 << 8 * len(digest))


def pieces_of(threads: Sequence[Thread], n_piece: int, n_window: int) -> list[Piece]:
    """The pieces of threads, each with its windows."""
    out: list[Piece] = []
    n_lead = min(_LEAD, n_window // 4)
    for thread in threads:
        ids = np.array(thread.ids, np.uint32)
        origins = np.frombuffer(bytes(thread.origins), np.uint8)
        for first, end, own in _cuts(origins, n_piece, n_piece // 4):
            # The preceding tokens, as far as there is room.
            begin = max(min(first, end - n_piece), 0)
            part = _sequence(len(out), ids, origins, begin, end, own)
            windows = [
                (a, _sequence(len(out), part.tokens, origins[begin:end], a, b, max(c, own - begin)))
                for a, b, c in _cuts(_learned(origins[begin:end], own - begin), n_window, n_lead)
            ]
            out.append(Piece(thread.key, part, windows))
    return out


def _learned(origins: Bytes, own: int) -> Bytes:
    out: Bytes = origins.copy()
    # Nothing is predicted before there is a row of a token and the token after it.
    out[: max(own, 2)] = TokenOrigin.GIVEN
    return out


def _cuts(origins: Bytes, most: int, n_lead: int) -> Iterator[tuple[int, int, int]]:
    """The ranges of a text's parts, and where the new tokens of each start.

    Every token to learn is in one of them, and no part ends with given tokens.
    """
    at = np.flatnonzero(origins)
    done = 0
    while len(at := at[at >= done]):
        begin = max(int(at[0]) - n_lead, 0)
        last = int(at[at < begin + most][-1])
        yield begin, last + 1, done
        done = last + 1


def _sequence(
    number: int, ids: npt.NDArray[np.uint32], origins: Bytes, begin: int, end: int, own: int
) -> TextSequence:
    its = _learned(origins[begin:end], own - begin)
    missed: npt.NDArray[np.bool_] = its == TokenOrigin.MISSED
    return TextSequence(number, ids[begin:end], its > TokenOrigin.GIVEN, True, missed)


def apart(keys: Sequence[float], share: float) -> tuple[set[float], set[float]]:
    """The keys of the held-out threads: to choose the best weights, and for the final comparison.

    The key depends on a thread's text, so a held-out thread is held out in later runs too.
    """
    order = sorted(set(keys))
    n_judging = min(max(bisect_left(order, share / 2), 1), len(order) - 2)
    n_held = min(max(bisect_left(order, share), n_judging + 1), len(order) - 1)
    return set(order[n_judging:n_held]), set(order[:n_judging])
