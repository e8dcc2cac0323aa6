"""The file of a store: a header, two slots with the written length, and an index.

Everything is in the machine's own byte order; a file of another one is refused. The header never
changes. A slot says how many tokens count, and has a check sum; the two are written in turn, so
that one of them is whole whenever a writer is killed. Tokens after that number do not count.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyllama_spec.drafters.suffix.memory import HEADER_TOKENS, texts_of
from pyllama_spec.drafters.suffix.token_index import TokenIndex, index_bytes
from pyllama_spec.engine.closeable import closed_on_failure
from pyllama_spec.errors import ArgumentError, ModelLoadError

HEADER_BYTES = 4096
MAX_CAPACITY = 1 << 30
_MAGIC, _VERSION, _BYTE_ORDER = b"PLMEMORY", 1, 0x01020304
_HEADER = struct.Struct("=8sIIQQ32s")
_SLOT = struct.Struct("=QQQ")
_SUM = struct.Struct("=I")
_SLOTS = (1024, 2048)
MODE = 0o600
_REMEDY = "delete it, or name another file"
_LEAST_CAPACITY = 1 << 10


class Facts(NamedTuple):
    """The facts in the header."""

    capacity: int
    max_tokens: int
    digest: bytes


@dataclass(slots=True)
class _Slot:
    """The written length, and whether a writer has started to write more."""

    generation: int
    n: int
    is_busy: bool


class _Held:
    """The parts of a file's index that are on disk. The others are holes, which read as zeros.

    It knows nothing of the StoreFile: the index has it, and a circle would keep a file that was
    replaced mapped, and on the disk.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    def parts(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The stored parts of bytes begin .. end - 1; the whole range if the system cannot tell.

        A file that was made here is held as a whole; a copy of it may have holes, and a forged one
        hardly anything else.
        """
        if self.number < 0 or not hasattr(os, "SEEK_DATA") or not _has_holes(os.fstat(self.number)):
            return [(begin, end)]
        with contextlib.suppress(OSError):  # some systems see only what they have written
            os.fsync(self.number)
        parts, at, last = [], HEADER_BYTES + begin, HEADER_BYTES + end
        try:
            while at < last:
                low = os.lseek(self.number, at, os.SEEK_DATA)
                if low >= last:
                    break
                at = max(os.lseek(self.number, low, os.SEEK_HOLE), low + 1)
                parts.append((low - HEADER_BYTES, min(at, last) - HEADER_BYTES))
        except OSError as error:
            if error.errno != errno.ENXIO:  # that is: there are no more
                return [(begin, end)]
        return parts


class StoreFile:
    """An open, mapped store file."""

    def __init__(self, number: int, path: Path, *, is_writable: bool) -> None:
        self.number, self.path = number, path
        self._held = _Held(number)
        with closed_on_failure(self):
            self._map(is_writable)

    def _map(self, is_writable: bool) -> None:
        info = os.fstat(self.number)
        if not stat.S_ISREG(info.st_mode):
            raise ModelLoadError(f"the draft memory {self.path} is not a file; name another one")
        self.inode = (info.st_dev, info.st_ino)
        self.has_holes = _has_holes(info)
        head = os.pread(self.number, HEADER_BYTES, 0)
        self.facts = _read_header(head, self.path)
        size = HEADER_BYTES + index_bytes(self.facts.capacity)
        if info.st_size != size:
            raise ModelLoadError(
                f"the draft memory {self.path} is damaged: it has {info.st_size} bytes and its "
                f"header says {size}; {_REMEDY}"
            )
        access = mmap.ACCESS_WRITE if is_writable else mmap.ACCESS_READ
        self._mapped = mmap.mmap(self.number, size, access=access)
        self._bytes = memoryview(self._mapped)
        block = self._bytes[HEADER_BYTES:]
        self.index = TokenIndex(block, self.facts.capacity, held=self._held.parts)
        self.is_damaged = self._newest() is None
        self.refresh()

    def _newest(self) -> _Slot | None:
        slots = [slot for slot in map(self._slot, _SLOTS) if slot is not None]
        return max(slots, key=lambda slot: slot.generation, default=None)

    def _slot(self, at: int) -> _Slot | None:
        data = bytes(self._bytes[at : at + _SLOT.size + _SUM.size])
        body, sum_ = data[: _SLOT.size], _SUM.unpack(data[_SLOT.size :])[0]
        generation, n, busy = _SLOT.unpack(body)
        if zlib.crc32(body) != sum_ or n > self.facts.capacity:
            return None
        return _Slot(generation, n, bool(busy))

    def refresh(self) -> None:
        """Reads what other processes have written."""
        slot = self._newest()
        n = 0 if slot is None else slot.n
        if n != self.index.n:
            self.index.show(n)

    def recover(self) -> None:
        """With the lock held: repairs the file after a killed writer."""
        slot = self._newest()
        if slot is not None and not slot.is_busy:
            return
        if slot is None:  # both slots are damaged: what can be told of the texts counts
            self.index.n = self.facts.capacity
            last = max((t.at - HEADER_TOKENS + t.n_entry for t in texts_of(self.index)), default=0)
            self.index.show(last)
        self.index.drop_heads()
        self.publish()
        self.is_damaged = False

    def publish(self, *, is_busy: bool = False) -> None:
        """Publishes the written length."""
        slot = self._newest()
        generation = 1 if slot is None else slot.generation + 1
        body = _SLOT.pack(generation, self.index.n, is_busy)
        at = _SLOTS[generation % 2]
        self._bytes[at : at + _SLOT.size + _SUM.size] = body + _SUM.pack(zlib.crc32(body))

    def erase(self) -> None:
        """Overwrites the content of a file that was or will be replaced."""
        zeros = bytes(1 << 20)
        size = len(self._bytes) - HEADER_BYTES
        for begin, end in self._held.parts(0, size):
            for at in range(HEADER_BYTES + begin, HEADER_BYTES + end, len(zeros)):
                part = self._bytes[at : min(at + len(zeros), HEADER_BYTES + end)]
                part[:] = zeros[: len(part)]

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self._bytes)

    def close(self) -> None:
        """Closes the file. The last view frees the mapping."""
        if self.number >= 0:
            with contextlib.suppress(OSError):
                os.close(self.number)
            self.number = -1
            self._held.number = -1

    def __del__(self) -> None:
        if getattr(self, "number", -1) >= 0:  # dropped without close()
            self.close()


def _has_holes(info: os.stat_result) -> bool:
    # POSIX counts blocks of 512 bytes, whatever those of the disk are.
    return getattr(info, "st_blocks", info.st_size) * 512 < info.st_size


def reserves_room(path: Path, digest: bytes) -> bool:
    """Whether the disk reserves a new store's room at once; creates and deletes one to see.

    File systems that compress, or never overwrite, do not.
    """
    number = create_file(path, Facts(_LEAST_CAPACITY, _LEAST_CAPACITY, digest))
    try:
        return not _has_holes(os.fstat(number))
    finally:
        os.close(number)
        path.unlink()


def _read_header(head: bytes, path: Path) -> Facts:
    if len(head) < HEADER_BYTES or head[: len(_MAGIC)] != _MAGIC:
        raise ModelLoadError(
            f"{path} is not a draft memory: it begins with {head[: len(_MAGIC)]!r} and not with "
            f"{_MAGIC!r}; name another file"
        )
    _, order, version, capacity, max_tokens, digest = _HEADER.unpack_from(head)
    if order != _BYTE_ORDER:
        raise ModelLoadError(
            f"the draft memory {path} is of a machine with another byte order; {_REMEDY}"
        )
    if zlib.crc32(head[: _HEADER.size]) != _SUM.unpack_from(head, _HEADER.size)[0]:
        raise ModelLoadError(
            f"the draft memory {path} is damaged: its header has another check sum; {_REMEDY}"
        )
    if version != _VERSION:
        raise ModelLoadError(
            f"the draft memory {path} has version {version}, and this program reads version "
            f"{_VERSION}; name another file, or use the program that made it"
        )
    if not 0 < capacity <= MAX_CAPACITY:
        raise ModelLoadError(
            f"the draft memory {path} is damaged: its header says that it has room for {capacity} "
            f"tokens, and {MAX_CAPACITY} are the most; {_REMEDY}"
        )
    if not max(_LEAST_CAPACITY, capacity) <= max_tokens <= MAX_CAPACITY:
        raise ModelLoadError(
            f"the draft memory {path} is damaged: its header lets it grow to {max_tokens} tokens, "
            f"and {max(_LEAST_CAPACITY, capacity)} to {MAX_CAPACITY} are possible; {_REMEDY}"
        )
    return Facts(capacity, max_tokens, digest)


def create_file(path: Path, facts: Facts) -> int:
    """Creates an empty store and reserves all its room: a full disk raises here."""
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    try:
        size = HEADER_BYTES + index_bytes(facts.capacity)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(number, 0, size)
        else:
            for at in range(0, size, 1 << 20):
                os.pwrite(number, bytes(min(1 << 20, size - at)), at)
        body = _HEADER.pack(
            _MAGIC, _BYTE_ORDER, _VERSION, facts.capacity, facts.max_tokens, facts.digest
        )
        slot = _SLOT.pack(0, 0, 0)
        os.pwrite(number, slot + _SUM.pack(zlib.crc32(slot)), _SLOTS[0])
        os.pwrite(number, body + _SUM.pack(zlib.crc32(body)), 0)
    except BaseException:
        os.close(number)
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return number


def capacity_of(n_bytes: int) -> int:
    """The number of tokens that a store of n bytes has room for."""
    low, high = 0, MAX_CAPACITY
    while low < high:
        middle = (low + high + 1) // 2
        if HEADER_BYTES + index_bytes(middle) <= n_bytes:
            low = middle
        else:
            high = middle - 1
    if low < _LEAST_CAPACITY:
        least = HEADER_BYTES + index_bytes(_LEAST_CAPACITY)
        raise ArgumentError(f"a draft memory of {n_bytes} bytes is too small: at least {least}")
    return low
