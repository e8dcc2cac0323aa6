"""Turns tokens into whole characters, without stop strings, and tracks each token's text."""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyllama_spec.engine.vocab import Vocab


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a generation, in order, with the tokens that it comes from.

    Attributes:
        text: whole characters; "" only in the last piece.
        tokens: the ids of the text: several if a character is split across tokens.
        from_draft: for each token, whether it was drafted and accepted.
        finish_reason: "stop" or "length" on the last piece, else None.
    """

    text: str
    tokens: tuple[int, ...] = ()
    from_draft: tuple[bool, ...] = ()
    finish_reason: str | None = None

    @property
    def is_drafted(self) -> bool:
        """Whether the piece has tokens, all of them drafted and accepted."""
        return bool(self.from_draft) and all(self.from_draft)


@dataclass(slots=True)
class _Group:
    """Tokens that together end at a whole character. Offsets count characters of the output."""

    start: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    from_draft: list[bool] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    def as_piece(self) -> Piece:
        return Piece(self.text, tuple(self.tokens), tuple(self.from_draft))

    def truncated(self, at: int) -> Piece:
        """The part before character `at`, where the text ends."""
        n = sum(start < at for start in self.starts)
        text = self.text[: max(at - self.start, 0)]
        return Piece(text, tuple(self.tokens[:n]), tuple(self.from_draft[:n]))


class Detokenizer:
    """Turns tokens into text, and emits it once no stop string can contain it.

    A stop is looked for after every token, so that the text does not depend on how many tokens a
    round committed. The stop string that begins first wins; of those that begin at one place the
    longest. One that ends within `min_tokens` has no effect.
    """

    def __init__(
        self,
        vocab: Vocab,
        stops: Sequence[str] = (),
        *,
        keep_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._vocab = vocab
        self._keep_stop, self._min_tokens = keep_stop, min_tokens
        # Where the text ended with the last token before which no stop string counts.
        self._n_unstoppable = 0
        self._stops = tuple(stops)
        self._sorted = sorted(self._stops)
        self._longest = max(map(len, self._stops), default=0)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._n_chars = 0
        # The text of the groups that are not emitted yet.
        self._held = ""
        self._complete: deque[_Group] = deque()
        self._open = _Group(0)
        self.stop: str | None = None
        self.n_fed = 0

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string occurred."""
        return self.stop is not None

    def feed(self, token: int, *, from_draft: bool = False) -> list[Piece]:
        """Takes the next token; returns the text that can be emitted."""
        group = self._open
        self.n_fed += 1
        text = self._decoder.decode(self._vocab.piece(token))
        group.tokens.append(token)
        group.from_draft.append(from_draft)
        group.starts.append(self._n_chars)
        group.text += text
        self._n_chars += len(text)
        self._held += text
        # A control token has no text: it goes with what follows it.
        if group.text and not self._decoder.getstate()[0]:
            self._complete.append(group)
            self._open = _Group(self._n_chars)
        if self.n_fed <= self._min_tokens:
            self._n_unstoppable = self._n_chars
        elif text and (first_stop := self._find_stop()) is not None:
            at, self.stop = first_stop
            at += len(self.stop) if self._keep_stop else 0
            return self._end_at(self._n_chars - len(self._held) + at)
        return self._release(self._n_chars - self._n_uncertain())

    def flush(self) -> list[Piece]:
        """Returns the remaining text. Drops an unfinished character, but not its tokens."""
        pieces = self._release(self._n_chars)
        if self._open.tokens:
            pieces.append(self._open.as_piece())
            self._open = _Group(self._n_chars)
        return pieces

    def _find_stop(self) -> tuple[int, str] | None:
        """The position of the first stop string in the held text, and the string."""
        held, n_barred = self._held, self._n_unstoppable - (self._n_chars - len(self._held))
        stops = [
            (at, -len(stop), stop)
            for stop in self._stops
            if (at := held.find(stop, max(n_barred - len(stop) + 1, 0))) >= 0
        ]
        if not stops:
            return None
        at, _, stop = min(stops)
        return at, stop

    def _n_uncertain(self) -> int:
        """The length of the longest suffix of the text that a stop string starts with."""
        held, stops = self._held, self._sorted
        for n in range(min(self._longest - 1, len(held)), 0, -1):
            # Of the sorted stops, one that begins with these characters comes at or after them.
            at = bisect_right(stops, held[-n:])
            if at < len(stops) and stops[at].startswith(held[-n:]):
                return n
        return 0

    def _release(self, limit: int) -> list[Piece]:
        pieces: list[Piece] = []
        while self._complete and self._complete[0].end <= limit:
            group = self._complete.popleft()
            self._held = self._held[len(group.text) :]
            pieces.append(group.as_piece())
        return pieces

    def _end_at(self, at: int) -> list[Piece]:
        groups = [*self._complete, self._open]
        self._complete.clear()
        self._open, self._held = _Group(at), ""
        return [group.truncated(at) for group in groups if group.start < at]


class TokenByToken(Detokenizer):
    """Emits each token at once, whether it ends on a whole character or not."""

    def feed(self, token: int, *, from_draft: bool = False) -> list[Piece]:
        """Emits the next token."""
        self.n_fed += 1
        text = self._vocab.piece(token).decode(errors="replace")
        return [Piece(text, (token,), (from_draft,))]
