"""Stores the corpus on disk: append-only shards of token ids, and an index.

    index.json                  the origin of the text, the shards, where to continue
    shard-00000.tokens.npy      [n] uint32
    shard-00000.mask.npy        [n] uint8, 1 where a token belongs to an answer
    shard-00000.table.npy       [n_sequences, 3] int64: first token, task number, is greedy
    shard-00000.rows.npy ...    features, where they fit the disk: see features.py

The index is written last and atomically: files that it does not name do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.train.errors import CheckpointError
from pyllama_spec.train.files import read_array, read_json, write_array, write_json

INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class TextSequence:
    """One sequence of the corpus."""

    number: int  # the number of its task
    tokens: npt.NDArray[np.uint32]  # [n] uint32
    mask: npt.NDArray[np.bool_]  # [n] bool, True for tokens of the answer
    is_greedy: bool  # whether the answer was generated at temperature 0

    @property
    def n_answer(self) -> int:
        """The number of tokens to learn."""
        return int(self.mask.sum())


def shard_path(folder: Path, shard: int, part: str) -> Path:
    """The file of one part of a shard."""
    return folder / f"shard-{shard:05d}.{part}.npy"


class CorpusStore:
    """The shards of a folder."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        index = read_json(folder / INDEX)
        if index is None:
            index = {"identity": identity, "next_number": 0, "shards": [], "dropped": {}}
        check_same(index["identity"], identity, folder)
        self._index: dict[str, Any] = index

    @property
    def next_number(self) -> int:
        """The number of the next task."""
        return int(self._index["next_number"])

    @property
    def dropped(self) -> dict[str, int]:
        """The number of dropped sequences by reason."""
        return dict(self._index["dropped"])

    @property
    def n_shards(self) -> int:
        """The number of shards."""
        return len(self._index["shards"])

    @property
    def n_answer(self) -> int:
        """The answer tokens of all shards."""
        return sum(shard["n_answer"] for shard in self._index["shards"])

    def sha256(self, shard: int) -> str:
        """The hash of a shard's tokens."""
        return str(self._index["shards"][shard]["sha256"])

    def n_tokens(self, shard: int) -> int:
        """The number of a shard's tokens."""
        return int(self._index["shards"][shard]["n_tokens"])

    def append(
        self, sequences: Sequence[TextSequence], next_number: int, dropped: dict[str, int]
    ) -> None:
        """Appends a shard, and records the next task. Without sequences it only records that."""
        index = {**self._index, "next_number": next_number, "dropped": dict(dropped)}
        if sequences:
            shard = self.n_shards
            tokens = np.concatenate([s.tokens for s in sequences]).astype(np.uint32)
            mask = np.concatenate([s.mask for s in sequences]).astype(np.uint8)
            starts = np.cumsum([0, *(len(s.tokens) for s in sequences[:-1])])
            table = [(a, s.number, s.is_greedy) for a, s in zip(starts, sequences, strict=True)]
            write_array(shard_path(self.folder, shard, "tokens"), tokens)
            write_array(shard_path(self.folder, shard, "mask"), mask)
            write_array(shard_path(self.folder, shard, "table"), np.array(table, dtype=np.int64))
            entry = {
                "n_sequences": len(sequences), "n_tokens": len(tokens),
                "n_answer": int(mask.sum()), "sha256": hash_tokens(sequences),
            }  # fmt: skip
            index["shards"] = [*self._index["shards"], entry]
        write_json(self.folder / INDEX, index)
        self._index = index

    def read(self, shard: int) -> list[TextSequence]:
        """The sequences of a shard."""
        tokens = read_array(shard_path(self.folder, shard, "tokens"))
        mask = read_array(shard_path(self.folder, shard, "mask")).astype(np.bool_)
        table = read_array(shard_path(self.folder, shard, "table"))
        ends = [*table[1:, 0], len(tokens)]
        return [
            TextSequence(int(number), tokens[start:end], mask[start:end], bool(is_greedy))
            for (start, number, is_greedy), end in zip(table.tolist(), ends, strict=True)
        ]


def hash_tokens(sequences: Sequence[TextSequence]) -> str:
    """SHA-256 of the ids and masks of some sequences, in hexadecimal."""
    digest = hashlib.sha256()
    for sequence in sequences:
        digest.update(sequence.tokens.astype("<u4").tobytes())
        digest.update(sequence.mask.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Corpus:
    """The sequences that a run trains on, in order."""

    sequences: list[TextSequence]  # the shortest prefix of the store with enough answer tokens
    places: list[tuple[int, int]]  # the shard of each sequence, and its index in the shard
    sha256: str  # the SHA-256 of all token ids and masks

    @property
    def n_answer(self) -> int:
        """The number of answer tokens."""
        return sum(s.n_answer for s in self.sequences)


def load_corpus(store: CorpusStore, n_answer: int) -> Corpus:
    """Loads a store's first n_answer answer tokens, or all."""
    sequences: list[TextSequence] = []
    places: list[tuple[int, int]] = []
    n_loaded = 0
    for shard in range(store.n_shards):
        for i, sequence in enumerate(store.read(shard)):
            if n_loaded >= n_answer:
                break
            sequences.append(sequence)
            places.append((shard, i))
            n_loaded += sequence.n_answer
    return Corpus(sequences, places, hash_tokens(sequences))


def check_same(
    present: dict[str, Any], wanted: dict[str, Any], where: Path, remedy: str = ""
) -> None:
    """Raises unless two sets of facts are equal."""
    for name in sorted({*present, *wanted}):
        a, b = present.get(name), wanted.get(name)
        if a != b:
            raise CheckpointError(
                f"{where} was made with {name}={a!r}, and this run has {b!r}; give the same as "
                f"before, or another --work folder{remedy}"
            )
