"""Helpers for tests of DFlash drafts: drafts with their targets, blocks read slot by slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters import DFlash
from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.engine.model_info import DraftBlock
from pyllama_spec.speculative import SpeculativeLoop
from tests.eagle3_tools import Proposal, ask, target_context
from tests.models import model_path
from tests.oracles import tiny

Rows = npt.NDArray[np.float32]

# The four ways in which a block is read.
KINDS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "dflash2": {"variant": "dflash2"},
    "dspark": {"variant": "dspark"},
    "dspark, no anchor": {"variant": "dspark", "sample_from_anchor": False},
}


@dataclass
class Guessed:
    """The engine's results for one block, read from left to right.

    Attributes:
        logits: [n_guesses, n_vocab], or None if they were not requested.
        ids, probabilities: [n_guesses] the likeliest token after the previous one.
        candidates: [n_guesses] all candidates, with their probabilities.
        confidences: [n_guesses], or None without such a head.

    """

    logits: Rows | None
    ids: list[int]
    probabilities: list[float]
    candidates: list[dict[int, float]]
    confidences: list[float] | None

    def is_equal_to(self, other: Guessed) -> bool:
        """Bit for bit; logits only where both have them."""
        numbers = [(a.ids, a.probabilities, a.candidates, a.confidences) for a in (self, other)]
        has_both = self.logits is not None and other.logits is not None
        return numbers[0] == numbers[1] and (
            not has_both or np.array_equal(self.logits, other.logits)  # type: ignore[arg-type]
        )


def slots(block: DraftBlock, token: int, n_guesses: int) -> list[int]:
    """The ids of a block with so many predicted slots after `token`."""
    return [token] + [block.mask_id] * (n_guesses - block.sample_from_anchor)


def add_block(
    batch: Batch, block: DraftBlock, token: int, n_guesses: int, position: int, seq: int = 0
) -> int:
    """Adds a block to a batch; returns the row of its first guess."""
    first = batch.n_tokens + (not block.sample_from_anchor)
    for i, id_ in enumerate(slots(block, token, n_guesses)):
        batch.add(id_, position + i, seq, output=bool(i) or block.sample_from_anchor)
    return first


def read_block(
    context: Context, row: int, n_guesses: int, token: int, *, has_logits: bool = True
) -> Guessed:
    """The guesses from a row of the last batch on, each given the one before."""
    out = Guessed(None, [], [], [], [])
    assert out.confidences is not None
    for i in range(row, row + n_guesses):
        ids, p, says = context.draft_candidates(i, out.ids[-1] if out.ids else token)
        out.ids.append(ids[0])
        out.probabilities.append(p[0])
        out.candidates.append(dict(zip(ids, p, strict=True)))
        out.confidences += [float(says[0])] if len(says) else []
    out.confidences = out.confidences or None
    if has_logits:
        out.logits = np.stack([context.logits(i).copy() for i in range(row, row + n_guesses)])
    return out


class Bench:
    """A draft beside its target, without a loop: rows go in, blocks come out."""

    def __init__(self, path: Path, target: str = "llama", **params: Any) -> None:
        self.model = Model(path)
        block = self.model.draft_block
        assert block is not None
        self.block = block
        self.n_features = len(self.model.target_layers) * self.model.info.n_embd
        self.beside = Context(tiny(target), n_ctx=64, n_threads=1)
        values = {"n_ctx": 512, "n_batch": 64, "n_ubatch": 64, "n_threads": 1, **params}
        self.context = Context(self.model, target=self.beside, is_window=True, **values)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
        self.beside.close()
        self.model.close()

    def rows_batch(self, n_max: int = 64) -> Batch:
        batch = Batch(n_max, n_row=self.n_features, n_model_row=self.model.info.n_embd_inp)
        batch.logits = False
        return batch

    def inject(self, rows: Rows, first: int) -> None:
        """Feeds rows of the positions first, first + 1, ..."""
        batch = self.rows_batch()
        for i in range(0, len(rows), 64):
            batch.clear()
            batch.extend(None, first + i, 0, rows=[rows[i : i + 64]])
            self.context.decode(batch)

    def guess(
        self, token: int, n_guesses: int, position: int, seq: int = 0, *, has_logits: bool = True
    ) -> Guessed:
        return guess(
            self.context, self.block, token, n_guesses, position, seq, has_logits=has_logits
        )


def guess(
    context: Context,
    block: DraftBlock,
    token: int,
    n_guesses: int,
    position: int,
    seq: int = 0,
    *,
    has_logits: bool = True,
) -> Guessed:
    batch = Batch(block.n_slots)
    batch.logits = has_logits
    row = add_block(batch, block, token, n_guesses, position, seq)
    context.decode(batch)
    found = read_block(context, row, n_guesses, token, has_logits=has_logits)
    context.memory.remove(seq, position)
    return found


def draft(kind: str = "dflash", max_draft: int | None = None, **options: Any) -> DFlash:
    """A drafter with a draft built by tests/models; n_ctx and p_min are the drafter's own."""
    own = {name: options.pop(name) for name in ("n_ctx", "p_min") if name in options}
    return DFlash(model_path(kind, **options), max_draft, **own)


def opened(drafter: DFlash, target: str = "llama", **params: Any) -> SpeculativeLoop:
    return SpeculativeLoop(target_context(tiny(target), drafter, **params), drafter)


def block_of(drafter: DFlash, seq: int, tokens: Sequence[int], n: int) -> tuple[Proposal, Guessed]:
    """The block that a drafter with these tokens proposes, and all numbers of its draft there."""
    proposal = ask(drafter, seq, tokens, n)
    assert drafter.context is not None
    position = len(tokens) - 1
    return proposal, guess(drafter.context, drafter.block, tokens[-1], n, position, seq)
