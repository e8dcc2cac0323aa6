"""Chats with pictures: a projector, and the rows of the pictures that it has read last."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyllama_spec.chat.pictures import Picture, decode_picture, split_at
from pyllama_spec.chat.prompt_provenance import tokenize_chat
from pyllama_spec.chat.template import RenderedChat
from pyllama_spec.engine import Model
from pyllama_spec.engine.media import MediaRows, Part, PlacedRows, Projector, joined
from pyllama_spec.errors import ModelLoadError, UnsupportedError

# Rows of pictures are kept up to so many bytes: each turn of a chat sends its pictures again.
_MAX_KEPT = 256 << 20

# mmproj_path of the projector that lies beside the model's file, if one does.
BESIDE = "auto"

Prompt = tuple[tuple[int, ...], tuple[PlacedRows, ...]]


class Eyes:
    """Makes prompts of rendered chats with marks in them; see chat/pictures.py."""

    def __init__(self, projector: Projector) -> None:
        self.projector = projector
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._kept: OrderedDict[bytes, tuple[Part, ...]] = OrderedDict()

    @classmethod
    def open(cls, model: Model, given: str | os.PathLike[str], **options: Any) -> Eyes | None:
        """The Projector that mmproj_path names; None where none lies beside the model."""
        if given != BESIDE:
            return cls(Projector(model, given, **options))
        for path in projectors_beside(model.path):
            with contextlib.suppress(ModelLoadError, UnsupportedError):  # of another model
                return cls(Projector(model, path, **options))
        return None

    def prompt(self, rendered: RenderedChat, pictures: Mapping[str, Picture]) -> Prompt:
        """The ids of a chat, and the rows of its pictures."""
        vocab, parts = self.projector.model.vocab, list[Part]()
        for piece in split_at(rendered, list(pictures)):
            if isinstance(piece, str):
                parts += self._parts_of(pictures[piece])
            elif parts:
                parts.append(tuple(tokenize_chat(vocab, piece.text, piece.caller)))
            else:
                parts.append(tuple(piece.tokenize(vocab)))
        return joined(parts)

    def _parts_of(self, picture: Picture) -> tuple[Part, ...]:
        import hashlib  # not for a model without pictures

        key = hashlib.sha256(picture[0]).digest()
        parts = self._kept.get(key)
        if parts is None:
            # One at a time: decoding takes up to 700 MB, and the next client may have the same.
            with self._reading:
                parts = self._kept.get(key) or self.projector.image(decode_picture(*picture))
        with self._lock:
            self._kept[key] = parts
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and sum(map(_n_bytes, self._kept.values())) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return parts

    def close(self) -> None:
        """Frees the projector and the rows; what other threads compute is cancelled."""
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


def _n_bytes(parts: tuple[Part, ...]) -> int:
    return sum(part.rows.nbytes for part in parts if isinstance(part, MediaRows))
