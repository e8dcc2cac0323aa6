"""Chats with pictures: a projector, and the rows of the pictures that it has read last."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from pyllama_spec.chat.pictures import Picture, prepared, split_at
from pyllama_spec.chat.prompt_provenance import tokenize_chat
from pyllama_spec.chat.template import RenderedChat
from pyllama_spec.engine import Model
from pyllama_spec.engine.media import MediaRows, Part, PlacedRows, Prepared, Projector, joined
from pyllama_spec.errors import (
    CancelledError,
    ClosedError,
    ContextFullError,
    DeadlineError,
    ForkedError,
    ModelLoadError,
    UnsupportedError,
)
from pyllama_spec.requests.runner import LATE

# Rows of pictures are kept up to so many bytes: each turn of a chat sends its pictures again.
_MAX_KEPT = 256 << 20

# How soon a request that waits for its turn notices that nobody waits for it.
_RECHECK_S = 0.1

# mmproj_path of the projector that lies beside the model's file, if one does.
BESIDE = "auto"

Prompt = tuple[tuple[int, ...], tuple[PlacedRows, ...]]


class Asking:
    """Whether somebody still waits for the pictures of a request. Used from any thread."""

    reason: CancelledError | None = None  # why nobody does
    eyes: Eyes | None = None  # that read them

    def give_up(self, reason: CancelledError | None = None) -> None:
        """Ends the reading of them, queued or running, and that of no other request."""
        self.reason = self.reason or reason or CancelledError("the generation was cancelled")
        if self.eyes is not None:
            self.eyes.stop(self)

    def check(self) -> None:
        """Raises the reason if nobody waits."""
        if self.reason is not None:
            raise self.reason


# Of the call that is being made; see called() in llama.py.
ASKING: ContextVar[Asking | None] = ContextVar("ASKING", default=None)


class Eyes:
    """Makes prompts of rendered chats with marks in them; see chat/pictures.py.

    One request at a time reads pictures: decoding takes up to 700 MB, and the next client may have
    the same ones.
    """

    def __init__(self, projector: Projector) -> None:
        self.projector = projector
        self._lock, self._reading = threading.Lock(), threading.Lock()
        # By user and content: one user's pictures are not looked up for another one.
        self._kept: OrderedDict[tuple[str, bytes], tuple[Part, ...]] = OrderedDict()
        self._asking: set[Asking] = set()
        self._reads: Asking | None = None
        self._is_closed = False

    @classmethod
    def open(cls, model: Model, given: str | os.PathLike[str], **options: Any) -> Eyes | None:
        """The Projector that mmproj_path names; None where none lies beside the model."""
        if given != BESIDE:
            return cls(Projector(model, given, **options))
        for path in projectors_beside(model.path):
            with contextlib.suppress(ModelLoadError, UnsupportedError):  # of another model
                return cls(Projector(model, path, **options))
        return None

    def prompt(
        self, rendered: RenderedChat, pictures: Mapping[str, Picture], n_ctx: int, user: str,
        timeout_s: float | None = None,
    ) -> Prompt:  # fmt: skip
        """The ids of a chat, and the rows of its pictures.

        Raises:
            ContextFullError: they do not fit; no row is computed then.
            UnsupportedError: the template leaves out a picture.
            CancelledError: the request was given up, or cancel() was called.
            DeadlineError: timeout_s has passed.
            ForkedError: the projector belongs to the parent of this forked process.
        """
        import hashlib  # not for a model without pictures

        if self.projector.is_forked:  # a thread that only the parent has may hold the locks
            raise ForkedError("the projector belongs to the parent process; open it in the child")
        pieces = list(split_at(rendered, list(pictures)))
        wanted = {
            mark: (user, hashlib.sha256(pictures[mark].content).digest())
            for mark in pieces if isinstance(mark, str)
        }  # fmt: skip
        for mark in pictures.keys() - wanted.keys():
            raise UnsupportedError(
                "is not shown by the chat template", param=pictures[mark].param,
                remedy="give another chat_template",
            )  # fmt: skip
        with contextlib.ExitStack() as stack:
            found = {mark: self._kept_of(key) for mark, key in wanted.items()}
            if None in found.values():
                stack.enter_context(self._turn(timeout_s))
                found = {mark: self._kept_of(key) for mark, key in wanted.items()}
            read: list[tuple[Part, ...] | Prepared] = []
            n_tokens = 0
            for piece in pieces:
                one: tuple[Part, ...] | Prepared
                if not isinstance(piece, str):
                    one = (self._tokens(piece, is_first=not read),)
                else:
                    one = found[piece] or prepared(self.projector, pictures[piece])
                read.append(one)
                n_tokens += one.n_tokens if isinstance(one, Prepared) else sum(map(_n_tokens, one))
                if n_tokens > n_ctx:  # a picture of 34 bytes takes megabytes and seconds
                    raise ContextFullError.of_prompt(n_tokens, n_ctx).copied(
                        setup="choose a larger `n_ctx`, or a smaller `image_max_tokens`"
                    )
            parts: list[Part] = []
            for piece, one in zip(pieces, read, strict=True):
                if isinstance(one, Prepared):
                    assert isinstance(piece, str)
                    one = self._computed(wanted[piece], one)
                parts += one
            return joined(parts)

    def _tokens(self, piece: RenderedChat, *, is_first: bool) -> tuple[int, ...]:
        vocab = self.projector.model.vocab
        if is_first:
            return tuple(piece.tokenize(vocab))
        return tuple(tokenize_chat(vocab, piece.text, piece.caller))

    def _kept_of(self, key: tuple[str, bytes]) -> tuple[Part, ...] | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _computed(self, key: tuple[str, bytes], media: Prepared) -> tuple[Part, ...]:
        # It may be twice in a prompt.
        parts = self._kept_of(key) or self.projector.computed(media)
        with self._lock:
            self._kept[key] = parts
            while len(self._kept) > 1 and sum(map(_n_bytes, self._kept.values())) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return parts

    # ---- who reads, and until when

    @contextlib.contextmanager
    def _turn(self, timeout_s: float | None) -> Iterator[None]:
        """The turn of the request that is made in this context."""
        asking = ASKING.get() or Asking()
        asking.eyes, timer = self, None
        if timeout_s is not None:
            timer = threading.Timer(timeout_s, asking.give_up, (DeadlineError(LATE),))
            timer.daemon = True
            timer.start()
        with self._lock:
            self._asking.add(asking)
        is_reading = False
        try:
            while not is_reading:
                asking.check()
                is_reading = self._reading.acquire(timeout=_RECHECK_S)
            with self._lock:
                asking.check()
                if self._is_closed:
                    raise ClosedError("the model is closed; open it again")
                self._reads = asking
                self.projector.cancel(False)
            yield
        except CancelledError as error:
            raise asking.reason or error from None
        finally:
            if timer is not None:
                timer.cancel()
            with self._lock:
                self._reads = None if self._reads is asking else self._reads
                self._asking.discard(asking)
            if is_reading:
                self._reading.release()

    def stop(self, asking: Asking) -> None:
        """Ends what the projector computes for a request, and nothing of another one."""
        with self._lock:
            if self._reads is asking and not self._is_closed:
                self.projector.cancel()

    def cancel(self) -> None:
        """Gives up all requests that read pictures now, or wait for it."""
        with self._lock:
            asked = list(self._asking)
        for asking in asked:
            asking.give_up()

    def close(self) -> None:
        """Frees the projector and the rows; what other threads compute is cancelled."""
        with self._lock:
            self._is_closed = True
            if not self.projector.is_closed:
                self.projector.cancel()
            self._kept.clear()
        self.projector.close()


def projectors_beside(target: Path) -> Iterator[Path]:
    """Projectors in a model's folder, by their names: the likeliest first.

    One is left out that has more words of its name in common with another model there.
    """
    with contextlib.suppress(OSError):
        files = sorted(target.parent.glob("*.gguf"))
        named = [path for path in files if "mmproj" in path.name.lower()]
        others = [_words(path) for path in files if path not in named and path != target]
        own = _words(target)
        named.sort(key=lambda path: -len(own & _words(path)))
        for path in named:
            words = _words(path)
            if all(len(words & own) >= len(words & other) for other in others):
                yield path


def _words(path: Path) -> set[str]:
    return set(re.split(r"[-_. ]", path.stem.lower()))


def _n_tokens(part: Part) -> int:
    return len(part.ids if isinstance(part, MediaRows) else part)


def _n_bytes(parts: tuple[Part, ...]) -> int:
    return sum(part.rows.nbytes for part in parts if isinstance(part, MediaRows))
