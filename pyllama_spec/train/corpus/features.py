"""Features of the corpus: the target's layer inputs and likeliest next tokens, per token.

They are written while the text is generated, or in a pass over it here. Either way they come from
the engine and the very file that will decode: a quantised target's rows are not the original's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import n_common_ids
from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.engine.model import HEAD_ROWS
from pyllama_spec.train.corpus.generate import (
    TargetFeatures,
    empty_features,
    join_rows,
    set_top,
    top_k_of,
)
from pyllama_spec.train.corpus.store import (
    INDEX,
    Corpus,
    CorpusStore,
    TextSequence,
    check_same,
    shard_path,
)
from pyllama_spec.train.files import (
    read_array,
    read_json,
    write_array,
    write_json,
)
from pyllama_spec.train.progress import interruptions

Features = Callable[[int], TargetFeatures]
"""Gives the features of a sequence by its index; nobody writes to the arrays."""

_PARTS = ("rows", "top_ids", "top_log_p")


def feature_folder(work: Path, layers: Sequence[int]) -> Path:
    """The folder of the features of some layers; other drafts' features have other folders."""
    return work / "-".join(["features", *("head" if k == HEAD_ROWS else str(k) for k in layers)])


class FeatureStore:
    """The features of whole shards.

    `identity` is the corpus's, with the layers and the number of likeliest tokens.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        index = read_json(folder / INDEX)
        self._index: dict[str, Any] = index or {"identity": identity, "shards": {}}
        check_same(self._index["identity"], identity, folder)
        self._open: dict[int, list[npt.NDArray[Any]]] = {}

    @property
    def n_bytes(self) -> int:
        """The bytes of all features on disk."""
        return sum(int(shard["bytes"]) for shard in self._index["shards"].values())

    def has(self, shard: int, sha256: str) -> bool:
        """Whether it has the features of a shard with these tokens."""
        entry = self._index["shards"].get(str(shard))
        return entry is not None and entry["sha256"] == sha256

    def put(self, shard: int, sha256: str, features: Sequence[TargetFeatures]) -> None:
        """Stores the features of a whole shard, and replaces earlier ones."""
        arrays = [np.concatenate([getattr(f, part) for f in features]) for part in _PARTS]
        n_bytes = sum(array.nbytes for array in arrays)
        for part, array in zip(_PARTS, arrays, strict=True):
            write_array(shard_path(self.folder, shard, part), array)
        shards = {**self._index["shards"], str(shard): {"bytes": n_bytes, "sha256": sha256}}
        index = {**self._index, "shards": shards}
        write_json(self.folder / INDEX, index)
        self._index = index

    def get(self, shard: int, start: int, end: int) -> TargetFeatures:
        """The features of tokens start .. end - 1 of a shard: views of its files."""
        if shard not in self._open:
            self._open[shard] = [
                read_array(shard_path(self.folder, shard, p), mapped=True) for p in _PARTS
            ]
        rows, ids, log_p = self._open[shard]
        return TargetFeatures(rows[start:end], ids[start:end], log_p[start:end])


_BATCH = 512


class LiveFeatures:
    """Computes features: decodes the text with the target, one sequence at a time."""

    def __init__(
        self,
        model: Model,
        target_layers: tuple[int, ...],
        n_top: int,
        n_ctx: int,
        n_threads: int | None,
        *,
        reuses: bool = False,
    ) -> None:
        self._reuses, self._read_before = reuses, (np.empty(0, np.uint32), empty_features(0, 0, 0))
        self._layers, self._n_top = target_layers, n_top
        self._width = len(target_layers) * model.info.n_embd
        self._context = Context(
            model, n_ctx=max(n_ctx, _BATCH), n_seq_max=1, n_batch=_BATCH, n_ubatch=_BATCH,
            n_threads=n_threads, flash_attn=True, target_layers=target_layers,
        )  # fmt: skip
        self._batch = Batch(_BATCH)

    def of(self, sequence: TextSequence) -> TargetFeatures:
        """The features of one sequence, computed batch by batch."""
        n = len(sequence.tokens)
        out = empty_features(n, self._width, self._n_top)
        wanted = wanted_rows(sequence.mask)
        n_read = self._go_back(sequence.tokens, wanted)
        if n_read:
            out.rows[:n_read] = self._read_before[1].rows[:n_read]
        for first in range(n_read, n, _BATCH):
            self._read(sequence.tokens[first : first + _BATCH].tolist(), first, wanted, out)
        if self._reuses:
            self._read_before = sequence.tokens, out
        return out

    def _go_back(self, tokens: npt.NDArray[np.uint32], wanted: npt.NDArray[np.bool_]) -> int:
        """Rolls back to the prefix shared with the sequence before; returns its length."""
        memory, before = self._context.memory, self._read_before[0]
        n = min(len(before), len(tokens) - 1)
        if np.any(wanted[:n]):
            n = int(np.argmax(wanted))
        n = n_common_ids(before[:n], tokens[:n])
        # A window may have lost what stands before it.
        if n > 0 and memory.rollback(0, n) and memory.positions(0)[0] == 0:
            return n
        memory.clear()
        return 0

    def _read(
        self, tokens: list[int], first: int, wanted: npt.NDArray[np.bool_], out: TargetFeatures
    ) -> None:
        batch, at, end = self._batch, 0, first + len(tokens)
        batch.clear()
        for output, run in groupby(wanted[first:end].tolist()):
            m = len(list(run))
            batch.extend(tokens[at : at + m], first + at, output_all=output)
            at += m
        self._context.decode(batch)
        out.rows[first:end] = join_rows(
            [self._context.layer_input(layer) for layer in self._layers]
        )
        for i in np.flatnonzero(wanted[first:end]).tolist():
            set_top(out, first + i, top_k_of(self._context.logits(i), self._n_top))

    def close(self) -> None:
        """Frees the context."""
        self._context.close()


def wanted_rows(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The rows whose next-token distribution is needed: before each token to learn."""
    wanted = np.zeros(len(mask), np.bool_)
    wanted[:-1] = mask[1:]
    return wanted


class FeatureSource:
    """The stored features of a corpus by sequence."""

    def __init__(self, corpus: Corpus, store: FeatureStore) -> None:
        self._corpus, self._store = corpus, store
        self._starts: dict[int, list[int]] = {}
        for (shard, _), sequence in zip(corpus.places, corpus.sequences, strict=True):
            ends = self._starts.setdefault(shard, [0])
            ends.append(ends[-1] + len(sequence.tokens))

    def get(self, i: int) -> TargetFeatures:
        """The features of sequence i of the corpus; do not write to the arrays."""
        shard, place = self._corpus.places[i]
        start, end = self._starts[shard][place : place + 2]
        return self._store.get(shard, start, end)


def store_features(
    texts: CorpusStore,
    n_shards: int,
    store: FeatureStore,
    make_live: Callable[[], LiveFeatures],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Computes the missing features of shards."""
    missing = [i for i in range(n_shards) if not store.has(i, texts.sha256(i))]
    total, done = sum(texts.n_tokens(shard) for shard in missing), 0
    if not total:
        return
    with closing(make_live()) as live, interruptions() as interrupted:
        for shard in missing:
            features: list[TargetFeatures] = []
            for sequence in texts.read(shard):
                features.append(live.of(sequence))
                done += len(sequence.tokens)
                on_progress(done, total)
                if interrupted.is_set():
                    raise KeyboardInterrupt
            store.put(shard, texts.sha256(shard), features)
