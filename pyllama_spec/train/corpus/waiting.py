"""Stores finished sequences that wait for an earlier one, so that an interrupt loses none.

A corpus is judged and stored in the order of its tasks, so that its text does not depend on
interruptions. This module keeps finished sequences that are not stored yet.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.files import open_plain
from pyllama_spec.train.corpus.generate import Generated, TargetFeatures
from pyllama_spec.train.files import write_atomic

_FILE = "waiting.npz"
# One row of the table: task, tokens, prompt, user's turn, how it ended, whether it has features.
_COLUMNS = 6
_FINISHES = ("stop", "length", "loop", "user")


def save_waiting(
    folder: Path, identity: str, waiting: Collection[Generated], *, with_features: bool
) -> None:
    """Replaces the stored sequences.

    Args:
        folder: the folder of the corpus.
        identity: a hash of everything that determines the text.
        waiting: the sequences.
        with_features: whether to store their features too, which may be hundreds of MB; otherwise
            they are computed again on demand.

    Raises:
        TrainError: the disk is full; the stored sequences stay.

    """
    path = folder / _FILE
    if not waiting:
        path.unlink(missing_ok=True)
        return
    table = np.zeros((len(waiting), _COLUMNS), np.int64)
    parts: dict[str, npt.NDArray[Any]] = {"table": table, "identity": np.array(identity)}
    for i, one in enumerate(waiting):
        features = one.features if with_features else None
        table[i] = (
            one.number, len(one.tokens), one.n_prompt, one.n_user,
            _FINISHES.index(one.finish), features is not None,
        )  # fmt: skip
        if features is not None:
            parts[f"rows_{i}"] = features.rows
            parts[f"top_ids_{i}"] = features.top_ids
            parts[f"top_log_p_{i}"] = features.top_log_p
    parts["tokens"] = np.concatenate([np.array(one.tokens, np.uint32) for one in waiting])
    parts["temperature"] = np.array([one.temperature for one in waiting])
    write_atomic(path, lambda file: np.savez(file, **parts))  # type: ignore[arg-type]


def load_waiting(folder: Path, identity: str) -> list[Generated]:
    """Loads the stored sequences; none if they belong to another text or are unreadable."""
    path = folder / _FILE
    if not path.exists():
        return []
    try:
        with open_plain(path) as file, np.load(file, allow_pickle=False) as parts:
            return _read(parts) if str(parts["identity"]) == identity else []
    except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile):
        return []


def _read(parts: Any) -> list[Generated]:
    tokens, temperatures = parts["tokens"].tolist(), parts["temperature"].tolist()
    table = parts["table"].tolist()
    ends = np.cumsum([row[1] for row in table]).tolist()
    return [
        Generated(
            number, tokens[end - n : end], n_prompt, n_user, temperatures[i], _FINISHES[finish],
            _features(parts, i) if has_features else None,
        )
        for i, ((number, n, n_prompt, n_user, finish, has_features), end) in enumerate(
            zip(table, ends, strict=True)
        )
    ]  # fmt: skip


def _features(parts: Any, i: int) -> TargetFeatures:
    return TargetFeatures(parts[f"rows_{i}"], parts[f"top_ids_{i}"], parts[f"top_log_p_{i}"])
