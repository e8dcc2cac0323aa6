"""The counted table equals one counted context by context."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

from pyllama_spec.drafters.ngram_table import MAX_CONTEXT, NgramTable, context_keys
from pyllama_spec.train.corpus.store import TextSequence
from pyllama_spec.train.run import ngrams
from pyllama_spec.train.run.ngrams import count_ngrams

Context = tuple[int, ...]


def texts(seed: int, n_texts: int, n_kinds: int, n_tokens: int = 60) -> list[TextSequence]:
    """Random texts that repeat themselves; the first third of each is its prompt."""
    rng = np.random.default_rng(seed)
    out = []
    for number in range(n_texts):
        tokens = (rng.pareto(1.0, n_tokens) * 2).astype(np.uint32) % n_kinds
        mask = np.arange(n_tokens) >= n_tokens // 3
        out.append(TextSequence(number, tokens, mask, is_greedy=True))
    return out


def by_hand(sequences: list[TextSequence]) -> dict[Context, tuple[dict[int, float], int]]:
    """The probabilities of every context's next tokens, and the context's count."""
    after: dict[Context, Counter[int]] = defaultdict(Counter)
    for s in sequences:
        tokens = s.tokens.tolist()
        for i in np.flatnonzero(s.mask).tolist():
            for n in range(min(i, MAX_CONTEXT) + 1):
                after[tuple(tokens[i - n : i])][tokens[i]] += 1
    p: dict[Context, tuple[dict[int, float], int]] = {}
    for context in sorted(after, key=len):
        counts = after[context]
        total, kinds = sum(counts.values()), len(counts)
        if not context:
            p[context] = {t: c / total for t, c in counts.items()}, total
            continue
        rest = 2 * kinds / (total + 2 * kinds)
        shorter = p[context[1:]][0]
        p[context] = (
            {t: (1 - rest) * counts[t] / total + rest * q for t, q in shorter.items()},
            total,
        )
    return p


def test_counts_equal_those_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # All contexts are kept, so that each can be looked at.
    monkeypatch.setattr(ngrams, "_MIN_P", 0.0)
    monkeypatch.setattr(ngrams, "_MIN_CHANGE", 0.0)
    sequences = texts(1, n_texts=40, n_kinds=50)
    counted = count_ngrams(sequences, 10**9)
    table, expected = NgramTable(counted.keys, counted.ids, counted.p, 50), by_hand(sequences)
    assert len(table) == len(expected) - 1
    n_elsewhere = 0
    for context, (p, _) in expected.items():
        if not context:
            continue
        got = table.find(context)
        assert got is not None
        # A probability is rounded to 1/127; tokens as likely as each other may stand for another.
        assert got[1] == pytest.approx(max(p.values()), abs=0.004)
        assert p[got[0]] == pytest.approx(max(p.values()), abs=1e-9)
        n_elsewhere += not any(
            (*context, got[0]) == tuple(s.tokens[i - len(context) : i + 1].tolist())
            for s in sequences
            for i in range(len(context), len(s.tokens))
        )
    assert n_elsewhere > 10, "no context was found whose likeliest token never followed it"


def test_an_omitted_context_predicts_nearly_what_a_shorter_one_does() -> None:
    sequences = texts(2, n_texts=60, n_kinds=30)
    ngrams = count_ngrams(sequences, 10**9)
    table, expected = NgramTable(ngrams.keys, ngrams.ids, ngrams.p, 30), by_hand(sequences)
    kept = set(ngrams.keys.tolist())
    n_out = 0
    for context, (p, _) in expected.items():
        if len(context) < 2 or context_keys(context[::-1])[-1] in kept:
            continue
        n_out += 1
        best = max(p.values())
        got = table.find(context)
        assert got is not None
        assert best < 0.3 + 1e-9 or abs(best - got[1]) < 0.21
    assert 100 < n_out < len(expected) - 100


def test_the_most_frequent_contexts_stay() -> None:
    sequences = texts(3, n_texts=30, n_kinds=20)
    every, few = count_ngrams(sequences, 10**9), count_ngrams(sequences, 25)
    assert len(few.keys) == 25 < len(every.keys)
    assert set(few.keys.tolist()) < set(every.keys.tolist())
    n = {context_keys(c[::-1])[-1]: total for c, (_, total) in by_hand(sequences).items() if c}
    least = min(n[key] for key in few.keys.tolist())
    dropped = set(every.keys.tolist()) - set(few.keys.tolist())
    assert max(n[key] for key in dropped) <= least
    assert len(count_ngrams(sequences, 0).keys) == 0
