"""The memory of a context: the positions of each sequence."""

from __future__ import annotations

from collections.abc import Sequence

from pyllama_spec.engine.binding import check, ffi, lib
from pyllama_spec.engine.checks import instance, int32
from pyllama_spec.engine.closeable import Handle
from pyllama_spec.engine.framing import HEADER_BYTES, seal, unseal
from pyllama_spec.engine.media_ids import MediaRun, media_runs
from pyllama_spec.errors import ArgumentError

# The engine checks the number only in files that it writes itself.
_MAGIC, _VERSION = b"PLSS", lib.llama_spec_state_version()


class Memory:
    """Cuts, copies, saves and restores sequences. Positions are [first, last], ranges [p0, p1).

    They count tokens, and of an image its rows. Some models give all rows of an image few places:
    note_media() says where, and position_of() what the engine calls the place of a token.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle  # of a context
        # By sequence: the images whose rows share positions; see note_media().
        self.media: dict[int, list[MediaRun]] = {}

    def note_media(self, seq: int, tokens: Sequence[int]) -> None:
        """Notes where a sequence's tokens are rows that share positions."""
        self.media.pop(seq, None)
        if tokens and min(tokens) < 0:
            runs = [run for run in media_runs(tokens) if run.n_rows != run.n_positions]
            if runs:
                self.media[seq] = runs

    def position_of(self, seq: int, n: int) -> int:
        """The engine's position of token n of a sequence; -1 for a row inside an image."""
        for run in reversed(self.media.get(seq, ())):
            if run.start < n < run.start + run.n_rows:
                return -1
            if n >= run.start + run.n_rows:
                return self.position_of(seq, run.start) + run.n_positions + n - run.end
        return n

    def _token_at(self, seq: int, position: int) -> int:
        """The last token at a position of the engine's."""
        for run in reversed(self.media.get(seq, ())):
            first = self.position_of(seq, run.start)
            if position >= first + run.n_positions:
                return position - first - run.n_positions + run.end
            if position >= first:
                return run.end - 1
        return position

    def positions(self, seq: int = 0) -> tuple[int, int]:
        """The first and last position of the sequence; (-1, -1) if it is empty."""
        first, last = ffi.new("int32_t *"), ffi.new("int32_t *")
        check(
            lib.llama_spec_seq_positions(self._handle.pointer, _seq(seq), first, last),
            f"cannot read the positions of sequence {seq}",
        )
        return first[0], self._token_at(seq, last[0])

    def remove(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        """Removes positions p0 .. p1 - 1; p1 = -1 means the end.

        Raises:
            UnsupportedError: a recurrent state cannot remove only this part.
        """
        check(
            lib.llama_spec_seq_rm(self._handle.pointer, _seq(seq), _pos(p0), _pos(p1)),
            f"cannot remove from sequence {seq}",
        )
        if p0 == 0 and p1 < 0:
            self.media.pop(seq, None)

    def rollback(self, seq: int, n_keep: int) -> bool:
        """Keeps the first n_keep positions of a sequence; False if the engine cannot go back there.

        A recurrent state can only go back within the last batch of its sequence, to after its first
        token or any later one, and by at most n_rs_seq tokens in all since that batch. After False
        the sequence is unchanged, and the caller may clear it and decode again.

        Raises:
            ArgumentError: n_keep is negative.
        """
        if _pos(n_keep) < 0:
            raise ArgumentError("n_keep", n_keep, "0 or more")
        position = self.position_of(seq, n_keep)
        if position < 0:
            return False
        code: int = lib.llama_spec_seq_rm(self._handle.pointer, _seq(seq), position, -1)
        if code == lib.LLAMA_SPEC_UNSUPPORTED:
            return False
        check(code, f"cannot roll sequence {seq} back to {n_keep} tokens")
        if seq in self.media:
            self.media[seq] = [run for run in self.media[seq] if run.start < n_keep]
        return True

    def copy(self, source: int, target: int) -> None:
        """Makes the sequence `target` share all positions of `source`."""
        code = lib.llama_spec_seq_cp(self._handle.pointer, _seq(source), _seq(target))
        check(code, f"cannot copy sequence {source} to {target}")
        self.media.pop(target, None)
        if source in self.media:
            self.media[target] = self.media[source].copy()

    def clear(self) -> None:
        """Removes everything."""
        check(lib.llama_spec_memory_clear(self._handle.pointer), "cannot clear the memory")
        self.media.clear()

    @property
    def n_host_copies(self) -> int:
        """The number of copies of sequence states to or from the host's memory."""
        info = ffi.new("struct llama_spec_context_info *")
        code = lib.llama_spec_context_get_info(self._handle.pointer, info)
        check(code, "cannot read the context")
        n: int = info.n_host_copies
        return n

    def save(self, seq: int = 0) -> bytes:
        """The state of a sequence, for restore() in a context of the same model and settings."""
        data = self._get(seq, HEADER_BYTES)
        return seal(data, _MAGIC, _VERSION)

    def restore(self, seq: int, data: bytes) -> None:
        """Restores a state of save(); replaces the sequence's content.

        Raises:
            ArgumentError: the bytes are damaged, or from a context with other settings.
        """
        instance(data, (bytes, bytearray, memoryview), "the saved state")
        payload = unseal(data, _MAGIC, _VERSION, "a sequence that Memory.save() wrote")
        self._set(seq, payload, partial=False)

    def copy_out(self, seq: int) -> memoryview:
        """The state of a sequence for copy_in() of this context: save() without its checks."""
        return self._get(seq, 0)

    def copy_in(self, seq: int, data: memoryview) -> None:
        """Restores a state of copy_out(), of this or another sequence; replaces the old content.

        Raises:
            ArgumentError: the memory has no space for it; the sequence is then empty.
        """
        self._set(seq, data, partial=False)

    def checkpoint(self, seq: int, back: int = 0) -> memoryview:
        """Saves the part of a sequence's state that has no positions, such as a recurrent one.

        Args:
            seq: the sequence.
            back: saves the state of this many tokens earlier, within the reach of rollback().

        Raises:
            UnsupportedError: the engine keeps no snapshot of that state.
        """
        return self._get(seq, 0, partial=True, back=back)

    def return_to(self, seq: int, checkpoint: memoryview, n_keep: int) -> None:
        """Rolls a sequence back to n_keep positions, where checkpoint() was taken.

        The sequence must still hold them, except for the state itself.
        """
        self._set(seq, checkpoint, partial=True)
        self.remove(seq, self.position_of(seq, n_keep))

    def _get(self, seq: int, n_header: int, *, partial: bool = False, back: int = 0) -> memoryview:
        size, written = ffi.new("size_t *"), ffi.new("size_t *")
        handle, doing = self._handle.pointer, f"cannot save sequence {seq}"
        check(lib.llama_spec_state_size(handle, _seq(seq), partial, size), doing)
        data = bytearray(n_header + size[0])
        body = ffi.from_buffer("uint8_t[]", data, require_writable=True) + n_header
        code = lib.llama_spec_state_get(handle, seq, partial, back, body, size[0], written)
        check(code, doing)
        return memoryview(data)[: n_header + written[0]]

    def _set(self, seq: int, body: memoryview, *, partial: bool) -> None:
        if not partial:
            self.media.pop(seq, None)
        raw = ffi.from_buffer("uint8_t[]", body)
        code = lib.llama_spec_state_set(self._handle.pointer, _seq(seq), partial, raw, len(body))
        check(code, f"cannot restore sequence {seq}")


def _seq(value: int) -> int:
    return int32(value, "sequence")


def _pos(value: int) -> int:
    return int32(value, "position")
