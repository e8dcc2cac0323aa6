"""EAGLE-3: a small head that drafts from the target's own hidden rows (arXiv 2503.01840).

At position P the head reads the token x[P+1] and the row of x[P], its *pair*:

    position        0          1          2          3
    token         x[1]       x[2]       x[3]       x[4] = pending
    row of        x[0]       x[1]       x[2]       x[3]        from the target, as features
                                                     |
                                                     +-> first drafted token d[1], row h[1]
    then            4: (d[1], h[1]) -> d[2], h[2]    5: (d[2], h[2]) -> ...

Pairs with a row of the target stay in the head's memory. Those with a row of its own are guesses:
they are forgotten before the next draft, the accepted ones too, since the target's row is better.
So a rejected token costs nothing, and the call that feeds the accepted pairs is the first step of
the next draft: n drafted tokens are n calls.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import NO_DRAFT, Adviser, Draft, Features
from pyllama_spec.drafters.feature_rows import FeatureRows
from pyllama_spec.drafters.saved_state import pack, unpack
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.checks import count, instance, real
from pyllama_spec.engine.closing import Closing
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.errors import ArgumentError, EngineError, PyllamaSpecError
from pyllama_spec.engine.model import Model, Progress

# Rows that are kept after they were fed: a conversation that goes on where it ended, or a little
# before, then needs no row again.
_KEEP_ROWS = 32
# Places of a head's file that tell it from another one of the same sizes.
_N_SAMPLES, _SAMPLE_BYTES = 16, 4096


@dataclass(slots=True)
class _Sequence:
    """What the head knows of one sequence.

    Attributes:
        tokens: x[0 ..], the last one pending.
        rows: features of the newest tokens.
        n_fed: pairs 0 .. n_fed - 1 were fed. It may be as many as there are tokens: then the last
            pair was fed with the token `ahead`, which truncate() has taken back.
        first: pairs before that one have left the window.

    """

    tokens: list[int]
    rows: FeatureRows
    n_fed: int = 0
    first: int = 0
    ahead: int | None = None


class Eagle3(Closing):
    """Drafts with an EAGLE-3 head, in a chain.

    Args:
        model: the head, or the path of its GGUF (docs/eagle3.md).
        max_draft: the most tokens to draft at once.
        n_ctx: pairs of a sequence that the head remembers; None for as many as the target. Fewer
            make a window: the oldest are forgotten, and the head goes on.
        p_min: end a draft before a token that the head gives a lower probability.
        n_gpu_layers, progress: for a head given as a path, as of Model.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.
        ArgumentError: it is no EAGLE-3 head, or a number is out of range.

    """

    name = "eagle3"

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        max_draft: int = 4,
        *,
        n_ctx: int | None = None,
        p_min: float = 0.0,
        n_gpu_layers: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.max_draft = count(max_draft, "max_draft", 1)
        self.p_min = real(p_min, "p_min", 0.0)
        self._n_ctx = None if n_ctx is None else count(n_ctx, "n_ctx", 1)
        instance(model, (Model, str, os.PathLike), "model", "; give a Model or a path")
        self._owns_model = not isinstance(model, Model)
        self.model = (
            model
            if isinstance(model, Model)
            else Model(model, n_gpu_layers=n_gpu_layers, progress=progress)
        )
        if self.model.info.arch != "eagle3":
            arch = self.model.info.arch
            self.close()
            raise ArgumentError(f"{self.model.path.name} is of kind {arch!r}, not an EAGLE-3 draft")
        self.target_layers = self.model.target_layers
        self.context: Context | None = None
        self._target: Context | None = None
        self._batch = self._step = Batch(1)
        self._sequences: dict[int, _Sequence] = {}
        self._n_features = 0
        self._n_window = 0
        # How many decodes it has made, for who counts the cost.
        self.n_calls = 0
        # Asked before each token is chosen: the draft is then the likeliest of the mixture.
        self.adviser: Adviser | None = None

    def attach(self, target: Context) -> None:
        """Opens the head's context beside the target's, whose threads it shares.

        Raises:
            ArgumentError: the head was made for another target, with the first difference.
            OutOfMemoryError: there is not enough memory for it.

        """
        instance(target, Context, "target")
        self.model.check_draft_of(target.model)
        if self.context is not None:
            if self._target is target:
                return
            self.context.close()
        self._target = target
        self._sequences.clear()
        params = target.params
        self._n_window = min(self._n_ctx or target.n_ctx_seq, target.n_ctx_seq)
        # The guesses of a sequence stay until its next draft.
        n_ctx = self._n_window * (1 if params.kv_unified else params.n_seq_max)
        n_ctx += self.max_draft * params.n_seq_max
        n_batch = min(params.n_batch, params.n_ubatch)
        self.context = Context(
            self.model, target=target, n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_batch,
            n_seq_max=params.n_seq_max, n_outputs_max=params.n_seq_max,
            kv_unified=params.kv_unified, n_threads=target.n_threads,
            flash_attn=params.flash_attn, type_k=params.type_k,
            type_v=params.type_v, offload_kqv=params.offload_kqv, is_window=True,
        )  # fmt: skip
        self._n_features = len(self.target_layers) * target.model.info.n_embd
        info = self.model.info
        self._batch = Batch(
            self.context.n_batch, n_row=self._n_features, n_model_row=info.n_embd_inp
        )
        self._step = Batch(1, n_row=info.n_embd, n_model_row=info.n_embd_inp)
        self._step.own_rows = True
        self._batch.logits = self._step.logits = False

    def _opened(self) -> Context:
        if self.context is None:
            raise ArgumentError("the draft is not attached to a target: call attach() first")
        return self.context

    def _sequence(self, seq: int) -> _Sequence:
        if seq not in self._sequences:
            self._opened()
            self._sequences[seq] = _Sequence([], FeatureRows(self._n_features))
        return self._sequences[seq]

    def begin(self, seq: int, tokens: Sequence[int], features: Features) -> None:
        """Feeds the pairs of a prompt's batch. Its last row waits for the token that follows."""
        s = self._sequence(seq)
        self._meet(seq, s, tokens)
        s.rows.append(len(s.tokens), features)
        s.tokens.extend(tokens)
        self._feed(seq, s, output=False)

    def commit(self, seq: int, tokens: Sequence[int], features: Features) -> None:
        """Notes the tokens of a round and their rows; the next propose() feeds them."""
        s = self._sequence(seq)
        self._meet(seq, s, tokens)
        if features:
            s.rows.append(len(s.tokens) - 1, features)
        s.tokens.extend(tokens)
        if len(s.tokens) - 1 - s.n_fed > self._batch.n_max:  # nobody has asked for a draft in long
            self._feed(seq, s, output=False)

    def propose(self, seq: int, pending: int, n: int) -> Draft:
        """Feeds the pairs that were committed since the last draft, and drafts from the last."""
        s, n = self._sequence(seq), min(n, self.max_draft)
        if n < 1 or len(s.tokens) < 2:
            return NO_DRAFT
        if s.tokens[-1] != pending:
            raise ArgumentError(
                f"token {pending} is pending, and {s.tokens[-1]} was committed last"
            )
        context, step = self._opened(), self._step
        if s.n_fed == len(s.tokens) - 1:  # asked again: the last pair says it again
            s.n_fed -= 1
        token, p, row = self._choose(self._feed(seq, s, output=True), seq, ())
        ids, probabilities = [token], [p]
        while len(ids) < n and p >= self.p_min:
            step.clear()
            step.add(token, s.n_fed + len(ids) - 1, seq, output=True, row=row)
            self._decode(context, step)
            token, p, row = self._choose(0, seq, ids)
            ids.append(token)
            probabilities.append(p)
        if p < self.p_min:
            del ids[-1], probabilities[-1]
        return Draft(ids, probabilities)

    def _choose(
        self, i: int, seq: int, ids: Sequence[int]
    ) -> tuple[int, float, npt.NDArray[np.float32]]:
        """The token to draft after row i of the last batch, its probability, the row to feed.

        With advice it is the likeliest of a linear mixture, of which the head's distribution is
        known at its two likeliest tokens: a third one is hardly ever chosen.
        """
        context = self._opened()
        token, p, row = context.draft_row(i)
        if math.isnan(p):
            raise EngineError("the head computed NaN: rows of the target, or its own weights, have")
        votes = () if self.adviser is None else self.adviser(seq, ids)
        if not votes:
            return token, p, row
        second, p_second, _ = context.draft_row(i, 1)
        scores = {second: p_second, token: p}
        for vote in votes:
            scores[vote.token] = scores.get(vote.token, 0.0) + vote.weight * vote.p
        # Among equals the head's own choice.
        best = max(scores, key=lambda id_: (scores[id_], id_ == token))
        return best, scores[best] / (1.0 + sum(vote.weight for vote in votes)), row

    def _meet(self, seq: int, s: _Sequence, tokens: Sequence[int]) -> None:
        """The pair that truncate() left at the end is right if the text goes on as it did."""
        if tokens and s.n_fed and s.n_fed == len(s.tokens) and s.ahead != tokens[0]:
            self._cut(seq, s, len(s.tokens) - 1)
        s.ahead = None

    def _feed(self, seq: int, s: _Sequence, *, output: bool) -> int:
        """Feeds all pairs that are complete; returns the row of the last one in its batch."""
        context, batch = self._opened(), self._batch
        end = len(s.tokens) - 1
        self._make_room(seq, s, end)
        # What lies behind are guesses of the last draft, or pairs that no longer count.
        context.memory.rollback(seq, s.n_fed)
        while s.n_fed < end:
            n = min(end - s.n_fed, batch.n_max)
            first = s.n_fed
            batch.clear()
            batch.extend(
                s.tokens[first + 1 : first + n + 1], first, seq,
                rows=[s.rows.view(first, first + n)], output_last=output and first + n == end,
            )  # fmt: skip
            self._decode(context, batch)
            s.n_fed = first + n
        s.rows.keep_last(_KEEP_ROWS)
        return batch.n_tokens - 1

    def _decode(self, context: Context, batch: Batch) -> None:
        self.n_calls += 1
        context.decode(batch)

    def _make_room(self, seq: int, s: _Sequence, end: int) -> None:
        """Forgets the oldest pairs, so that all up to `end` fit the window."""
        if end - s.first <= self._n_window:
            return
        # An eighth more, so that this is not done in every round.
        first = end - self._n_window + self._n_window // 8
        if first > s.n_fed:  # a long prompt: its first pairs need not be fed at all
            self._opened().memory.remove(seq)
            s.n_fed = first
        else:
            self._opened().memory.remove(seq, s.first, first)
        s.first = first

    def resume_at(self, seq: int, n_keep: int) -> int:
        """How many of the first n_keep tokens the target may keep.

        The pair of the token that follows them needs the row of the last one. Where that row is
        gone, the target has to make it again.
        """
        s = self._sequences.get(seq)
        if s is None:
            return 0
        n_keep = min(n_keep, len(s.tokens))
        if n_keep == 0 or (s.rows.holds(n_keep - 1) and s.rows.start <= s.n_fed):
            return n_keep
        # Its own pair, with the row of the token before, is in the memory and stays there.
        return min(n_keep - 1, s.n_fed)

    def truncate(self, seq: int, n_keep: int) -> None:
        """Keeps the pairs of the first n_keep tokens, and the one of the last with its next."""
        s = self._sequences.get(seq)
        if s is None:
            return
        if n_keep < len(s.tokens):
            s.ahead = s.tokens[n_keep] if s.n_fed >= n_keep else None
            del s.tokens[n_keep:]
            s.rows.truncate(n_keep)
        if s.n_fed > n_keep:
            self._cut(seq, s, n_keep)
        if n_keep == 0:
            self._forget(seq)

    def _cut(self, seq: int, s: _Sequence, n_pairs: int) -> None:
        self._opened().memory.rollback(seq, n_pairs)
        s.n_fed = min(s.n_fed, n_pairs)
        s.first = min(s.first, s.n_fed)

    def _forget(self, seq: int) -> None:
        if self._sequences.pop(seq, None) is not None:
            self._opened().memory.remove(seq)

    def copy(self, seq: int, to: int) -> None:
        """Lets `to` begin as a copy of `seq`."""
        context, s = self._opened(), self._sequence(seq)
        self._forget(to)
        context.memory.copy(seq, to)
        self._sequences[to] = _Sequence(list(s.tokens), s.rows.copy(), s.n_fed, s.first, s.ahead)

    def save(self, seq: int) -> bytes:
        """What it knows of a sequence, for restore() of a head with the same file and settings."""
        context, s = self._opened(), self._sequence(seq)
        facts = {
            "draft": self._fingerprint(), "n_fed": s.n_fed, "first": s.first, "ahead": s.ahead,
            "start": s.rows.start,
        }  # fmt: skip
        rows = s.rows.view(s.rows.start, s.rows.end)
        tokens = np.array(s.tokens, dtype="<i4")
        return pack(facts, [tokens.tobytes(), rows.tobytes(), context.memory.save(seq)])

    def restore(self, seq: int, data: bytes) -> int:
        """Puts back what save() gave.

        Returns:
            The number of tokens that it knows of the sequence now.

        Raises:
            ArgumentError: the state is damaged, or of another draft or other settings. The sequence
                is forgotten then.

        """
        facts, parts = unpack(data)
        self._forget(seq)
        if facts["draft"] != self._fingerprint():
            raise ArgumentError("the state was saved with another draft")
        self._opened().memory.restore(seq, parts[2])
        s = self._sequence(seq)
        s.tokens = np.frombuffer(parts[0], dtype="<i4").tolist()
        rows = np.frombuffer(parts[1], dtype="<f4").reshape(-1, self._n_features)
        s.rows.append(facts["start"], [rows])
        s.n_fed, s.first, s.ahead = facts["n_fed"], facts["first"], facts["ahead"]
        return len(s.tokens)

    def _fingerprint(self) -> str:
        """Tells heads apart: their sizes, and a few places of their files."""
        about = repr((sorted(self.model.metadata.items()), self.model.info, self._n_features))
        digest = hashlib.sha256(about.encode())
        with contextlib.suppress(OSError), self.model.path.open("rb") as file:
            size = self.model.path.stat().st_size
            for i in range(_N_SAMPLES):
                file.seek(size * i // _N_SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
        return digest.hexdigest()

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._owns_model and self.model.is_closed

    def close(self) -> None:
        """Frees the head's context, and the model if it was given as a path."""
        with contextlib.suppress(PyllamaSpecError, AttributeError):
            if self.context is not None:
                self.context.close()
        self.context = self._target = None
        self._sequences = {}
        if self._owns_model:
            self.model.close()
