"""Counts an n-gram table from the corpus; see drafters/ngram_table.py.

Probabilities are interpolated from the shortest context to the longest, after Witten and Bell
(1991), with twice their weight on the shorter one (on 48 prompts better than once): with c of N
occurrences, and T different next tokens of a context,

    p(w | context) = c / (N + 2 T) + 2 T / (N + 2 T) * p(w | shorter context)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.ngram_table import MAX_CONTEXT, P_SCALE, extend_hashes, keys_of
from pyllama_spec.engine.model_info import NgramArrays
from pyllama_spec.gguf.tensors import PlannedTensor
from pyllama_spec.train.corpus.store import TextSequence
from pyllama_spec.train.progress import Reporter
from pyllama_spec.train.run.init_draft import InitDraft

_SHORTER = 2.0
# A context is kept if its prediction is likely enough and differs from a shorter one's.
_MIN_P = 0.3
_MIN_CHANGE = 0.2

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Keys = npt.NDArray[np.uint32]


@dataclass(slots=True)
class _Places:
    """Counted answer tokens, and the entry of each for the contexts so far."""

    at: Ints  # [n] the index of the token in `tokens`
    n_before: Ints  # [n] the number of earlier tokens of its text
    hashes: npt.NDArray[np.uint64]  # [n] the hash of the context
    p: Floats  # [n] the token's own probability
    best: Ints  # [n] the likeliest token in this context, and its probability
    best_p: Floats
    predicted: Ints  # [n] the table's prediction there, and its probability
    predicted_p: Floats


def count_ngrams(sequences: Sequence[TextSequence], max_contexts: int) -> NgramArrays:
    """Counts the table from the answers of some texts; contexts may extend into prompts."""
    tokens = np.concatenate(
        [np.zeros(0, np.int64), *(s.tokens.astype(np.int64) for s in sequences)]
    )
    places = _places(sequences, tokens)
    counted = [_count(tokens, places, n) for n in range(1, MAX_CONTEXT + 1)]
    keys, ids, p, n = (np.concatenate(parts) for parts in zip(*counted, strict=True))
    top = np.sort(np.lexsort((-p, -n))[:max_contexts])
    # Two contexts may share a key, one in some ten thousand: the shorter one stays.
    keys, first = np.unique(keys[top], return_index=True)
    scaled = np.rint(p[top][first] * P_SCALE).clip(0, P_SCALE)
    return NgramArrays(keys, ids[top][first].astype(np.int32), scaled.astype(np.int8))


def _places(sequences: Sequence[TextSequence], tokens: Ints) -> _Places:
    mask = np.concatenate([np.zeros(0, np.bool_), *(s.mask for s in sequences)])
    n_before = np.concatenate(
        [np.zeros(0, np.int64), *(np.arange(len(s.tokens)) for s in sequences)]
    )
    at = np.flatnonzero(mask & (n_before > 0))
    counts = np.bincount(tokens[at], minlength=1)
    share = counts / max(len(at), 1)
    best = int(counts.argmax())
    n = len(at)
    return _Places(
        at, n_before[at], np.zeros(n, np.uint64), share[tokens[at]],
        np.full(n, best), np.full(n, share[best]), np.full(n, -1), np.zeros(n),
    )  # fmt: skip


def _count(tokens: Ints, places: _Places, n: int) -> tuple[Keys, Ints, Floats, Ints]:
    """Extends every context by a token, and puts the new probabilities into `places`.

    Returns:
        The contexts of n tokens to keep: keys, predictions, their probabilities, and counts.
    """
    on = np.flatnonzero(places.n_before >= n)
    at = places.at[on]
    hashes = extend_hashes(places.hashes[on], tokens[at - n].astype(np.uint64))
    places.hashes[on] = hashes
    _, context_of = np.unique(hashes, return_inverse=True)
    n_contexts = int(context_of.max(initial=-1)) + 1
    # A pair of a context and what follows it, by the first place where it stands.
    n_ids = int(tokens.max(initial=0)) + 1
    _, first, pair_of, counts = np.unique(
        context_of * n_ids + tokens[at], return_index=True, return_inverse=True, return_counts=True
    )
    of_pair = context_of[first]
    total = np.bincount(of_pair, counts, n_contexts)
    kinds = np.bincount(of_pair, minlength=n_contexts)
    rest = _SHORTER * kinds / (total + _SHORTER * kinds)
    p = (1 - rest)[of_pair] * counts / total[of_pair] + rest[of_pair] * places.p[on][first]
    # The likeliest pair of each context: pairs are sorted by context, so the last of a run is it.
    order = np.lexsort((p, of_pair))
    last = order[np.flatnonzero(np.diff(of_pair[order], append=n_contexts))]
    best, best_p = tokens[at][first[last]], p[last]
    place = on[first[last]]
    # The shorter context's token may be likelier still, though it never occurred here.
    elsewhere = rest * places.best_p[place]
    best = np.where(elsewhere > best_p, places.best[place], best)
    best_p = np.maximum(best_p, elsewhere)
    news = (best != places.predicted[place]) | (
        np.abs(best_p - places.predicted_p[place]) >= _MIN_CHANGE
    )
    kept = (n == 1) | (news & (best_p >= _MIN_P))
    predicted = np.where(kept, best, places.predicted[place])
    predicted_p = np.where(kept, best_p, places.predicted_p[place])
    places.p[on] = p[pair_of]
    places.best[on], places.best_p[on] = best[context_of], best_p[context_of]
    places.predicted[on], places.predicted_p[on] = predicted[context_of], predicted_p[context_of]
    return keys_of(hashes[first[last]])[kept], best[kept], best_p[kept], total[kept]


def merge_ngrams(
    old: NgramArrays, new: NgramArrays, share: float, max_contexts: int
) -> NgramArrays:
    """Merges two tables without their texts.

    A context of both predicts the likeliest token of both together, weighted by the text each has
    seen; one that only one knows stays as it is.
    """
    _, i, j = np.intersect1d(old.keys, new.keys, return_indices=True)
    p_old, p_new = (1 - share) * old.p[i], share * new.p[j]
    agree = old.ids[i] == new.ids[j]
    both = NgramArrays(
        old.keys[i],
        np.where(agree | (p_old >= p_new), old.ids[i], new.ids[j]).astype(np.int32),
        np.rint(np.where(agree, p_old + p_new, np.maximum(p_old, p_new))).astype(np.int8),
    )
    parts = [both, _without(old, i), _without(new, j)]
    keys, ids, p = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("keys", "ids", "p")
    )
    is_single = np.arange(len(keys)) >= len(both.keys)
    top = np.lexsort((keys, -p.astype(np.int64), is_single))[:max_contexts]
    rising = top[np.argsort(keys[top])]
    return NgramArrays(keys[rising], ids[rising], p[rising])


def _without(table: NgramArrays, i: Ints) -> NgramArrays:
    return NgramArrays(np.delete(table.keys, i), np.delete(table.ids, i), np.delete(table.p, i))


def table_of(
    sequences: Sequence[TextSequence], init: InitDraft | None, max_contexts: int, reporter: Reporter
) -> list[PlannedTensor]:
    """The table's tensors for the texts, merged with the initial draft's table."""
    if not max_contexts:
        return []
    ngrams = count_ngrams(sequences, max_contexts)
    if init is not None and init.ngrams is not None:
        n_new = sum(sequence.n_answer for sequence in sequences)
        ngrams = merge_ngrams(init.ngrams, ngrams, n_new / (n_new + init.n_text), max_contexts)
    reporter.line(f"n-gram table: {len(ngrams.keys)} contexts")
    if not len(ngrams.keys):
        return []
    parts: dict[str, npt.NDArray[Any]] = {
        "keys": ngrams.keys.view(np.int32), "ids": ngrams.ids, "p": ngrams.p,
    }  # fmt: skip
    return [PlannedTensor(f"ngram.{k}", v.shape, values=v) for k, v in parts.items()]
