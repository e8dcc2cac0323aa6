"""Builds one decode of the target from what the scheduler decided."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from pyllama_spec.drafters.base import Features
from pyllama_spec.engine import Batch, Context
from pyllama_spec.engine.context import LayerRows
from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.speculative.controller.base import Span
from pyllama_spec.speculative.sequence import SequenceRun


class TargetBatch:
    """Builds and decodes target batches with padding."""

    def __init__(self, target: Context) -> None:
        self._target = target
        self._memory = target.memory
        self._batch = Batch(target.n_batch)
        self._media_batch: Batch | None = None  # made for the first image
        self._rows = LayerRows(target, (), 0, 0)
        # The padding token.
        self._filler = target.model.vocab.bos or 0

    def compute(self, spans: Sequence[Span], runs: Mapping[int, SequenceRun]) -> None:
        """Decodes a batch. Rolls back idle sequences that were used for padding."""
        if spans[0].is_media:
            self._compute_media(spans[0], runs[spans[0].seq])
            return
        batch = self._batch
        batch.clear()
        undo: list[tuple[int, int]] = []
        for span in spans:
            self._add(span, runs[span.seq])
            if span.n_gap:
                for seq in range(span.seq + 1, span.seq + 1 + span.n_gap):
                    undo += self._fill(seq, span.n_rows + span.n_pad)
        try:
            self._target.decode(batch)
        finally:
            for seq, n in undo:
                # What stays there is noticed when a request begins on it.
                with contextlib.suppress(PyllamaSpecError):
                    self._target.memory.rollback(seq, n)

    def _compute_media(self, span: Span, run: SequenceRun) -> None:
        """Decodes rows of an image or a sound, which have a batch of their own."""
        target, state, n = self._target, run.state, span.n_prompt
        placed = run.medium_at(state.n_decoded)
        assert placed is not None
        if self._media_batch is None:
            self._media_batch = Batch(target.n_batch, n_row=target.n_row)
        start, media = placed
        first = state.n_decoded - start
        target.memory.note_media(state.seq_id, state.tokens[: start + len(media.ids)])
        position = target.memory.position_of(state.seq_id, start)
        span.first_row = 0
        self._media_batch.set_media(
            media.rows[first : first + n], media.positions[:, first : first + n] + position,
            state.seq_id, is_whole=media.is_whole,
            output_last=n == run.n_missing and not run.n_generated,
        )  # fmt: skip
        target.decode(self._media_batch)

    def rows(self, layers: tuple[int, ...], span: Span, n: int) -> Features:
        """The first n rows of a span for each of some layers; () for none."""
        if not layers:
            return ()
        if layers is not self._rows.layers:  # the round's first; a drafter has one tuple
            self._rows = LayerRows(self._target, layers, 0, 0)
        return self._rows.part(span.first_row, n)

    def _fill(self, seq: int, n: int) -> list[tuple[int, int]]:
        """Pads in an idle sequence; returns the sequence and the length to roll it back to."""
        end = self._target.memory.positions(seq)[1] + 1
        if end + n > self._target.n_ctx_seq:
            return []
        self._batch.extend([self._filler] * n, self._target.memory.position_of(seq, end), seq)
        return [(seq, end)]

    def _add(self, span: Span, run: SequenceRun) -> None:
        batch, state = self._batch, run.state
        span.first_row, first, n = batch.n_tokens, state.n_decoded, span.n_prompt
        memory = self._memory
        at = memory.position_of(state.seq_id, first) if memory.media else first
        if n:
            is_end = n == run.n_missing and not run.n_generated
            tokens = state.tokens[first : first + n]
            batch.extend(tokens, at, state.seq_id, output_last=is_end)
        else:
            tokens = [state.tokens[-1], *span.ids]
            batch.extend(tokens, at, state.seq_id, output_all=True)
        if span.n_pad:
            n = len(tokens)
            batch.extend([self._filler] * span.n_pad, at + n, state.seq_id)
