"""Lets a draft choose among a part of the vocabulary: the output product costs most.

Rows of the output matrix for some thousand ids lie in slots beside the model. At first they are
those of the lowest ids, which in vocabularies of merged bytes are the commonest texts, and of the
control tokens. Every id that a text has, prompt or answer, takes a slot, instead of the one that
was not seen for longest. The target verifies with its whole matrix: a token outside of the slots is
never drafted, and the target's own choice supplies it.

How many tokens that concerns depends on the text: of English and code with a quarter of 151,936
ids some hundredth, of Russian, Japanese and Chinese a sixth to a fifth, since the lowest ids hold
few of theirs. There the whole matrix is cheaper, and the draft uses it from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import Committed
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.model import Model
from pyllama_spec.errors import ArgumentError, ModelLoadError, UnsupportedError

# With a smaller vocabulary a part is not worth the bookkeeping.
LEAST_VOCAB = 65536
# One id of so many has a slot. With fewer a step is little cheaper, and more of a text has none.
SHARE = 4
# Above this share of what the target chose, the tokens that are lost cost more than steps save: of
# a round of an MTP head of a 4B model, that is from 0.12 on, of one of 27B from 0.06 on.
MOST_MISSING = 0.1
# Over how many tokens it is counted.
_N_COUNTED = 256
# Rows that lie side by side are read at once, up to so many.
_N_READ = 2048

Rows = npt.NDArray[np.uint8]  # [n, row_bytes], as stored in the model's file


def rows_of(path: Path, name: str, row_bytes: int) -> Callable[[npt.NDArray[np.int32]], Rows]:
    """Reads rows of the output matrix."""
    from pyllama_spec.gguf.reader import read_table

    begin = read_table(path).tensors[name].offset

    def read(ids: npt.NDArray[np.int32]) -> Rows:
        out = np.empty((len(ids), row_bytes), np.uint8)
        order = np.argsort(ids, kind="stable")
        apart = np.flatnonzero(np.diff(ids[order]) != 1) + 1
        runs = [
            run[i : i + _N_READ]
            for run in np.split(order, apart)
            for i in range(0, len(run), _N_READ)
        ]
        # Read and not mapped: a file that is cut off later must not end the process.
        with path.open("rb") as file:
            for run in runs:
                file.seek(begin + int(ids[run[0]]) * row_bytes)
                data = file.read(len(run) * row_bytes)
                if len(data) != len(run) * row_bytes:
                    raise OSError(f"{path.name} was cut off since it was loaded")
                out[run] = np.frombuffer(data, np.uint8).reshape(len(run), -1)
        return out

    return read


class DraftIds:
    """The ids that have a slot, and whether the draft chooses among them or among all ids.

    Args:
        context: the draft's.
        target: whose tokens are drafted.
        read_rows: see rows_of().
        n_slots: the number of ids with a slot.
        is_fixed: whether the draft chooses among them in every text.
    """

    def __init__(
        self,
        context: Context,
        target: Model,
        read_rows: Callable[[npt.NDArray[np.int32]], Rows],
        n_slots: int,
        is_fixed: bool = False,
    ) -> None:
        self._context, self._read_rows, self._is_fixed = context, read_rows, is_fixed
        self.missing = 0.0
        # A draft may have fewer ids than its target, by some of padding.
        n_vocab = min(context.model.info.n_vocab, target.info.n_vocab)
        self._n_vocab, vocab = n_vocab, target.vocab
        control = [i for i in range(n_vocab) if vocab.is_control(i)][-n_slots // 2 :]
        lowest = np.setdiff1d(np.arange(min(n_vocab, 2 * n_slots)), control)
        first = [*lowest[: n_slots - len(control)][::-1].tolist(), *control]
        # The slot of each id; the one that was not seen for longest comes first.
        self._slots = dict(zip(first, range(n_slots), strict=True))
        self._put(first, list(range(n_slots)))

    @property
    def n_slots(self) -> int:
        """The number of ids with a slot."""
        return len(self._slots)

    def __contains__(self, id_: int) -> bool:
        return id_ in self._slots

    def commit(self, done: Sequence[Committed]) -> str:
        """Assigns slots to committed ids.

        Returns:
            A remark if too many of the target's choices had no slot: then the draft chooses among
            all ids, and this object is of no more use. Never where the number is fixed.

        Raises:
            OSError: the file cannot be read.
            OutOfMemoryError: there is no room for the rows.
        """
        for one in done:
            for id_ in one.tokens[len(one.tokens) - one.n_chosen :]:
                self.missing += ((id_ not in self._slots) - self.missing) / _N_COUNTED
            self.see(one.tokens)
        if self._is_fixed or self.missing <= MOST_MISSING:
            return ""
        return f"a part of them did not have {self.missing:.0%} of what the target chose"

    def see(self, ids: Iterable[int]) -> None:
        """Assigns slots to the ids of a text."""
        slots, new = self._slots, []
        for id_ in dict.fromkeys(ids):
            if not 0 <= id_ < self._n_vocab:
                continue
            slot = slots.pop(id_, None)
            if slot is None:
                new.append(id_)
            else:
                slots[id_] = slot
        if not new:
            return
        new = new[-len(slots) :]
        taken = [slots.pop(next(iter(slots))) for _ in new]
        slots.update(zip(new, taken, strict=True))
        self._put(new, taken)

    def _put(self, ids: list[int], slots: list[int]) -> None:
        chosen = np.array(ids, np.int32)
        self._context.set_draft_rows(np.array(slots, np.int32), chosen, self._read_rows(chosen))


def reduced_output(context: Context, n_slots: int | None, target: Model) -> DraftIds | None:
    """Limits the draft's choice to a part of the vocabulary: n_slots ids, 0 for all.

    None for a number by SHARE, and for all where the vocabulary is small or the draft cannot use a
    part.
    """
    if n_slots == 0:
        return None
    if n_slots is not None:
        return _with_slots(context, n_slots, target, is_fixed=True)
    n_known = min(context.model.info.n_vocab, target.info.n_vocab)
    if n_known < LEAST_VOCAB:
        return None
    try:
        return _with_slots(context, n_known // SHARE, target)
    except (UnsupportedError, ModelLoadError):
        return None


def _with_slots(
    context: Context, n_slots: int, target: Model, *, is_fixed: bool = False
) -> DraftIds:
    n_known = min(context.model.info.n_vocab, target.info.n_vocab)
    if n_slots > n_known:
        raise ArgumentError("n_output", n_slots, f"at most the {n_known} ids of the vocabulary")
    matrix = context.draft_output(n_slots)
    path = (target if matrix.is_targets else context.model).path
    ids = None
    try:
        read_rows = rows_of(path, matrix.name, matrix.row_bytes)
        ids = DraftIds(context, target, read_rows, n_slots, is_fixed=is_fixed)
    except KeyError:
        raise UnsupportedError(
            f"{path.name} does not have the matrix {matrix.name} itself, so that no part of it can "
            "be used; leave n_output out"
        ) from None
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from None
    finally:
        if ids is None:
            context.draft_output(0)
    return ids
