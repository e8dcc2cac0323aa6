"""Results in the shape of OpenAI's API, with two keys more: `speculation` and `timing`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from pyllama_spec.assembly import Piece
from pyllama_spec.completion import Generation, GenerationRecord
from pyllama_spec.engine import Vocab
from pyllama_spec.engine.closing import Closing
from pyllama_spec.logprobs import TokenLogprob, chat_logprobs, completion_logprobs

Response = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every object of one response says.

    Attributes:
        id: of the response.
        created: when it began, in seconds since 1970.
        model: what the caller calls the model.

    """

    id: str
    created: int
    model: str

    @classmethod
    def make(cls, prefix: str, model: str) -> Envelope:
        """A new one, with an id that begins with `prefix`."""
        return cls(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model)

    def wrap(self, kind: str, choice: Response) -> Response:
        """An object of the response."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": [choice],
        }


class Stream(Closing, Iterator[Response]):
    """Chunks of a response as they come.

    It holds the model's turn from its first chunk to the one with a finish_reason. A reader that
    leaves before closes it, by close(), `with`, or by dropping it.
    """

    def __init__(self, generation: Generation, chunks: Generator[Response, None, None]) -> None:
        self._generation = generation
        self._chunks = chunks

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Response:
        with self._generation.lock:
            return next(self._chunks)

    def close(self) -> None:
        """Ends it; a step that another thread computes is waited for. May be called twice."""
        with self._generation.lock:
            self._chunks.close()
            self._generation.close()


def figures(record: GenerationRecord) -> Response:
    """The keys that end every response: usage, speculation, timing."""
    return {
        "usage": record.usage,
        "speculation": record.stats.as_dict(),
        "timing": record.timing.as_dict(),
    }


def completion(
    generation: Generation, envelope: Envelope, vocab: Vocab, echo: str, *, logprobs: bool
) -> Response:
    """A whole text completion."""
    for _ in generation:
        pass
    record = generation.record
    choice: Response = {
        "text": echo + record.text,
        "index": 0,
        "logprobs": None,
        "finish_reason": record.finish_reason,
    }
    if logprobs:
        choice["logprobs"] = completion_logprobs(vocab, record.logprobs, len(echo))
    return {**envelope.wrap("text_completion", choice), **figures(record)}


def completion_chunks(
    generation: Generation, envelope: Envelope, vocab: Vocab, echo: str, *, logprobs: bool
) -> Generator[Response, None, None]:
    """A text completion in chunks; the last one has the finish_reason and the figures."""

    def chunk(text: str, finish: str | None = None, found: Response | None = None) -> Response:
        choice = {"text": text, "index": 0, "logprobs": found, "finish_reason": finish}
        return envelope.wrap("text_completion", choice)

    if echo:
        yield chunk(echo)
    offset = len(echo)
    for piece in generation:
        if piece.finish_reason is not None:
            yield {**chunk("", piece.finish_reason), **figures(generation.record)}
            return
        entries = _entries_of(piece, generation)
        found = completion_logprobs(vocab, entries, offset) if logprobs else None
        offset += len(piece.text)
        yield chunk(piece.text, found=found)


def chat_completion(
    generation: Generation, envelope: Envelope, vocab: Vocab, *, logprobs: bool
) -> Response:
    """A whole chat completion."""
    for _ in generation:
        pass
    record = generation.record
    choice: Response = {
        "index": 0,
        "message": {"role": "assistant", "content": record.text},
        "logprobs": chat_logprobs(vocab, record.logprobs) if logprobs else None,
        "finish_reason": record.finish_reason,
    }
    return {**envelope.wrap("chat.completion", choice), **figures(record)}


def chat_chunks(
    generation: Generation, envelope: Envelope, vocab: Vocab, *, logprobs: bool
) -> Generator[Response, None, None]:
    """A chat completion in chunks; the last one has the finish_reason and the figures."""

    def chunk(delta: Response, finish: str | None = None, found: Any = None) -> Response:
        choice = {"index": 0, "delta": delta, "logprobs": found, "finish_reason": finish}
        return envelope.wrap("chat.completion.chunk", choice)

    is_first = True
    for piece in generation:
        if is_first:
            # Only now: until the prompt is read, the request can still fail.
            yield chunk({"role": "assistant"})
            is_first = False
        if piece.finish_reason is not None:
            yield {**chunk({}, piece.finish_reason), **figures(generation.record)}
            return
        entries = _entries_of(piece, generation)
        found = chat_logprobs(vocab, entries) if logprobs else None
        yield chunk({"content": piece.text}, found=found)


def _entries_of(piece: Piece, generation: Generation) -> list[TokenLogprob]:
    """The log-probabilities of the newest piece's tokens."""
    n = len(piece.tokens)
    return generation.record.logprobs[-n:] if n else []
