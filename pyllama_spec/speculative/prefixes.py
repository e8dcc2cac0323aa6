"""Finds a prompt's prefix in its own sequence, in another one, or in the store.

    the prompt of a request     [ system | question B ]
    held by its own sequence    [ system | question A | answer A ]    cut behind `system`
       by another sequence      [ system | question B | answer B ]    copied, and cut
       by the store             [ system | question B ]               restored
    read just now by another    [ system | quest...                   waited for, and copied

The longest one is taken. What only its own sequence held goes to the store before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import n_common_ids
from pyllama_spec.engine import Context
from pyllama_spec.engine.context import adapters_key
from pyllama_spec.engine.media_ids import up_to_medium
from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.speculative.isolated_drafter import IsolatedDrafter
from pyllama_spec.speculative.rollback import Checkpoint, Rollback
from pyllama_spec.speculative.sequence import (
    Adapters,
    AdaptersKey,
    SavedSequence,
    SequenceRun,
    SequenceState,
    n_common,
)

Ids = npt.NDArray[np.int32]

# Each is compared with every prompt that begins.
_MAX_ENTRIES = 256


@dataclass(frozen=True, slots=True, eq=False)
class StoredPrefix:
    """A copy of a sequence."""

    tokens: Ids  # in its memory
    key: AdaptersKey
    first: int  # the first position that it holds; a window drops earlier ones
    memory: memoryview  # the engine's bytes of it
    drafter: bytes | None  # the drafter's; None if the tokens are committed to it again
    checkpoints: Sequence[Checkpoint] = ()  # of a recurrent state, earlier ones

    @property
    def n_tokens(self) -> int:
        """The number of tokens of the copy."""
        return len(self.tokens)

    @property
    def n_bytes(self) -> int:
        """The size in bytes."""
        states = sum(one.data.nbytes for one in self.checkpoints)
        own = self.tokens.nbytes + self.memory.nbytes + len(self.drafter or b"")
        return own + states


class PrefixStore:
    """Copies of sequences in order of last use, the newest last.

    What a sequence holds is copied here before another prompt takes its place, and goes back when a
    prompt comes that begins like it. A store belongs to one context, so that model and settings are
    the same anyway; adapters may differ, and are in the key.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._entries: list[StoredPrefix] = []
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: StoredPrefix) -> None:
        """Adds a copy; drops the copies that it extends, and the oldest for room.

        One that is larger than the whole store is not kept.
        """
        size = entry.n_bytes
        if size > self.max_bytes:
            return
        for other in self._entries.copy():
            n = other.n_tokens
            if other.key == entry.key and n_common_ids(other.tokens, entry.tokens) == n:
                self.remove(other)
        while self._entries and (
            self.n_bytes + size > self.max_bytes or len(self._entries) >= _MAX_ENTRIES
        ):
            self.remove(self._entries[0])
        self._entries.append(entry)
        self.n_bytes += size

    def remove(self, entry: StoredPrefix) -> None:
        """Drops a copy, unless a newer one has taken its place."""
        if entry in self._entries:
            self._entries.remove(entry)
            self.n_bytes -= entry.n_bytes

    def touch(self, entry: StoredPrefix) -> None:
        """Marks a copy as used now, unless a newer one has taken its place."""
        if entry in self._entries:
            self._entries.remove(entry)
            self._entries.append(entry)

    def clear(self) -> None:
        """Drops all copies."""
        self._entries.clear()
        self.n_bytes = 0

    def holds(self, tokens: Ids, key: AdaptersKey) -> bool:
        """Whether a copy has all of these tokens."""
        n = len(tokens)
        return any(e.key == key and n_common_ids(e.tokens, tokens) == n for e in self._entries)

    def closest(
        self, tokens: Ids, key: AdaptersKey, reach: Callable[[StoredPrefix, int], int]
    ) -> tuple[StoredPrefix | None, int, int]:
        """The copy with the most reusable tokens, or None, and how many it restores.

        And the longest common prefix with any copy, usable or not. reach says how many tokens a
        copy can restore, given it and the length of its common prefix.
        """
        best: StoredPrefix | None = None
        n_best = n_known = 0
        for entry in self._entries:
            if entry.key != key:
                continue
            n = n_common_ids(entry.tokens, tokens)
            n_known = max(n_known, n)
            if n > n_best and (n_reached := reach(entry, n)) > n_best:
                best, n_best = entry, n_reached
        return best, n_best, n_known


def as_ids(tokens: Sequence[int]) -> Ids:
    """Tokens as an array, [n] int32."""
    return np.array(tokens, dtype=np.int32)


# Fewer tokens are not worth a wait, a place in the store, or a copy from it.
MIN_TOKENS = 32
# Fewer are read rather than copied from another sequence, and so is less than a 64th of what it
# holds, since all of that is copied.
MIN_COPIED, _COPIED_PART = 8, 64


class HeldSequences:
    """What the sequences of a context hold between decodes, and the store of what they held.

    A request begins on the longest prefix of its prompt that any sequence or the store holds. A
    sequence's content can be rolled back after a failure, copied to another one or to the host's
    memory, and put away for later prompts.
    """

    def __init__(
        self,
        target: Context,
        rollback: Rollback,
        drafter: IsolatedDrafter,
        store_bytes: int | None,
    ) -> None:
        self._target, self._rollback, self._drafter = target, rollback, drafter
        self.store = None if store_bytes is None else PrefixStore(store_bytes)
        # The last request that began on each sequence, in the order in which they began, or an
        # empty one where a copy was put back.
        self._runs: dict[int, SequenceRun] = {}
        # Whether any run may be waiting.
        self.has_waiting = False

    # ---- a request begins

    def begin(self, run: SequenceRun, beside: Sequence[SequenceRun] | None = None) -> None:
        """Prepares a run's sequence for its prompt, of which it keeps the longest prefix.

        What another sequence or the store holds is copied. Where another run of `beside` reads the
        same beginning, this one waits.
        """
        if self._runs.get(run.seq_id) is not run:
            self._begin_new(run)
        if self.store is not None and len(run.prompt) > MIN_COPIED and run.max_held is None:
            self._bring(run, beside)
        self._cut_for(run)

    def _begin_new(self, run: SequenceRun) -> None:
        state, run.adapters_key = run.state, self._key(run.adapters)
        if state.n_decoded and self._key_of(state) != run.adapters_key:
            self.shelve(state)
            self._empty(state)
        state.adapters = run.adapters
        self._runs.pop(state.seq_id, None)
        self._runs[state.seq_id] = run

    def _key(self, adapters: Adapters) -> AdaptersKey:
        return adapters_key(self._target.adapters if adapters is None else adapters)

    def _key_of(self, state: SequenceState) -> AdaptersKey:
        """The key of the settings that a sequence's memory was computed with."""
        run = self._runs.get(state.seq_id)
        return (
            self._key(state.adapters) if run is None or run.state is not state else run.adapters_key
        )

    def _bring(self, run: SequenceRun, beside: Sequence[SequenceRun] | None) -> None:
        state, wanted = run.state, run.prompt[:-1]
        n_common_own = n_own = n_common(state.tokens[: state.n_decoded], wanted)
        if not self._rollback.is_cut:
            n_own = self._reach_of(state, n_own)
        n_best, source, n_known = self._best(run, wanted, n_own)
        n_known = max(n_known, n_common_own)
        if state.n_decoded - n_own >= MIN_TOKENS:
            self.shelve(state)
        if source is not None:
            self._adopt(state, source, n_best)
        self._wait(run, wanted, n_best, beside)
        if not (run.waits_for or self._rollback.is_cut) and n_known >= n_best + MIN_TOKENS:
            run.borders.add(n_known)  # the next one can begin here

    def _best(
        self, run: SequenceRun, wanted: Sequence[int], n_own: int
    ) -> tuple[int, SequenceState | StoredPrefix | None, int]:
        """The longest prefix of a prompt that can be kept, and who holds it.

        Who is None for its own sequence. And how many of the prompt's tokens are held anywhere,
        usable or not.
        """
        n_best, n_known = n_own, 0
        source: SequenceState | StoredPrefix | None = None
        for state in (other.state for other in self._others(run.state, run.adapters_key)):
            n = n_common(state.tokens[: state.n_decoded], wanted)
            n_known = max(n_known, n)
            least = n_own + max(MIN_COPIED, state.n_decoded // _COPIED_PART)
            if n < least or not self._can_copy:
                continue
            n = self._reach_of(state, n)
            if n >= least and n > n_best:
                n_best, source = n, state
        assert self.store is not None
        entry, n, n_stored = self.store.closest(
            as_ids(wanted), run.adapters_key, self._reach_of_entry
        )
        n_known = max(n_known, n_stored)
        if entry is not None and n > n_best and n >= n_own + MIN_TOKENS:
            return n, entry, n_known
        return n_best, source, n_known

    def _others(self, state: SequenceState, key: AdaptersKey) -> list[SequenceRun]:
        """The last requests of other sequences with these settings; not of renumbered ones."""
        return [
            run
            for seq, run in self._runs.items()
            if run.state is not state
            and run.adapters_key == key
            and run.seq_id == seq != state.seq_id
        ]

    @property
    def _can_copy(self) -> bool:
        """Whether target and drafter can continue in a copy of another sequence."""
        has_drafter = self._drafter.copies or not self._drafter.target_layers
        return has_drafter and (self._rollback.is_cut or self._rollback.saves_whole)

    def _reach_of(self, state: SequenceState, n: int) -> int:
        first, last = self._target.memory.positions(state.seq_id)
        if last + 1 != state.n_decoded:
            return 0
        checkpoints = self._rollback.checkpoints_of(state.seq_id)
        return self._rollback.reach(first, state.n_decoded, n, checkpoints)

    def _reach_of_entry(self, entry: StoredPrefix, n: int) -> int:
        return self._rollback.reach(entry.first, entry.n_tokens, n, entry.checkpoints)

    # ---- copies

    def _adopt(self, state: SequenceState, source: SequenceState | StoredPrefix, n: int) -> None:
        """Copies a prefix into a sequence; empties the sequence if that fails."""
        memory, drafter = self._target.memory, self._drafter
        seq = state.seq_id
        # First: an interrupt in the middle leaves a sequence that says it holds nothing.
        self._empty(state)
        try:
            if isinstance(source, SequenceState):
                tokens = source.tokens[: source.n_decoded]
                if self._rollback.is_cut:
                    memory.copy(source.seq_id, seq)
                else:  # sharing a cell, neither could go back
                    memory.copy_in(seq, memory.copy_out(source.seq_id))
                    memory.note_media(seq, tokens)
                self._rollback.take_over(seq, self._rollback.checkpoints_of(source.seq_id))
                drafter.copy(source.seq_id, seq)
            else:
                tokens = source.tokens.tolist()
                memory.copy_in(seq, source.memory)
                memory.note_media(seq, tokens)
                self._rollback.take_over(seq, source.checkpoints)
                # It knows the pending token of its text too, which is not among these.
                drafter.restore(seq, source.drafter, len(tokens) + 1)
                assert self.store is not None
                if n == source.n_tokens:
                    self.store.remove(source)  # the sequence continues with all of it
                else:
                    self.store.touch(source)
        except PyllamaSpecError:
            self._empty(state)
            return
        state.tokens[:], state.n_decoded = tokens, len(tokens)

    def _empty(self, state: SequenceState) -> None:
        state.n_decoded, state.n_given = 0, None
        state.tokens.clear()
        self._rollback.forget(state)
        self._drafter.truncate(state.seq_id, 0)

    def shelve(self, state: SequenceState) -> None:
        """Stores a sequence's content, unless the store or another sequence has it."""
        store, n = self.store, state.n_decoded
        if store is None or not store.max_bytes or n < MIN_TOKENS:
            return
        if not self._rollback.saves_whole:
            return
        first, last = self._target.memory.positions(state.seq_id)
        key, held = self._key_of(state), state.tokens[:n]
        tokens = as_ids(held)
        if last + 1 != n or store.holds(tokens, key):
            return
        for other in self._others(state, key):
            if other.state.n_decoded >= n and other.state.tokens[:n] == held:
                return
        drafter = self._drafter.save(state.seq_id)
        if drafter is None and self._drafter.target_layers:
            return  # the target would have to compute all rows again
        checkpoints = self._rollback.checkpoints_of(state.seq_id)
        try:
            memory = self._target.memory.copy_out(state.seq_id)
        except (PyllamaSpecError, MemoryError):
            return
        store.add(StoredPrefix(tokens, key, first, memory, drafter, checkpoints))

    def clear(self) -> None:
        """Drops all content that no sequence holds."""
        if self.store is not None:
            self.store.clear()

    # ---- waiting for the one that computes the same

    def _wait(
        self,
        run: SequenceRun,
        wanted: Sequence[int],
        n_held: int,
        beside: Sequence[SequenceRun] | None,
    ) -> None:
        """Makes a run wait for an older one that will read a longer prefix of its prompt."""
        n_best, run.waits_for = n_held + MIN_TOKENS - 1, None
        begun = list(self._runs.values())
        older = begun[: begun.index(run)]
        for other in self._others(run.state, run.adapters_key):
            if other not in older or not (self._can_copy and other.is_reading):
                continue
            if beside is None or any(one is other for one in beside):
                n = n_common(other.prompt, wanted)
                if n > n_best:
                    n_best, run.waits_for = n, other
        if run.waits_for is not None:
            run.waits_for.borders.add(n_best)
            self.has_waiting = True

    def due(self, runs: Sequence[SequenceRun]) -> list[SequenceRun]:
        """The runs of a round that have waited long enough and need begin() again.

        A run waits only while what it waits for is read in the same rounds.
        """
        computed = {id(run) for run in runs}
        out = []
        for run in runs:
            other = run.waits_for
            if other is None:
                continue
            n = n_common(other.prompt, run.prompt[:-1])
            if not (other.is_reading and other.state.n_decoded < n and id(other) in computed):
                run.waits_for = None
                out.append(run)
        self.has_waiting = any(run.waits_for for run in self._runs.values())
        return out

    # ---- a sequence between decodes

    def _cut_for(self, run: SequenceRun) -> None:
        """Cuts a run's sequence at the first token that differs from the prompt."""
        prompt, state = run.prompt, run.state
        n_keep = n_common(state.tokens[: state.n_decoded], prompt[:-1])
        n_keep = n_keep if run.max_held is None else min(n_keep, run.max_held)
        if run.media:
            n_keep = up_to_medium(prompt, n_keep)
        n_keep = self._keep(state, n_keep)
        state.tokens[n_keep:] = prompt[n_keep:]
        state.n_decoded, state.n_given, run.n_cached = n_keep, None, n_keep
        self._drafter.truncate(state.seq_id, n_keep)

    def _keep(self, state: SequenceState, n_keep: int) -> int:
        """Keeps as much of the first n_keep tokens as target and drafter can use."""
        while True:
            n_keep = self._drafter.resume_at(state.seq_id, n_keep, state.tokens)
            n_whole = up_to_medium(state.tokens, n_keep)
            if n_whole < n_keep:
                n_keep = n_whole  # all of a picture is read again
                continue
            n_held = self._rollback.keep(state, n_keep)
            if n_held == 0:
                self._target.memory.remove(state.seq_id)
            if n_held == n_keep:
                return n_keep
            state.n_decoded = n_keep = n_held  # the drafter may need an earlier one still

    def recover(self, state: SequenceState) -> None:
        """Restores memory and drafter to a sequence's committed tokens, after an interruption."""
        self._rollback.recover(state)
        # The drafter keeps the pending token, which is not committed again; of a prompt it knows
        # less, and text that the memory has lost is committed again.
        n_keep = state.n_decoded
        is_whole = 0 < n_keep == len(state.tokens) - 1
        self._drafter.truncate(state.seq_id, n_keep + is_whole)

    def forget(self, state: SequenceState) -> None:
        """Empties a sequence in the target's memory and in the drafter."""
        self._runs.pop(state.seq_id, None)
        self._empty(state)

    def put_away(self, state: SequenceState) -> None:
        """Empties a sequence, and stores a copy for later prompts with the same prefix."""
        self.shelve(state)
        self.forget(state)

    def save(self, state: SequenceState) -> SavedSequence:
        """Copies a sequence to the host's memory."""
        memory = self._target.memory.save(state.seq_id) if state.n_decoded else b""
        drafter = self._drafter.save(state.seq_id)
        return SavedSequence(
            tuple(state.tokens), state.n_decoded, state.n_given, memory, drafter, state.adapters
        )

    def restore(self, state: SequenceState, saved: SavedSequence) -> None:
        """Restores a copy of save(), of this or another sequence."""
        self.forget(state)
        if saved.n_decoded:
            self._target.memory.restore(state.seq_id, saved.memory)
            self._target.memory.note_media(state.seq_id, saved.tokens[: saved.n_decoded])
        state.tokens[:] = saved.tokens
        state.n_decoded, state.n_given = saved.n_decoded, saved.n_given
        state.adapters = saved.adapters
        self._drafter.restore(state.seq_id, saved.drafter, len(saved.tokens))
        self._runs[state.seq_id] = SequenceRun(state, (), adapters_key=self._key(state.adapters))
