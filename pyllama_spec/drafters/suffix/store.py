"""A store on disk of texts to copy from, of one vocabulary, under a name the owner gives.

It is an SQLite file, so transactions, locks and recovery are SQLite's. Each process holds the texts
and their index in memory, and reads what others have added when a request begins. A process that
finds the file locked keeps its texts until the next time, so none waits for a file. A fault of the
store while a text is generated gives one warning, and the text continues.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from pyllama_spec.drafters.suffix.memory import Memory, RememberedText
from pyllama_spec.drafters.suffix.token_index import index_bytes
from pyllama_spec.engine.closeable import closed_on_failure
from pyllama_spec.engine.vocab import Vocab
from pyllama_spec.errors import (
    LATER,
    ArgumentError,
    BusyError,
    ForkedError,
    ModelLoadError,
    PyllamaSpecError,
    warn,
)

DEFAULT_BYTES = 256 << 20
_MODE = 0o600
_LEAST_TOKENS, _MOST_TOKENS = 1 << 10, 1 << 30
# The largest number that is read from a file, but for minutes: what is added to it stays an
# INTEGER of SQLite.
_MOST, _MOST_MINUTES = 1 << 62, 1 << 31
# Texts that wait for the lock.
_MAX_WAITING = 64
# In the header of the SQLite file: whose it is, and the version of its tables.
_APPLICATION, _VERSION = 0x504C4D45, 2
_NUMBERS = "key INTEGER PRIMARY KEY, minute INTEGER, parent INTEGER, n_before INTEGER"
_TABLES = (
    "CREATE TABLE facts (digest BLOB, max_tokens INTEGER, generation INTEGER)",
    f"CREATE TABLE texts ({_NUMBERS}, ids BLOB, origins BLOB)",
)
_REMEDY = "name another file, or delete it if it was a draft memory"
# What a file may not do though it is damaged or forged, and what is deleted is overwritten. The
# file survives a killed process; a power failure may cost it, and nothing waits for the disk.
_SETTINGS = (
    "PRAGMA trusted_schema=OFF", "PRAGMA cell_size_check=ON", "PRAGMA mmap_size=0",
    "PRAGMA secure_delete=ON", "PRAGMA temp_store=MEMORY", "PRAGMA synchronous=OFF",
)  # fmt: skip
# How long another process is waited for: when a store is opened, and beside requests.
_OPENING_MS, _SERVING_MS = 5000, 20


def vocabulary_digest(vocab: Vocab) -> bytes:
    """A digest of a vocabulary, which gives the store's ids their meaning."""
    import hashlib  # loads a library of its own

    digest = hashlib.sha256()
    for i in range(vocab.n_tokens):
        piece = vocab.piece(i, special=True)
        digest.update(len(piece).to_bytes(4, "little") + piece)
    return digest.digest()


def capacity_of(n_bytes: int) -> int:
    """The number of tokens whose index takes n bytes."""
    n = bisect_right(range(_MOST_TOKENS + 1), n_bytes, key=index_bytes) - 1
    if n < _LEAST_TOKENS:
        raise ArgumentError("max_bytes", n_bytes, f"at least {index_bytes(_LEAST_TOKENS)}")
    return n


class Store(Memory):
    """An open store.

    Args:
        path: its file, or a link to it. It is made where there is none, with mode 0600, and its
            mode is set to that.
        digest: the digest of the vocabulary, [32] bytes; None to accept any vocabulary.
        max_bytes: the bytes of memory to which a new store may grow; None for DEFAULT_BYTES,
            256 MiB.
        is_read_only: whether the file is opened for reading only.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        digest: bytes | None,
        *,
        max_bytes: int | None = None,
        is_read_only: bool = False,
    ) -> None:
        max_tokens = capacity_of(DEFAULT_BYTES if max_bytes is None else max_bytes)
        super().__init__(max_tokens)
        self._is_read_only, self._pid, self._is_made = is_read_only, os.getpid(), False
        self._has_warned = self._shrinks = False
        self._waiting: deque[tuple[list[int], list[int]]] = deque(maxlen=_MAX_WAITING)
        # Of the file: SQLite's count of other connections' changes, the newest text that was read,
        # and how often texts were removed.
        self._seen, self._newest, self._generation = -1, 0, -1
        try:
            self.path = Path(path).resolve()
            os.access(self.path, os.F_OK)  # Windows resolves a NUL too
        except (ValueError, RuntimeError):  # a NUL, a lone surrogate, a loop of links
            raise ArgumentError("draft_memory", path, "the name of a file") from None
        try:
            self._file = self._connect(may_make=digest is not None)
        except OSError as error:
            raise ModelLoadError(
                f"the draft memory {path} cannot be opened: {error.strerror or error}; name "
                "another file, or give this user the right to read and write it"
            ) from None
        try:
            with closed_on_failure(self), self._readable():
                self._prepare(digest)
                self._read()
                self._file.execute(f"PRAGMA busy_timeout={_SERVING_MS}")
        except BaseException:
            if self._is_made:  # as on a full disk
                self.path.unlink(missing_ok=True)
            raise
        if self._is_read_only and not is_read_only:
            warn(
                f"the draft memory {self.path} can only be read by this user: texts are not "
                "remembered; give the right to write it, or name another file",
            )

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    # ---- opening

    def _connect(self, *, may_make: bool) -> sqlite3.Connection:
        """Opens the file, and creates an empty one if it is missing."""
        if may_make and not self._is_read_only:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, _MODE))
                self._is_made = True
        # SQLite opens the journal that a killed writer left, and would wait at a pipe.
        info, journal = self.path.stat(), Path(f"{self.path}-journal")
        if not stat.S_ISREG(info.st_mode) or (journal.exists() and not journal.is_file()):
            raise ModelLoadError(f"the draft memory {self.path} is not a file; name another one")
        if not os.access(self.path, os.R_OK):
            raise PermissionError(13, "Permission denied")
        can_write = os.access(self.path, os.W_OK)
        self._is_read_only = self._is_read_only or not can_write
        if not self._is_read_only and info.st_mode & 0o077:
            self.path.chmod(_MODE)
        # A reader too undoes what a killed writer left, if it may.
        mode = "rw" if can_write else "ro"
        try:
            return sqlite3.connect(
                f"{self.path.as_uri()}?mode={mode}", uri=True, isolation_level=None,
                check_same_thread=False, timeout=_OPENING_MS / 1000,
            )  # fmt: skip
        except sqlite3.Error as error:
            raise self._refused(str(error)) from None

    def _refused(self, why: str, remedy: str = _REMEDY) -> ModelLoadError:
        return ModelLoadError(f"the draft memory {self.path} cannot be used: {why}; {remedy}")

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """Turns SQLite's errors into those of a busy, damaged or foreign file."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if _is_locked(error):
                raise BusyError(
                    f"the draft memory {self.path} is being used by another process", remedy=LATER
                ) from None
            raise self._refused(str(error), "see whether its disk is full") from None
        except (sqlite3.Error, UnicodeDecodeError) as error:  # a message may quote the file
            raise self._refused(str(error)) from None

    def _prepare(self, digest: bytes | None) -> None:
        """Checks that the file is a store of this vocabulary, and makes the tables of an empty one.

        Nothing else than the two tables may be there, so that a file can run no code of its own.
        """
        run = self._file.execute
        self._file.text_factory = lambda data: data.decode(errors="replace")
        for setting in _SETTINGS:
            run(setting)
        if not self._is_read_only and digest is not None and not self._tables():
            with self._transaction("BEGIN IMMEDIATE"):
                if not self._tables() and not run("PRAGMA application_id").fetchone()[0]:
                    for table in _TABLES:
                        run(table)
                    run("INSERT INTO facts VALUES (?, ?, 0)", (digest, self.max_tokens))
                    run(f"PRAGMA application_id={_APPLICATION}")
                    run(f"PRAGMA user_version={_VERSION}")
        if run("PRAGMA application_id").fetchone()[0] != _APPLICATION:
            raise self._refused("it is not a draft memory")
        version = run("PRAGMA user_version").fetchone()[0]
        if version != _VERSION or sorted(self._tables()) != sorted(_TABLES):
            raise self._refused(
                f"it has version {version}, and this program reads version {_VERSION}"
            )
        self.digest, self.max_tokens, _ = self._facts()
        if digest is not None and digest != self.digest:
            raise ArgumentError(
                "draft_memory", self.path, problem="was made with another vocabulary: ids mean "
                "other texts there", remedy="name a file of its own for each tokenizer",
            )  # fmt: skip

    def _tables(self) -> list[str]:
        return [str(sql) for (sql,) in self._file.execute("SELECT sql FROM sqlite_master")]

    def _facts(self) -> tuple[bytes, int, int]:
        """The digest, the maximum number of tokens, and how often texts were removed."""
        match self._file.execute("SELECT digest, max_tokens, generation FROM facts").fetchall():
            case [(bytes(digest), int(max_tokens), int(generation))] if (
                _LEAST_TOKENS <= max_tokens <= _MOST_TOKENS and 0 <= generation < _MOST
            ):
                return digest, max_tokens, generation
        raise self._refused("its facts are damaged")

    # ---- what the file holds

    def _read(self) -> None:
        """Reads what other processes have written since."""
        run = self._file.execute
        seen = run("PRAGMA data_version").fetchone()[0]
        if seen == self._seen:
            return
        with self._transaction("BEGIN"):  # one state for all of it
            _, self.max_tokens, generation = self._facts()
            newest = self._newest if generation == self._generation else 0
            texts, newest = self._texts_after(newest)
        if generation != self._generation:
            self.replace(texts)
        elif texts:
            n = sum(one.n_entry for one in texts)
            if self.index.n + n > self.index.capacity:
                self.replace([*self.held, *texts])
            else:
                self.load(texts)
        self._newest, self._generation, self._seen = newest, generation, seen

    def _texts_after(self, newest: int) -> tuple[list[RememberedText], int]:
        """The texts after one, in order, and the newest row: a forged file may have any number."""
        texts: list[RememberedText] = []
        n = 0
        query = "SELECT * FROM texts WHERE key > ? ORDER BY key"
        for row in self._file.execute(query, (newest,)):
            text = _text(row)
            n += 1 if text is None else text.n_entry
            if not newest < row[0] < _MOST or n > self.max_tokens:
                raise sqlite3.DatabaseError("its texts are damaged")
            newest = row[0]
            if text is not None:
                texts.append(text)
        return texts, newest

    def texts(self) -> list[RememberedText]:
        """All texts, the oldest first. The ids are views."""
        with self._readable():
            self._read()
        return list(self.held)

    # ---- while requests are served

    def refresh(self) -> None:
        """Called when a request begins: reads what other processes have written."""
        if os.getpid() == self._pid:
            with self._harmless():
                self._read()

    def add(self, ids: Sequence[int], origins: Sequence[int] = ()) -> None:
        """Adds the text of an ended request; it may be written later, or never."""
        if self._is_read_only:
            return
        self._waiting.append((list(ids), list(origins)))
        written = 0
        with self._harmless(), contextlib.suppress(BusyError, ForkedError), self.locked():
            for text, its_origins in self._waiting:
                self._write(text, its_origins)
            written = len(self._waiting)
        if written:
            self._waiting.clear()

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        """Turns an error beside a request into one warning."""
        try:
            yield
        except (OSError, PyllamaSpecError, sqlite3.Error) as error:
            if _is_locked(error):
                return
            self._waiting.clear()
            if not self._has_warned:
                self._has_warned = True
                warn(
                    f"the draft memory {self.path} cannot be written or read: {error}; texts are "
                    "not remembered",
                )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One transaction, which excludes other writers: all of it is written, or nothing."""
        if os.getpid() != self._pid:
            raise ForkedError(
                f"the draft memory {self.path} was opened before this process was forked; open it "
                "again here"
            )
        if self._is_read_only:
            raise ArgumentError(
                "draft_memory", self.path, problem="can only be read here",
                remedy="give this user the right to write it, or name another file",
            )  # fmt: skip
        with self._readable():
            with self._transaction("BEGIN IMMEDIATE"):
                self._read()
                yield
            if self._shrinks:
                self._shrinks = False
                self._erase()

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        """A transaction, or a part of one; undone, here and in the file, if anything raises."""
        if self._file.in_transaction:
            yield
            return
        self._file.execute(begin)
        try:
            yield
            self._file.execute("COMMIT")
        except BaseException:
            self._seen = self._generation = -1  # what is held here is read again
            self._shrinks = False
            with contextlib.suppress(sqlite3.Error):
                self._file.execute("ROLLBACK")
            raise

    def _write(
        self,
        ids: Sequence[int],
        origins: Sequence[int] = (),
        minute: int | None = None,
    ) -> bool:
        """With the lock held: writes the new part of a text; False if there is none."""
        text = self.put(ids, minute=minute, origins=origins)
        if text is None:
            return False
        text.key = self._newest = self._newest + 1
        numbers = (text.key, text.minute, text.parent, text.n_before)
        self._file.execute(
            "INSERT INTO texts VALUES (?, ?, ?, ?, ?, ?)",
            (*numbers, text.ids.astype("<i4").tobytes(), text.known_origins),
        )
        return True

    def drop_all_but(self, texts: Sequence[RememberedText]) -> None:
        """With the lock held: removes texts for room."""
        stay = {one.key for one in texts}
        gone = [(one.key,) for one in self.held if one.key not in stay]
        self._file.executemany("DELETE FROM texts WHERE key = ?", gone)
        self._file.execute("UPDATE facts SET generation = generation + 1")
        self._generation += 1

    # ---- for its owner

    def write_all(self, texts: Sequence[Sequence[int]]) -> None:
        """Writes texts now."""
        with self.locked():
            for ids in texts:
                self._write(ids)

    def take(self, texts: Iterable[RememberedText]) -> int:
        """Writes texts of other stores of the same vocabulary now, all or none."""
        with self.locked():
            return sum(
                self._write(one.ids.tolist(), one.known_origins, one.minute) for one in texts
            )

    def keep(self, texts: Sequence[RememberedText], *, max_tokens: int | None = None) -> None:
        """With the lock held: reduces the store to these texts.

        What it held is overwritten on the disk.
        """
        if max_tokens is not None:
            self.max_tokens = max_tokens
            self._file.execute("UPDATE facts SET max_tokens = ?", (max_tokens,))
        self.drop_all_but(texts)
        self.replace(texts)
        self._shrinks = True
        # The pages before the change are in the journal: it stays until it is overwritten.
        self._file.execute("PRAGMA journal_mode=PERSIST")

    def _erase(self) -> None:
        """Overwrites what was removed in the journal, and gives its room in the file back."""
        run = self._file.execute
        with contextlib.suppress(sqlite3.Error, OSError):
            run("BEGIN EXCLUSIVE")  # nobody else has a journal now
            try:
                with Path(f"{self.path}-journal").open("r+b") as journal:
                    journal.write(bytes(os.fstat(journal.fileno()).st_size))
            finally:
                run("COMMIT")
            run("PRAGMA journal_mode=DELETE")
            run("VACUUM")

    def delete_if_made(self) -> None:
        """Deletes the file if this object created it and nobody wrote to it since."""
        with contextlib.suppress(OSError, PyllamaSpecError):
            if self._is_made and not self.texts():
                self.close()
                self.path.unlink()

    def close(self) -> None:
        """Releases the file. May be called twice."""
        if os.getpid() == self._pid:
            self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()


def _is_locked(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def _text(row: tuple[object, ...]) -> RememberedText | None:
    """The text of a row; None for one that is damaged."""
    *numbers, ids, origins = row
    key, minute, parent, n_before = map(_number, numbers)
    if not isinstance(ids, bytes) or not isinstance(origins, bytes) or len(ids) % 4 or not ids:
        return None
    tokens = np.frombuffer(ids, "<i4").astype(np.int32)
    if int(tokens.min()) < 0:
        return None
    if len(origins) != len(tokens):
        origins = b""
    parent = parent if parent < key else 0  # else it would not end with a first text
    return RememberedText(tokens, min(minute, _MOST_MINUTES), origins, key, parent, n_before)


def _number(value: object) -> int:
    """A number of a row; 0 for one that is damaged."""
    return value if isinstance(value, int) and 0 <= value <= _MOST else 0
