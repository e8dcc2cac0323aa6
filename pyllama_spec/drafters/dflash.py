"""DFlash: a small model that drafts a block of tokens in one call (arXiv 2602.06036).

Its layers attend to keys and values that are made of the target's own hidden rows, and to the slots
of a block, which see each other:

    position      0     1     2     3  |   4        5       6       7
    fed          row   row   row   row | x[4]     mask    mask    mask
                 of    of    of    of  |   |        |       |       |
                x[0]  x[1]  x[2]  x[3] | pending  d[1]    d[2]    d[3]   guessed

A round is two calls, however many sequences draft together: one feeds the rows of the tokens that
were accepted, one decodes a block as long as was asked for. Rejected tokens cost nothing.

A draft with a Markov head (DSpark, arXiv 2607.05147) lets each guess see the one before, and
guesses after the first slot too; one with a selector (DFlash2) scores each candidate after each
one of the slot before, and is read from left to right.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllama_spec.drafters.base import NO_DRAFT, Draft, Drafter, DraftRequest, SequenceErrors
from pyllama_spec.drafters.model_drafter import Choice, ModelDrafter, add_lookup, choose, passed
from pyllama_spec.drafters.options import DraftOptions, FileOptions
from pyllama_spec.drafters.row_memory import RowMemory, SequenceMemory
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.checks import count
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.model import Model
from pyllama_spec.engine.model_info import DraftBlock
from pyllama_spec.errors import ArgumentError, EngineError, PyllamaSpecError

if TYPE_CHECKING:
    from typing_extensions import Unpack


class DFlashMemory(RowMemory):
    """The rows of all sequences in a draft's context, and the blocks after them."""

    def __init__(self, context: Context, n_features: int, n_window: int, block: DraftBlock) -> None:
        super().__init__(context, n_features, n_window)
        self._block = block
        self._slots = Batch(context.n_seq_max * block.n_slots)
        self._slots.logits = False

    def n_ready(self, s: SequenceMemory) -> int:
        """Every row: none needs a token beside it."""
        return s.rows.end

    def put(self, batch: Batch, seq: int, s: SequenceMemory, n: int, is_read: bool) -> None:
        """Adds rows; they give no output."""
        batch.extend(None, s.n_fed, seq, rows=[s.rows.view(s.n_fed, s.n_fed + n)])

    def guess(self, seqs: Sequence[int], n: int) -> list[int]:
        """Feeds the waiting rows, then decodes a block after the rows of each sequence.

        The slots are forgotten at once: their keys and values are of guesses. What was guessed can
        be read until the next decode.
        """
        self.note_asked(len(seqs))
        waiting = [seq for seq in seqs if self._has_waiting(self.of(seq))]
        if waiting:
            self.feed(waiting)
        slots, mask = self._slots, self._block.mask_id
        slots.clear()
        rows = []
        for seq in seqs:
            s = self.of(seq)
            position = len(s.tokens) - 1
            rows.append(slots.n_tokens + (not self._block.guesses_behind))
            slots.add(s.tokens[-1], position, seq, output=self._block.guesses_behind)
            n_masks = n - 1 if self._block.guesses_behind else n
            slots.extend([mask] * n_masks, position + 1, seq, output_all=True)
        try:
            self.decode(slots)
        except BaseException:
            with contextlib.suppress(PyllamaSpecError):  # such as of a context that is lost
                self._forget_guesses(seqs)
            raise
        self._forget_guesses(seqs)
        return rows

    def try_block(self, _: int) -> None:
        """Decodes a block of an empty sequence, for timing."""
        slots, guesses_behind = self._slots, self._block.guesses_behind
        slots.clear()
        slots.add(0, 0, 0, output=guesses_behind)
        slots.extend([self._block.mask_id] * (self._block.n_slots - 1), 1, 0, output_all=True)
        self.context.decode(slots)
        self.context.memory.remove(0)

    def _forget_guesses(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            self.context.memory.rollback(seq, self.of(seq).n_fed)

    def _has_waiting(self, s: SequenceMemory) -> bool:
        return s.rows.end > s.n_fed

    def known(self, s: SequenceMemory, n_keep: int) -> int:
        """How many of the first n_keep tokens have rows that were fed, or wait."""
        n_known = s.rows.end if s.rows.start <= s.n_fed else s.n_fed
        return min(n_keep, max(n_known, s.n_fed))

    @property
    def n_seen(self) -> int:
        """At most the window of its layers."""
        n = super().n_seen
        return n if self._block.n_window is None else min(n, self._block.n_window)


_DEFAULT_MAX_DRAFT = 15


class DFlash(ModelDrafter[DFlashMemory]):
    """Drafts a block at a time with a DFlash draft; the file tells DFlash2 and DSpark.

    Args:
        model: the draft, or the path of its GGUF (docs/dflash.md).
        max_draft: the maximum number of tokens of a draft; None for the length of the blocks in
            training, up to 15: a longer block paid on no machine that was measured.
        options: see FileOptions.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.
        ArgumentError: the file is not a DFlash draft, a number is out of range, or max_draft is
            larger than the blocks in training.

    Attributes:
        block: the layout of its blocks.
    """

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        max_draft: int | None = None,
        **options: Unpack[FileOptions],
    ) -> None:
        max_draft = None if max_draft is None else count(max_draft, "max_draft", 1)
        super().__init__(model, "dflash", "a DFlash draft", **options)
        self.block: DraftBlock = self.model.draft_block  # type: ignore[assignment]  # has one
        longest = self.block.max_draft
        if max_draft is not None and max_draft > longest:
            self.close()
            raise ArgumentError(
                f"max_draft={max_draft}: a block of {self.model.path.name} was trained with "
                f"{self.block.n_slots} slots and guesses {longest} tokens; give {longest} or fewer"
            )
        self.max_draft = min(longest, _DEFAULT_MAX_DRAFT) if max_draft is None else max_draft

    def open_memory(self, target: Context) -> DFlashMemory:
        """Opens room for the rows that the draft reads, and for a block."""
        params, block = target.params, self.block
        n_useful = target.n_ctx_seq
        if block.n_window is not None:
            # An eighth is forgotten at a time, and a window still remains.
            n_useful = min(n_useful, -(-block.n_window * 8 // 7) + 8)
        n_window = min(self._n_ctx or n_useful, n_useful)
        n_outputs = params.n_seq_max * block.n_slots
        n_batch = max(min(params.n_batch, params.n_ubatch), n_outputs)
        context = self.open_context(target, n_window, block.n_slots, n_batch, n_outputs)
        memory = DFlashMemory(context, self._n_features, n_window, block)
        self.choose_among_part(context, target, memory.try_block)
        return memory

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Feeds the rows committed since the last draft, then decodes a block."""
        memory = self.memory_or_fail()
        errors: dict[int, Exception] = {}
        # A draft may lack the target's last ids: nothing is guessed after one, and others continue.
        n_vocab = self.model.info.n_vocab
        known = [r for r in requests if r.tokens[-1] < n_vocab]
        asked = passed(known, self.can_draft, errors)
        drafts: dict[int, Draft] = {}
        if asked:
            n = min(max(r.n_requested for r in asked), self.max_draft)
            rows = memory.guess([r.seq for r in asked], n)
            for request, row in zip(asked, rows, strict=True):
                try:
                    drafts[request.seq] = self._read(request, row)
                except Exception as error:  # noqa: BLE001, PERF203 - it is this sequence's alone
                    errors[request.seq] = error
        if errors:
            raise SequenceErrors(errors, drafts)
        return [drafts.get(request.seq, NO_DRAFT) for request in requests]

    def _read(self, request: DraftRequest, row: int) -> Draft:
        """Reads the guesses of a block from the last batch, left to right."""
        context = self.memory_or_fail().context
        ids: list[int] = []
        probabilities: list[float] = []
        candidates: list[list[tuple[int, float]]] = []
        for i in range(min(request.n_requested, self.max_draft)):
            given = ids[-1] if ids else request.tokens[-1]
            choice = Choice(*context.draft_candidates(row + i, given))
            token, p = choose(choice, request.prior, ids)
            if self.block.has_confidence:
                p = float(choice.row[0])
                if math.isnan(p):
                    raise EngineError(
                        "the draft computed NaN: the weights of its confidence head hold NaN"
                    )
            if p < self.p_min:
                break
            ids.append(token)
            probabilities.append(p)
            candidates.append(choice.candidates)
        return Draft(ids, probabilities, candidates)

    def describe(self) -> dict[str, Any]:
        """The draft's file, sizes, target layers and block length."""
        return {**super().describe(), "block_size": self.block.n_slots}


def open_dflash(path: Path, options: DraftOptions) -> Drafter:
    """Opens a draft, with lookups and n-grams beside it unless options.lookup is 0.

    More tokens than a block was trained with are not guessed, however many are asked for.
    """
    draft = DFlash(path, **options.of_file())
    if options.max_draft is not None:
        draft.max_draft = min(max(options.max_draft, 1), draft.max_draft)
    return add_lookup(draft, options)
