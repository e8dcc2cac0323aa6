"""Stores features on disk beside the corpus's shards, within a size limit.

Each shard has three arrays, in the order of its tokens (dtypes as in generate.TargetFeatures):
rows, top_ids and top_log_p. A sequence's last token may have none, since nothing follows it. The
hash of its tokens identifies a shard: an interruption may leave features of a shard that the corpus
never got. Features of an interrupted shard are in a separate file until it is whole.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine.model import HEAD_ROWS
from pyllama_spec.train.corpus.generate import TargetFeatures
from pyllama_spec.train.corpus.store import check_same
from pyllama_spec.train.files import (
    read_array,
    read_json,
    write_array,
    write_atomic,
    write_json,
)

INDEX = "index.json"
_BEGUN = "begun.npz"
_PARTS = ("rows", "top_ids", "top_log_p")


def feature_folder(work: Path, layers: Sequence[int]) -> Path:
    """The folder of the features of some layers; other drafts' features have other folders."""
    first = work / "features"
    index = read_json(first / INDEX)
    if index is None or index["identity"].get("target_layers") == list(layers):
        return first
    return work / "-".join(["features", *("head" if k == HEAD_ROWS else str(k) for k in layers)])


class FeatureStore:
    """The features of whole shards.

    Args:
        folder: the folder of the features; created if missing.
        identity: the corpus's identity, with the layers and the number of likeliest tokens.
        token_bytes: bytes of the features of one token.
        max_bytes: the most bytes of all features.
    """

    def __init__(
        self, folder: Path, identity: dict[str, Any], token_bytes: int, max_bytes: float
    ) -> None:
        self.folder, self._token_bytes, self._max_bytes = folder, token_bytes, max_bytes
        index = read_json(folder / INDEX)
        self._index: dict[str, Any] = index or {"identity": identity, "shards": {}}
        check_same(self._index["identity"], identity, folder)
        self._open: dict[int, list[npt.NDArray[Any]]] = {}

    @property
    def token_bytes(self) -> int:
        """The bytes of the features of one token."""
        return self._token_bytes

    @property
    def n_bytes(self) -> int:
        """The bytes of all features on disk."""
        return sum(int(shard["bytes"]) for shard in self._index["shards"].values())

    def has(self, shard: int, sha256: str) -> bool:
        """Whether it has the features of a shard with these tokens."""
        entry = self._index["shards"].get(str(shard))
        return entry is not None and entry["sha256"] == sha256

    def has_room(self, n_tokens: int) -> bool:
        """Whether the features of n tokens still fit the limit."""
        return self.n_bytes + n_tokens * self._token_bytes <= self._max_bytes

    def put(self, shard: int, sha256: str, features: Sequence[TargetFeatures]) -> None:
        """Stores the features of a whole shard, and replaces earlier ones."""
        arrays = [np.concatenate([getattr(f, part) for f in features]) for part in _PARTS]
        n_bytes = sum(array.nbytes for array in arrays)
        for part, array in zip(_PARTS, arrays, strict=True):
            write_array(self._path(shard, part), array)
        shards = {**self._index["shards"], str(shard): {"bytes": n_bytes, "sha256": sha256}}
        index = {**self._index, "shards": shards}
        write_json(self.folder / INDEX, index)
        self._index = index
        (self.folder / _BEGUN).unlink(missing_ok=True)

    def put_begun(self, sha256: str, features: Sequence[TargetFeatures]) -> None:
        """Stores the features of a shard's first sequences, and replaces earlier ones."""
        if not features:
            return
        arrays: dict[str, Any] = {
            part: np.concatenate([getattr(f, part) for f in features]) for part in _PARTS
        }
        arrays["lengths"] = np.array([len(f.rows) for f in features])
        arrays["sha256"] = np.array(sha256)
        write_atomic(self.folder / _BEGUN, lambda file: np.savez(file, **arrays))

    def begun(self, sha256: str) -> list[TargetFeatures]:
        """Loads the features of put_begun() for a shard with these tokens; none if unreadable."""
        try:
            with np.load(self.folder / _BEGUN, allow_pickle=False) as kept:
                if str(kept["sha256"]) != sha256:
                    return []
                ends = np.cumsum(kept["lengths"])[:-1]
                parts = [np.split(kept[part], ends) for part in _PARTS]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return []
        return [TargetFeatures(*arrays) for arrays in zip(*parts, strict=True)]

    def get(self, shard: int, start: int, end: int) -> TargetFeatures:
        """The features of tokens start .. end - 1 of a shard: views of its files."""
        if shard not in self._open:
            self._open[shard] = [read_array(self._path(shard, p), mapped=True) for p in _PARTS]
        rows, ids, log_p = self._open[shard]
        return TargetFeatures(rows[start:end], ids[start:end], log_p[start:end])

    def _path(self, shard: int, part: str) -> Path:
        return self.folder / f"shard-{shard:05d}.{part}.npy"
