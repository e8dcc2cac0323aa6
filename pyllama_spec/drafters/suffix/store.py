"""A store on disk of texts to copy from, of one vocabulary, under a name the owner gives.

Several processes read one file at once, and one at a time writes. A process that finds it locked
keeps its texts until the next time, so none waits for a file. A fault of the store while
a text is generated gives one warning, and the text continues.

It is a mapped file and not sqlite, which was tried: that took 36 us for a committed token at 24 MB,
where 35 us at 1 GB are promised, and wrote texts 10 to 20 times slower.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyllama_spec.drafters.suffix.memory import (
    RememberedText,
    entry_of,
    fill,
    note_use,
    room_for,
    texts_of,
)
from pyllama_spec.drafters.suffix.store_file import (
    MODE,
    Facts,
    StoreFile,
    capacity_of,
    create_file,
    reserves_room,
)
from pyllama_spec.drafters.suffix.token_index import TokenIndex
from pyllama_spec.engine.closeable import closed_on_failure
from pyllama_spec.engine.vocab import Vocab
from pyllama_spec.errors import (
    ArgumentError,
    BusyError,
    ForkedError,
    ModelLoadError,
    PyllamaSpecError,
    shown,
    warn,
)

DEFAULT_BYTES = 256 << 20
_FIRST_CAPACITY = 1 << 13
# Texts that wait for the lock.
_MAX_WAITING = 64
# What _draft_name() adds to a store's name.
_DRAFT_NAME = re.compile(r"\.(\d+)-[0-9a-f]+\.new")
# A file that is older is not of this process, though one before had its number: in a container the
# first process always has the same. Clocks of file systems are coarse.
_STARTED = time.time() - 1.0


def vocabulary_digest(vocab: Vocab) -> bytes:
    """A digest of a vocabulary, which gives the store's ids their meaning."""
    import hashlib  # loads a library of its own

    digest = hashlib.sha256()
    for i in range(vocab.n_tokens):
        piece = vocab.piece(i, special=True)
        digest.update(len(piece).to_bytes(4, "little") + piece)
    return digest.digest()


def _remedy(path: Path, error: OSError, *, is_read_only: bool) -> str:
    """The remedy for a store that cannot be opened."""
    if isinstance(error, PermissionError):  # first: the folder cannot be looked at either
        rights = "read it" if is_read_only else "read and write it"
        return f"give this user the right to {rights}, or name another file"
    if not path.parent.is_dir():
        return f"make the folder {path.parent}, or name a file in another one"
    return "name another file"


def _erase(path: Path) -> None:
    """Overwrites a store's closed file, which may still hold forgotten text."""
    with contextlib.suppress(OSError, ModelLoadError):  # what is not a store has no texts
        file = StoreFile(
            os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), path, is_writable=True
        )
        file.erase()
        file.close()


class Store:
    """An open store.

    Args:
        path: its file, or a link to it. It is made where there is none, with mode 0600, and its
            mode is set to that.
        digest: the digest of the vocabulary, [32] bytes; None to accept any vocabulary.
        max_bytes: the size to which a new store may grow; None for DEFAULT_BYTES, 256 MiB.
        is_read_only: whether the file is opened for reading only.
        whose: the owner of the vocabulary, for messages.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        digest: bytes | None,
        *,
        max_bytes: int | None = None,
        is_read_only: bool = False,
        whose: str = "this model",
    ) -> None:
        self._digest, self._is_read_only, self._pid = digest, is_read_only, os.getpid()
        self._whose, self._is_made = whose, False
        # Whether the file system holds room for a file before it is written; None: not tried yet.
        self._reserves_room: bool | None = None
        self._max_tokens = capacity_of(DEFAULT_BYTES if max_bytes is None else max_bytes)
        self._waiting: deque[tuple[list[int], list[int]]] = deque(maxlen=_MAX_WAITING)
        self._uses: deque[tuple[int, int]] = deque(maxlen=_MAX_WAITING)
        self._has_warned = False
        self.path = Path(path)
        try:
            # Of a link what it names is the store: a larger file that takes the name must be that
            # one. And it stays the same file if the program goes to another folder.
            is_link = self.path.is_symlink()
            self.path = self.path.resolve() if is_link else self.path.absolute()
            self._file = self._open()
        except OSError as error:
            raise ModelLoadError(
                f"the draft memory {self.path} cannot be opened: {error.strerror or error}; "
                f"{_remedy(self.path, error, is_read_only=is_read_only)}"
            ) from None
        except PyllamaSpecError:
            raise
        except (ValueError, RuntimeError) as error:  # a NUL, a lone surrogate, a loop of links
            raise ArgumentError(
                f"draft_memory={shown(os.fspath(path))} is not a file name: {error}; give another"
            ) from None
        if self._is_read_only and not is_read_only:
            warn(
                f"the draft memory {self.path} can only be read by this user: texts are not "
                "remembered; give the right to write it, or name another file",
            )
        if self._file.is_damaged and not self._is_read_only:
            with self.locked():
                pass

    @property
    def index(self) -> TokenIndex:
        """The index of the texts."""
        return self._file.index

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._file.size

    @property
    def max_tokens(self) -> int:
        """The maximum number of tokens of the store."""
        return self._file.facts.max_tokens

    @property
    def digest(self) -> bytes:
        """The digest of the vocabulary of its ids."""
        return self._file.facts.digest

    def _open(self) -> StoreFile:
        """Opens the file, and creates it if it is missing."""
        number, is_writable = self._descriptor()
        file = StoreFile(number, self.path, is_writable=is_writable)
        digest = file.facts.digest
        if self._digest is not None and digest != self._digest:
            file.close()
            raise ArgumentError(
                f"the draft memory {self.path} was made with another vocabulary ("
                f"{digest.hex()[:12]}, {self._whose} has {self._digest.hex()[:12]}): ids mean "
                "other texts there; name a file of its own for each tokenizer"
            )
        self._digest = digest
        if is_writable and os.fstat(number).st_mode & 0o077:
            os.fchmod(number, MODE)
        return file

    def _descriptor(self) -> tuple[int, bool]:
        flags = os.O_CLOEXEC | os.O_NONBLOCK
        for _ in range(3):
            try:
                if not self._is_read_only:
                    with contextlib.suppress(PermissionError):
                        return os.open(self.path, os.O_RDWR | flags), True
                    self._is_read_only = True
                return os.open(self.path, os.O_RDONLY | flags), False
            except FileNotFoundError:
                if self._digest is None or self._is_read_only:
                    raise
            with contextlib.suppress(FileExistsError):  # another process was quicker
                self._create_new()
        raise ModelLoadError(
            f"the draft memory {self.path} was deleted at each try to open it; name another file"
        )

    def _create_new(self) -> None:
        """Creates an empty file beside the name, and links it unless the name was taken since."""
        assert self._digest is not None
        draft = self._draft_name()
        facts = Facts(min(_FIRST_CAPACITY, self._max_tokens), self._max_tokens, self._digest)
        os.close(create_file(draft, facts))
        try:
            # A writer on another machine may have taken the draft for one that was left.
            with contextlib.suppress(FileNotFoundError):
                os.link(draft, self.path)
                self._is_made = True
        finally:
            draft.unlink(missing_ok=True)

    def _draft_name(self) -> Path:
        return self.path.with_name(f"{self.path.name}.{os.getpid()}-{os.urandom(6).hex()}.new")

    # ---- while requests are served

    def refresh(self) -> None:
        """Called when a request begins: reads what other processes have written."""
        with self._harmless():
            if not self._is_current():
                self._reopen()
            self._file.refresh()

    def _is_current(self) -> bool:
        try:
            info = self.path.stat()
        except OSError:  # it was deleted: what is mapped can be read still
            return True
        return (info.st_dev, info.st_ino) == self._file.inode

    def _reopen(self) -> None:
        old, self._file = self._file, self._open()
        self._uses.clear()
        old.close()

    def note_use(self, at: int, n: int) -> None:
        """Counts copied tokens that were accepted; written with the next text."""
        self._uses.append((at, n))

    def add(self, ids: Sequence[int], origins: Sequence[int] = ()) -> None:
        """Adds the text of an ended request; it may be written later, or never."""
        if self._is_read_only:
            return
        self._waiting.append((list(ids), list(origins)))
        with self._harmless(), contextlib.suppress(BusyError, ForkedError), self.locked():
            while self._waiting:
                text, its_origins = self._waiting.popleft()
                self._write(text, origins=its_origins)

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        """Turns an error beside a request into one warning."""
        try:
            yield
        except (OSError, ArgumentError, ModelLoadError, ValueError) as error:
            self._waiting.clear()
            if not self._has_warned:
                self._has_warned = True
                reason = getattr(error, "strerror", None) or error
                warn(
                    f"the draft memory {self.path} cannot be written or read: {reason}; texts are "
                    "not remembered",
                )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock, which excludes other writers."""
        import fcntl  # on systems that have it

        if os.getpid() != self._pid:
            raise ForkedError(
                f"the draft memory {self.path} was opened before this process was forked; open it "
                "again here"
            )
        if self._is_read_only:
            raise ArgumentError(
                f"the draft memory {self.path} can only be read here: give this user the right to "
                "write it, or name another file"
            )
        for _ in range(8):
            try:
                fcntl.flock(self._file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._busy() from None
            if self._has_name():
                break
            self._reopen()  # replaced or deleted: then it is made again
        else:
            raise self._busy()
        try:
            self._file.recover()
            self._file.refresh()
            while self._uses:
                note_use(self.index, *self._uses.popleft())
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._file.number, fcntl.LOCK_UN)

    def _busy(self) -> BusyError:
        return BusyError(
            f"the draft memory {self.path} is being written by another process; try again"
        )

    def _has_name(self) -> bool:
        try:
            info = self.path.stat()
        except FileNotFoundError:
            return False
        return (info.st_dev, info.st_ino) == self._file.inode

    def _write(self, ids: Sequence[int], **about: Any) -> None:
        """With the lock held: writes the new part of a text; see entry_of() for the rest."""
        entry = entry_of(self.index, ids, self.max_tokens, **about)
        if not len(entry):
            return
        room = room_for(self.index, len(entry), self.max_tokens, is_due=self._has_holes_to_fill())
        if room is not None:
            self._replace(room.texts, room.capacity, ages=room.is_full)
        self._file.publish(is_busy=True)
        self.index.append(entry)
        self._file.publish()

    def _has_holes_to_fill(self) -> bool:
        """Whether the file has holes to fill: writing into one on a full disk kills the process."""
        if not self._file.has_holes:
            return False
        if self._reserves_room is None:
            self._reserves_room = reserves_room(self._draft_name(), self.digest)
        return self._reserves_room

    # ---- for its owner

    def write_all(self, texts: Sequence[Sequence[int]]) -> None:
        """Writes texts now."""
        with self.locked():
            for ids in texts:
                self._write(ids)

    def take(self, texts: Iterable[RememberedText]) -> int:
        """Writes texts of other stores of the same vocabulary now, all or none."""
        with self.locked():
            self._delete_left_behind()
            limit, n_new = self.max_tokens, 0
            known = self.texts()
            n = sum(text.n_entry for text in known)
            file, draft = self._drafted(known, min(max(2 * n, _FIRST_CAPACITY), limit), limit)
            try:
                for text in texts:
                    entry = entry_of(
                        file.index, text.ids.tolist(), limit, minute=text.minute,
                        n_used=text.n_used, origins=text.origins.tolist(),
                    )  # fmt: skip
                    if not len(entry):
                        continue
                    room = room_for(file.index, len(entry), limit)
                    if room is not None:
                        smaller, its_name = file, draft
                        file, draft = self._drafted(
                            room.texts, room.capacity, limit, ages=room.is_full
                        )
                        its_name.unlink()
                        smaller.close()
                    file.index.append(entry)
                    n_new += 1
                file.publish()
                if n_new:
                    self._adopt(file, draft)
                else:
                    draft.unlink()
                    file.close()
            except BaseException:
                draft.unlink(missing_ok=True)
                file.close()
                raise
        return n_new

    def texts(self) -> list[RememberedText]:
        """All texts, the oldest first. The ids are views."""
        self._file.refresh()
        return list(texts_of(self.index))

    def keep(self, texts: Sequence[RememberedText], *, max_tokens: int | None = None) -> None:
        """With the lock held: reduces the store to these texts.

        What it held is overwritten on the disk.
        """
        n_names = self.path.stat().st_nlink
        if n_names > 1:
            raise ArgumentError(
                f"the draft memory {self.path} has {n_names} names (hard links), and what is "
                "removed is overwritten under all of them: copy it with cp, and delete this name"
            )
        limit = self.max_tokens if max_tokens is None else max_tokens
        n = sum(text.n_entry for text in texts)
        self._replace(texts, min(max(n + n // 4, _FIRST_CAPACITY), limit), limit, erases=True)

    def _replace(
        self,
        texts: Sequence[RememberedText],
        capacity: int,
        max_tokens: int | None = None,
        *,
        ages: bool = False,
        erases: bool = False,
    ) -> None:
        """With the lock held: a new file with these texts takes the name. The lock stays."""
        limit = self.max_tokens if max_tokens is None else max_tokens
        self._delete_left_behind()
        self._adopt(*self._drafted(texts, capacity, limit, ages=ages), erases=erases)

    def _delete_left_behind(self) -> None:
        """With the lock held: erases and deletes the files of killed writers."""
        for left in self.path.parent.glob(glob.escape(self.path.name) + ".*.new"):
            if self._is_left_behind(left):
                _erase(left)
                left.unlink(missing_ok=True)

    def _drafted(
        self,
        texts: Sequence[RememberedText],
        capacity: int,
        max_tokens: int,
        *,
        ages: bool = False,
    ) -> tuple[StoreFile, Path]:
        """With the lock held: creates a new file with these texts, and returns its current name."""
        import fcntl

        draft = self._draft_name()
        number = create_file(draft, Facts(capacity, max_tokens, self.digest))
        try:
            file = StoreFile(number, self.path, is_writable=True)
            with closed_on_failure(file):
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fill(file.index, texts, ages=ages)
                file.publish()
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return file, draft

    def _adopt(self, file: StoreFile, draft: Path, *, erases: bool = False) -> None:
        """With the lock held: gives the store's name to a file of _drafted(), and opens it."""
        try:
            draft.replace(self.path)
        except BaseException:
            file.close()
            draft.unlink(missing_ok=True)
            raise
        old, self._file = self._file, file
        if erases:
            old.erase()
        old.close()

    def delete_if_made(self) -> None:
        """Deletes the file if this object created it and nobody wrote to it since."""
        if not self._is_made:
            return
        with contextlib.suppress(BusyError, OSError, ModelLoadError), self.locked():
            if not self.index.n:
                self.path.unlink()

    def _is_left_behind(self, path: Path) -> bool:
        """Whether a writer of this store was killed before it renamed this file."""
        found = _DRAFT_NAME.fullmatch(path.name.removeprefix(self.path.name))
        if found is None or path.is_symlink() or not path.is_file():
            return False
        pid = int(found[1])
        if pid == os.getpid():
            return path.stat().st_mtime < _STARTED
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            pass
        return False

    def close(self) -> None:
        """Releases the file. May be called twice."""
        self._file.close()
