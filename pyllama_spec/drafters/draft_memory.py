"""A draft in progress, the interface of the memories that compute its tokens, and their states."""

from __future__ import annotations

import contextlib
import json
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import Committed, DraftRequest
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.framing import HEADER_BYTES, seal, unseal
from pyllama_spec.engine.model import Model
from pyllama_spec.engine.sampler import Distribution
from pyllama_spec.errors import ArgumentError, EngineError

Rows = npt.NDArray[np.float32]


@dataclass(slots=True)
class Choice:
    """The draft model's candidates for one position."""

    ids: Sequence[int]  # the likeliest tokens, as ids of the target, likeliest first
    p: Sequence[float]  # their probabilities in the model's own distribution
    row: Rows  # float32, the row that the model is fed beside the token, if it reads one
    # If the token was drawn at random, its distribution. `p` is then the probability of the
    # likeliest token, which does not depend on the drawn one.
    drawn_from: Distribution | None = None
    # The output of the draft's confidence head, which replaces the probability.
    confidence: float | None = None

    def best(self) -> tuple[int, float]:
        """The token to draft, and how sure the draft is of it."""
        p = self.p[0] if self.confidence is None else self.confidence
        if math.isnan(p) or math.isnan(self.p[0]):
            raise EngineError(
                "the draft computed NaN: the target's rows or its own weights are NaN"
            )
        return self.ids[0], p


@dataclass(slots=True)
class Chain:
    """A draft in progress."""

    request: DraftRequest  # what was asked for
    choice: Choice | None = None  # the candidates for the next token; None if there are none
    # ids, p: the drafted tokens, and what Draft has beside each.
    ids: list[int] = field(default_factory=list)
    p: list[float] = field(default_factory=list)
    # Beside each drafted token its distribution, if it was drawn.
    drawn_from: list[Distribution] = field(default_factory=list)
    # Beside each drafted token the row that it is fed with, for heads that read them again.
    rows: list[Rows] = field(default_factory=list)

    @property
    def seq(self) -> int:
        """The sequence's id."""
        return self.request.seq


class DraftMemory(ABC):
    """What a draft's context was fed, by sequence, and how it is asked for tokens.

    Attributes:
        context: the draft's context.
        n_calls: the number of decodes, for callers that count the cost.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.n_calls = 0

    def decode(self, batch: Batch) -> None:
        """Runs a decode of the draft."""
        self.n_calls += 1
        self.context.decode(batch)

    @abstractmethod
    def tokens(self, seq: int) -> list[int]:
        """The tokens of a sequence."""

    # ---- drafting

    @abstractmethod
    def ask(self, chains: Sequence[Chain], n: int) -> None:
        """Feeds what was committed; sets the first choice of chains of at most n tokens."""

    @abstractmethod
    def step(self, chains: Sequence[Chain]) -> None:
        """Feeds each chain's newest token; sets its next choice."""

    # ---- the text: see the methods of Drafter

    @abstractmethod
    def commit(self, done: Sequence[Committed]) -> None:
        """Records tokens, and the target's rows for drafts that read them."""

    @abstractmethod
    def truncate(self, seq: int, n_keep: int) -> None:
        """Keeps the part of the first n_keep tokens."""

    @abstractmethod
    def copy(self, seq: int, to: int) -> None:
        """Starts `to` as a copy of `seq`."""

    def n_unread(self, seq: int) -> int:
        """How many tokens of a sequence the next draft has to read first."""
        return 0

    def resume_at(self, seq: int, n_keep: int) -> int:
        """How many of the first n_keep tokens the target may keep."""
        return n_keep

    @abstractmethod
    def save(self, seq: int, draft: str) -> bytes:
        """The state of a sequence; `draft` is the fingerprint of the draft's file."""

    @abstractmethod
    def restore(self, seq: int, data: bytes, draft: str) -> int:
        """Restores a state of save() of the same draft; returns the number of tokens."""


_Item = TypeVar("_Item", DraftRequest, Chain)


def passed(
    items: Iterable[_Item], can_go_on: Callable[[_Item], bool], errors: dict[int, Exception]
) -> list[_Item]:
    """The sequences that can continue; records an exception for its sequence alone."""
    out: list[_Item] = []
    for item in items:
        try:
            if can_go_on(item):
                out.append(item)
        except Exception as error:  # noqa: BLE001, PERF203 - such as NaN
            errors[item.seq] = error
    return out


# The number of a sequence, how many of its tokens are in a batch, and the row of the last one if
# none is left.
Part = tuple[int, int, int | None]


def fill(batch: Batch, left: dict[int, int], put: Callable[[int, int, bool], None]) -> list[Part]:
    """Fills an emptied batch with the waiting tokens of sequences, in order.

    `left` has the number of tokens that wait, by sequence, and is updated. put() adds the next n
    tokens of a sequence, and is given whether they are the last.
    """
    batch.clear()
    parts: list[Part] = []
    while left and batch.n_tokens < batch.n_max:
        seq, n_left = next(iter(left.items()))
        n = min(n_left, batch.n_max - batch.n_tokens)
        is_end = n == n_left
        put(seq, n, is_end)
        if is_end:
            del left[seq]
        else:
            left[seq] = n_left - n
        parts.append((seq, n, batch.n_tokens - 1 if is_end else None))
    return parts


# ---- saved states: a header, arrays and the part of the engine

_MAGIC, _VERSION = b"PLSD", 4
_LENGTH = struct.Struct("<I")  # of the JSON text
# Samples of a draft's file, which distinguish it from another one of the same sizes.
_N_SAMPLES, _SAMPLE_BYTES = 16, 4096


def pack(facts: Mapping[str, object], parts: Sequence[bytes], draft: str = "") -> bytes:
    """Packs facts and parts into one block of bytes; `draft` is the fingerprint of the draft."""
    header = {**facts, "draft": draft, "parts": [len(part) for part in parts]}
    text = json.dumps(header).encode()
    whole = bytearray(HEADER_BYTES)
    for part in (_LENGTH.pack(len(text)), text, *parts):
        whole += part
    return seal(whole, _MAGIC, _VERSION)


def unpack(data: bytes, draft: str = "") -> tuple[dict[str, Any], list[bytes]]:
    """Unpacks the facts and parts of pack() with the same draft."""
    body = bytes(unseal(data, _MAGIC, _VERSION, "a drafter's state"))
    at = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    facts = json.loads(body[_LENGTH.size : at])
    if facts["draft"] != draft:
        raise ArgumentError(
            "state", problem="was saved with another draft", remedy="read the text again"
        )
    parts = []
    for size in facts.pop("parts"):
        parts.append(body[at : at + size])
        at += size
    return facts, parts


def fingerprint(model: Model, *settings: object) -> str:
    """A digest of a draft's sizes, samples of its file, and settings."""
    import hashlib  # loads a library of its own

    about = repr((sorted(model.metadata.items()), model.info, *settings))
    digest = hashlib.sha256(about.encode())
    with contextlib.suppress(OSError), model.path.open("rb") as file:
        size = model.path.stat().st_size
        for i in range(_N_SAMPLES):
            file.seek(size * i // _N_SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
