"""Helpers for tests of EAGLE-3 drafts: heads with their targets, cold drafts, wrong rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyllama_spec.drafters import (
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    Eagle3,
    TokenPrior,
)
from pyllama_spec.drafters.ngram_table import P_SCALE, NgramTable, context_keys
from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests import tampering
from tests.models import model_path

# Contexts of an n-gram table, the last token last, each with what follows it and how likely.
Says = Mapping[tuple[int, ...], tuple[int, float]]


def head(kind: str = "eagle3", max_draft: int = 8, **options: Any) -> Eagle3:
    """A drafter with a head built by tests/models/eagle3.py."""
    window = options.pop("n_ctx", None)
    return Eagle3(model_path(kind, **options), max_draft, n_ctx=window)


def ngram_arrays(says: Says) -> dict[str, Any]:
    """The tensors of an n-gram table: what follows each context, and its probability."""
    rows = sorted((context_keys(c[::-1])[-1], token, p) for c, (token, p) in says.items())
    keys = np.array([key for key, _, _ in rows], np.uint32)
    return {
        "ngram.keys": keys.view(np.int32),
        "ngram.ids": np.array([token for _, token, _ in rows], np.int32),
        "ngram.p": np.array([round(p * P_SCALE) for _, _, p in rows], np.int8),
    }


def ngram_table(says: Says) -> NgramTable:
    """A table for the tiny targets."""
    arrays = ngram_arrays(says)
    return NgramTable(
        arrays["ngram.keys"].view(np.uint32), arrays["ngram.ids"], arrays["ngram.p"], 320
    )


def target_context(model: Model, drafter: Drafter, **overrides: Any) -> Context:
    """A small context of the target on one thread that keeps what the drafter reads."""
    values: dict[str, Any] = {"n_ctx": 256, "n_batch": 64, "n_ubatch": 32, "n_threads": 1}
    values |= {"target_layers": drafter.target_layers, **overrides}
    return Context(model, **values)


@dataclass(frozen=True)
class Proposal:
    """A draft, to be compared number by number."""

    ids: tuple[int, ...]
    probabilities: tuple[float, ...]


def proposal(draft: Draft) -> Proposal:
    """The draft's ids and probabilities."""
    assert draft.probabilities is not None
    assert all(np.isfinite(draft.probabilities))
    return Proposal(tuple(draft.ids), tuple(draft.probabilities))


def cold_proposal(model: Model, drafter: Eagle3, text: Sequence[int], n: int = 8) -> Proposal:
    """O3's yardstick: what a head says after a text that it is given in one piece, from nothing."""
    layers = drafter.target_layers
    with (
        target_context(model, drafter, n_ctx=512, n_batch=512, n_ubatch=512) as context,
        Eagle3(drafter.model, drafter.max_draft) as fresh,
    ):
        fresh.attach(context)
        batch = Batch(len(text))
        batch.extend(text[:-1], 0)
        context.decode(batch)
        rows = [context.layer_input(layer) for layer in layers]
        fresh.commit([Committed(0, text, 0, rows)])
        return ask(fresh, 0, text, n)


def ask(
    drafter: Drafter,
    seq: int,
    tokens: Sequence[int],
    n: int = 8,
    prior: TokenPrior | None = None,
) -> Proposal:
    """The proposal of a drafter with these tokens."""
    return proposal(drafter.propose([DraftRequest(seq, list(tokens), n, prior)])[0])


def warm_proposal(loop: SpeculativeLoop, seq: SequenceState, n: int = 8) -> Proposal:
    """The proposal of the loop's drafter now, after all earlier rounds."""
    return ask(loop.drafter._drafter, seq.seq_id, seq.tokens, n)


def damaged_states(drafter: Drafter, at: int) -> tuple[bytes, ...]:
    """States that restore() must refuse: one with a flipped bit, an empty one, and a cut one."""
    state = bytearray(drafter.save(0) or b"")
    state[at] ^= 1
    return bytes(state), b"", b"PLSD"


class Shifted(tampering.Shifted, Eagle3):
    """A head that is given each row one token late."""


class Permuted(tampering.Permuted, Eagle3):
    """A head that is given rows whose numbers are in another order."""


class NotANumber(tampering.NotANumber, Eagle3):
    """A head that is given rows of NaN."""


Tampered = Shifted | Permuted | NotANumber
