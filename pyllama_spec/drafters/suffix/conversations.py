"""Finds the texts of a store that belong to one conversation.

A store holds a conversation in parts: what a turn added, behind the MAX_MATCH tokens that lead on
to it. Where a turn goes on from the middle of a text, behind its whole question, the rest of that
text was taken back, as the thoughts of an answer are. Where it does within the question, two
conversations begin alike, as with a system prompt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.suffix.memory import RememberedText
from pyllama_spec.drafters.suffix.token_index import MAX_MATCH

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_LEAD_BYTES = MAX_MATCH * np.dtype(np.int32).itemsize


# By the place of a text: see parents_of().
Parents = dict[int, tuple[int, int] | None]


def parents_of(texts: Sequence[RememberedText], chosen: set[int]) -> Parents:
    """The parents of some texts, and their parents, up to the first text.

    Returns:
        By its place the place of the text before and how many tokens of that count, the leading
        ones included; None for one that begins a conversation.

    """
    leads = [text.ids[:MAX_MATCH].tobytes() for text in texts]
    ends: dict[bytes, list[int]] = {}
    for i, text in enumerate(texts):
        if len(text.ids) > MAX_MATCH:
            ends.setdefault(text.ids[-MAX_MATCH:].tobytes(), []).append(i)
    first = _first_places(texts, set(leads))
    parents: Parents = {}
    for i in sorted(chosen):
        at: int | None = i
        while at is not None and at not in parents:
            # The newest conversation that ended so; else the first text that had it.
            ended = ends.get(leads[at], [])
            n_ended, known = bisect_left(ended, at), first.get(leads[at])
            parents[at] = None
            if n_ended:
                parents[at] = ended[n_ended - 1], len(texts[ended[n_ended - 1]].ids)
            elif known is not None and known[0] < at:
                parents[at] = known
            parent = parents[at]
            at = None if parent is None else parent[0]
    return parents


def with_their_conversations(
    texts: Sequence[RememberedText],
    parents: Parents,
    found: set[int],
    is_before: Callable[[int, int], bool],
) -> set[int]:
    """Some texts of a store with the other parts of their conversations.

    A beginning that others share is of the conversation that had it first, and stays with that.

    Args:
        texts: all texts of a store, oldest first.
        parents: the result of parents_of() for all of them.
        found: places of some of the texts, by their content.
        is_before: whether the searched content stands in the first n tokens of a found text; a text
            that continues after these has read it.

    Returns:
        The places of all parts of these conversations.

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


def _first_places(
    texts: Sequence[RememberedText], leads: set[bytes]
) -> dict[bytes, tuple[int, int]]:
    """The first text with each of some n-grams, and the number of its tokens up to the n-gram."""
    whole = [lead for lead in leads if len(lead) == _LEAD_BYTES]
    hashes = np.array([_hashes(np.frombuffer(lead, np.int32))[0] for lead in whole], np.uint64)
    out: dict[bytes, tuple[int, int]] = {}
    for i, text in enumerate(texts):
        own_hashes = _hashes(text.ids)
        for at in np.flatnonzero(np.isin(own_hashes, hashes)).tolist():
            gram = text.ids[at : at + MAX_MATCH].tobytes()
            if gram in leads:
                out.setdefault(gram, (i, at + MAX_MATCH))
    return out


def _hashes(ids: npt.NDArray[np.int32]) -> npt.NDArray[np.uint64]:
    """The hash of each n-gram of MAX_MATCH tokens."""
    n = max(len(ids) - MAX_MATCH + 1, 0)
    values, out = ids.astype(np.uint64), np.zeros(n, np.uint64)
    for k in range(MAX_MATCH):
        out = out * _FACTOR + values[k : k + n]
    return out
