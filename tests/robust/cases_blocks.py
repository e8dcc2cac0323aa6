"""Batches that are not blocks and no rows, given to the context of a DFlash draft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec.engine import Batch
from pyllama_spec.errors import ArgumentError, PyllamaSpecError
from tests.dflash_tools import Bench
from tests.models import model_path

from .harness import CaseList

CASES = CaseList()

MASK = 300
# id, position, sequence, whether an output is asked for
Slot = tuple[int, int, int, bool]
_VARIANTS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "dflash2": {"variant": "dflash2"},
    "dspark": {"variant": "dspark"},
}


def bench(kind: str = "dflash", **params: Any) -> Bench:
    """A draft of 6 slots with nine rows in sequence 0."""
    found = Bench(model_path("dflash", **_VARIANTS[kind]), **params)
    found.inject(np.zeros((9, found.n_features), np.float32), 0)
    return found


def block(n: int, position: int = 9, seq: int = 0, *, is_behind: bool = False) -> list[Slot]:
    """A sound block."""
    return [(MASK if i else 7, position + i, seq, i > 0 or is_behind) for i in range(n)]


def _decode(slots: list[Slot], kind: str = "dflash", **params: Any) -> Callable[[Path], None]:
    def run(_: Path) -> None:
        batch = Batch(max(len(slots), 1))
        for token, position, seq, output in slots:
            batch.add(token, position, seq, output=output)
        bench(kind, **{"n_ctx": 256, "n_seq_max": 4, **params}).context.decode(batch)

    return run


def _changed(i: int, slot: Slot, n: int = 4) -> list[Slot]:
    slots = block(n)
    slots[i] = slot
    return slots


CASES.table(
    "block",
    {
        **{f"sound_{kind}": (_decode(block(6, is_behind=kind == "dspark"), kind), None, "")
           for kind in _VARIANTS},
        "sound_of_two": (_decode([*block(4), *block(4, 0, 1)]), None, ""),
        **{f"too_long_{kind}": (
            _decode(block(7, is_behind=kind == "dspark"), kind), ArgumentError, "7 slots",
        ) for kind in _VARIANTS},
        "unequal_shorter": (_decode([*block(4), *block(3, 0, 1)]), ArgumentError, "shorter"),
        "unequal_longer": (
            _decode([*block(3), *block(4, 0, 1)]), ArgumentError, "another block of sequence 1",
        ),
        "twice_one_sequence": (
            _decode([*block(3), *block(3, 0, 1), *block(3, 12)]), ArgumentError, "another block",
        ),
        "mixed": (
            _decode([*block(3)[:2], *block(3, 0, 1)[:2], *block(3)[2:]]), ArgumentError, "",
        ),
        "a_gap": (_decode(_changed(2, (MASK, 12, 0, True))), ArgumentError, "follow"),
        "backwards": (_decode(block(4)[::-1]), ArgumentError, ""),
        "at_a_row": (_decode(block(4, 8)), ArgumentError, "position"),
        "after_a_gap": (_decode(block(4, 20)), PyllamaSpecError, "position"),
        "output_of_the_first": (_decode(_changed(0, (7, 9, 0, True))), ArgumentError, "nothing"),
        "no_output": (_decode(_changed(2, (MASK, 11, 0, False))), ArgumentError, "no output"),
        "no_output_behind": (_decode(block(4), "dspark"), ArgumentError, "no output"),
        **{
            f"one_slot_{kind}": (_decode(block(1), kind), ArgumentError, "")
            for kind in _VARIANTS
        },
        "id_past_the_last": (_decode(_changed(0, (320, 9, 0, False))), ArgumentError, "320"),
        "id_negative": (_decode(_changed(1, (-1, 10, 0, True))), ArgumentError, "-1"),
        "sequence_past_the_last": (_decode(block(3, 0, 4)), ArgumentError, "sequence 4"),
        "position_negative": (_decode(block(3, -1)), ArgumentError, "-1"),
    },
)  # fmt: skip


@CASES.add(ArgumentError, "one sequence")
def a_slot_of_two_sequences(_: Path) -> None:
    batch = Batch(4)
    batch.add(7, 9, (0, 1))
    batch.add(MASK, 10, (0, 1), output=True)
    bench(n_seq_max=2, kv_unified=True).context.decode(batch)


@CASES.add(ArgumentError, "rows of the target alone, or ids alone")
def ids_and_rows(_: Path) -> None:
    found = bench()
    batch = found.rows_batch(4)
    batch.extend([7, 8], 9, rows=[np.zeros((2, found.n_features), np.float32)])
    found.context.decode(batch)


@CASES.add(ArgumentError, "output")
def rows_with_an_output(_: Path) -> None:
    found = bench()
    batch = found.rows_batch(4)
    zeros = np.zeros((2, found.n_features), np.float32)
    batch.extend(None, 9, rows=[zeros], output_last=True)
    found.context.decode(batch)


@CASES.add(ArgumentError, "n_ubatch = 16")
def more_rows_than_are_computed_at_once(_: Path) -> None:
    found = bench(n_ubatch=16)
    batch = found.rows_batch(20)
    batch.extend(None, 9, rows=[np.zeros((20, found.n_features), np.float32)])
    found.context.decode(batch)


@CASES.add(ArgumentError, "numbers")
def rows_of_another_width(_: Path) -> None:
    batch = Batch(2, n_row=64)
    batch.logits = False
    batch.extend(None, 9, rows=[np.zeros((2, 64), np.float32)])
    bench().context.decode(batch)


@CASES.add(PyllamaSpecError, "encoder")
def rows_to_an_encoder(_: Path) -> None:
    found = bench()
    batch = found.rows_batch(2)
    batch.extend(None, 9, rows=[np.zeros((2, found.n_features), np.float32)])
    found.context.decode(batch, encode=True)


@CASES.add(ArgumentError, "no output")
def candidates_of_the_first_slot(_: Path) -> None:
    found = bench()
    found.guess(7, 4, 9)
    found.context.draft_candidates(0)


@CASES.add(ArgumentError, "outside the last batch")
def candidates_past_the_last(_: Path) -> None:
    found = bench()
    found.guess(7, 4, 9)
    found.context.draft_candidates(5)


@CASES.add(ArgumentError, "no logits")
def logits_that_nobody_asked_for(_: Path) -> None:
    found = bench()
    found.guess(7, 4, 9, has_logits=False)
    found.context.logits(1)


@CASES.add(None)
def a_choice_that_was_none(_: Path) -> None:
    """The previously chosen token may be any token, or none."""
    found = bench("dflash2")
    found.guess(7, 4, 9)
    for given in (-1, 0, 319, 320, 2**31 - 1, -(2**31)):
        assert found.context.draft_candidates(2, given)[1][0] > 0


@CASES.add(None)
def rows_of_nan(_: Path) -> None:
    """NaN rows give NaN results, which the drafter detects."""
    for kind in ("dflash", "dspark"):
        found = bench(kind)
        found.inject(np.full((1, found.n_features), np.nan, np.float32), 9)
        assert np.isnan(found.guess(7, 4, 10).probabilities).all()


@CASES.add(PyllamaSpecError, "NaN")
def rows_of_nan_for_a_selector(_: Path) -> None:
    found = bench("dflash2")
    found.inject(np.full((1, found.n_features), np.nan, np.float32), 9)
    found.guess(7, 4, 10)
