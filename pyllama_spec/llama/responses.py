"""Results in OpenAI's format, with two further keys: `speculation` and `timing`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import (
    Callable,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from html import escape
from pathlib import Path
from typing import Any

from pyllama_spec.engine import Vocab
from pyllama_spec.engine.checks import boolean
from pyllama_spec.errors import ForkedError, UnsupportedError
from pyllama_spec.requests.detokenizer import Piece
from pyllama_spec.requests.generation import Generation, GenerationRecord, Handle
from pyllama_spec.requests.logprobs import TokenLogprob, chat_logprobs, completion_logprobs
from pyllama_spec.requests.ticket import PENDING, RequestStatus
from pyllama_spec.speculative.stats import sources_in_words
from pyllama_spec.terminal import SOURCE_COLOURS

Response = dict[str, Any]
# The value of a chunk generator that has nothing to read yet, for a non-blocking reader.
NOTHING_YET: Response = {}
# A ground behind the letters, so that they can be read on a light page and on a dark one.
_DRAFTED = "background:rgba({},.28);border-radius:3px"
# The terminal's colours of who drafted a stretch of text, as grounds.
_GROUNDS = {
    "model": "46,160,67", "copy": "0,150,170", "memory": "170,70,170", "grammar": "190,150,0",
}  # fmt: skip
_TEXT = "white-space:pre-wrap;margin:0 0 .4em 0"


class Result(dict[str, Any]):
    """A response: a dict that notebooks show as its text.

    What is drafted and accepted has a ground by who drafted it: green for the model, cyan for a
    copy of the text itself, magenta for one of an earlier text, yellow for the grammar. Figures
    follow. `dict(result)` is a copy that is shown as any dict.
    """

    _shown: tuple[tuple[tuple[str, str], ...], ...] = ()

    def __init__(
        self, response: Mapping[str, Any] | None = None, records: Sequence[GenerationRecord] = ()
    ) -> None:
        super().__init__(response or {})
        self._shown = tuple(record.stretches for record in records)

    def _repr_html_(self) -> str:
        texts = "".join(f'<pre style="{_TEXT}">{_coloured(one)}</pre>' for one in self._shown)
        return f"<div>{texts}<small>{escape(self._figures())}</small></div>"

    def _figures(self) -> str:
        usage, timing = self.get("usage", {}), self.get("timing", {})
        speculation = self.get("speculation", {})
        n, seconds = usage.get("completion_tokens", 0), timing.get("decode_s", timing.get("wall_s"))
        parts = [f"{n} tokens" if seconds is None else f"{n} tokens in {seconds:.2f} s"]
        tps = timing.get("decode_tps", timing.get("tps"))
        if tps:
            parts.append(f"{tps:.1f} per second")
        if speculation.get("drafter", "none") != "none":
            accepted, drafted = speculation["accepted"], speculation["drafted"]
            sources = sources_in_words(speculation.get("by_source", {}))
            sources = sources and f" ({sources})"
            parts.append(
                f"{speculation['drafter']}: {accepted} of {drafted} drafted tokens accepted"
                f"{sources}, "
                f"{speculation['tokens_per_round']:.2f} tokens per round"
            )
        if speculation.get("note"):
            parts.append(speculation["note"])
        if speculation.get("reason_off"):
            parts.append(f"the drafter is disabled: {speculation['reason_off']}")
        return "; ".join(parts)


def answering_model(path: str, model: str | None) -> str:
    """The `model` of an answer: the caller's name for it, else the file's name."""
    return Path(path).name if model is None else model


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that all objects of a response share."""

    id: str
    created: int  # seconds since 1970
    model: str

    @classmethod
    def make(cls, prefix: str, model: str) -> Envelope:
        """A new envelope whose id begins with `prefix`."""
        import uuid  # not needed to open a model

        return cls(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model)

    def wrap(self, kind: str, choice: Response) -> Response:
        """Puts fields into an object of the response."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": [choice],
        }


class Deferred(Enum):
    """The value of stream= for a request that is read later, whole or in chunks."""

    WHOLE = False
    CHUNKS = True


def check_stream(stream: object) -> bool:
    """Whether a request is read in chunks."""
    return stream.value if isinstance(stream, Deferred) else boolean(stream, "stream")


class Stream(Handle[Response]):
    """The handle of a request: iterates over its chunks, or returns the whole result.

    `for` and result() wait; in an event loop `async for` and `await` do the same and never block
    it. It comes into line with its first chunk, or with start(), and has its place up to the chunk
    with a finish_reason. A reader that leaves before closes it, by close(), `with`, or by dropping
    it; in an event loop by abort(), `async with`, or by being cancelled. See Generation.

    Args:
        generations: the generations that compute it; several for a list of prompts, which has no
            chunks, and for several answers to one prompt.
        chunks: its chunks.
        whole: returns the whole response, whether or not the generations were read.
        id_: the id of the response.

    Attributes:
        id: the id of the response and of every chunk.

    """

    def __init__(
        self,
        generations: Sequence[Generation],
        chunks: Generator[Response, None, None] | None,
        whole: Callable[[], Response],
        id_: str,
    ) -> None:
        self._generations, self._generation = generations, generations[0]
        self._chunks, self._whole, self.id = chunks, whole, id_

    def __repr__(self) -> str:
        record = self._generation.record
        reason = record.finish_reason
        state = "going on" if reason is None else f"ended: {reason}"
        return f"<Stream: {record.usage['completion_tokens']} tokens, {state}>"

    @property
    def status(self) -> RequestStatus:
        """The state of the request: stage, queue position, progress of the prompt."""
        return next(
            (s for g in self._generations if (s := g.status).stage != "ended"),
            self._generations[-1].status,
        )

    @property
    def statuses(self) -> list[RequestStatus]:
        """The state of each choice, in the order of the prompts."""
        return [generation.status for generation in self._generations]

    @property
    def n_generated(self) -> int:
        """The number of generated tokens of all choices, unread ones included."""
        return sum(generation.status.n_generated for generation in self._generations)

    @property
    def speculations(self) -> list[Response]:
        """`speculation` as of now, of each choice that has had a round."""
        each = [generation.stats for generation in self._generations]
        return [stats.as_dict() for stats in each if stats.rounds]

    @property
    def prompt_tokens(self) -> list[int]:
        """The ids of the prompt, or of the first one; known before the request starts."""
        return list(self._generation.record.prompt_tokens)

    def start(self, *, is_whole: bool = False) -> None:
        """Queues the request; it is then computed whether or not it is read.

        Args:
            is_whole: whether to compute it to its end; else only some pieces ahead of its reader.

        Raises:
            QueueFullError: as many requests wait as Llama(max_waiting=) allows.

        """
        for generation in self._generations:
            generation.start(is_whole=is_whole, is_detached=True)

    def _readable(self) -> Generator[Response, None, None]:
        if self._chunks is None:
            raise UnsupportedError("a list of prompts is answered as a whole: it has no chunks")
        return self._chunks

    # ---- for a thread that waits

    def __next__(self) -> Response:
        chunks = self._readable()
        with self._generation.reading():
            return next(chunks)

    def result(self) -> Response:
        """The whole response, as without stream=True. Blocks until it is complete."""
        return self._whole()

    # ---- for an event loop

    async def __anext__(self) -> Response:
        first, *others = self._generations
        return await first.arriving(self.__next__, NOTHING_YET, others)

    def __await__(self) -> Generator[Any, None, Response]:
        return self.aresult().__await__()

    def aresult(self) -> Coroutine[Any, Any, Response]:
        """result() in an event loop; the same as awaiting the stream."""

        async def read() -> Response:
            with ExitStack() as stack:
                for generation in self._generations:
                    stack.callback(generation.abort)
                self.start(is_whole=True)
                for generation in self._generations:
                    with suppress(Exception):  # the response takes the result or the exception
                        await generation.aread_all()
                return self._whole()

        return read()

    # ---- its end

    def abort(self) -> None:
        """Cancels the request at any stage, from any thread, without waiting.

        Its readers get CancelledError. May be called twice, and after its end.
        """
        for generation in self._generations:
            generation.abort()

    def close(self) -> None:
        """Closes the request, and waits for a step in another thread. May be called twice.

        Does nothing in a forked child: the request belongs to the parent.
        """
        for generation in self._generations:
            generation.close()
        if self._chunks is not None:
            with suppress(ForkedError), self._generation.reading():
                self._chunks.close()


def figures(record: GenerationRecord) -> Response:
    """The last keys of every response: usage, speculation, timing."""
    return {
        "usage": record.usage,
        "speculation": record.stats.as_dict(),
        "timing": record.timing.as_dict(),
    }


class Reply(ABC):
    """A choice of a response: the whole of it, or its chunks."""

    kind: str
    generation: Generation

    @abstractmethod
    def choice(self) -> Response:
        """Reads the generation to its end; returns a response's choice."""

    @abstractmethod
    def chunks(self, envelope: Envelope) -> Generator[Response, None, None]:
        """The response in chunks; the last one has finish_reason and figures."""

    def whole(self, envelope: Envelope) -> Response:
        """The whole response."""
        record, choice = self.generation.record, self.choice()
        return Result({**envelope.wrap(self.kind, choice), **figures(record)}, [record])

    def _new_logprobs(self, piece: Piece) -> list[TokenLogprob]:
        """The log-probabilities of the newest piece."""
        n = len(piece.tokens)
        return self.generation.record.logprobs[-n:] if n else []


@dataclass(slots=True)
class Completion(Reply):
    """A text completion."""

    generation: Generation
    vocab: Vocab
    echo: str
    has_logprobs: bool
    offset: int = 0  # where its text starts after the prompt's, which counts without echo too
    prompt_logprobs: list[TokenLogprob | None] | None = None
    kind = "text_completion"

    def choice(self) -> Response:
        """See Reply."""
        record = self.generation.read_all()
        logprobs = None
        if self.has_logprobs:
            logprobs = completion_logprobs(self.vocab, record.logprobs, self.offset)
            head = self._of_prompt()
            if head is not None:
                logprobs = {key: [*head[key], *logprobs[key]] for key in logprobs}
        return {
            "text": self.echo + record.text,
            "index": 0,
            "logprobs": logprobs,
            "finish_reason": record.finish_reason,
        }

    def _of_prompt(self) -> dict[str, list[Any]] | None:
        """The log-probabilities of the prompt, without a BOS token; None if not requested."""
        if self.prompt_logprobs is None:
            return None
        tokens = self.generation.record.prompt_tokens
        known = [
            entry or TokenLogprob(token, 0.0, ())
            for token, entry in zip(tokens, self.prompt_logprobs, strict=True)
            if token != self.vocab.bos
        ]
        head = completion_logprobs(self.vocab, known, 0)
        if head["tokens"]:  # OpenAI's API has nulls there: nothing comes before the first token
            head["token_logprobs"][0] = head["top_logprobs"][0] = None
        return head

    def chunks(self, envelope: Envelope) -> Generator[Response, None, None]:
        """See Reply."""

        def chunk(
            text: str, finish: str | None = None, logprobs: Response | None = None
        ) -> Response:
            choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish}
            return envelope.wrap(self.kind, choice)

        if self.echo:
            yield chunk(self.echo, logprobs=self._of_prompt())
        offset = self.offset
        for piece in self.generation:
            if piece is PENDING:
                yield NOTHING_YET
                continue
            if piece.finish_reason is not None:
                yield {**chunk("", piece.finish_reason), **figures(self.generation.record)}
                return
            logprobs = None
            if self.has_logprobs:
                logprobs = completion_logprobs(self.vocab, self._new_logprobs(piece), offset)
            offset += len(piece.text)
            yield chunk(piece.text, logprobs=logprobs)


@dataclass(slots=True)
class ChatReply(Reply):
    """An answer to a chat, as the model writes it."""

    generation: Generation
    vocab: Vocab
    has_logprobs: bool
    kind = "chat.completion"

    def choice(self) -> Response:
        """See Reply."""
        record = self.generation.read_all()
        message, finish = self._message(record)
        return {
            "index": 0,
            "message": {"role": "assistant", **message},
            "logprobs": chat_logprobs(self.vocab, record.logprobs) if self.has_logprobs else None,
            "finish_reason": finish,
        }

    def _message(self, record: GenerationRecord) -> tuple[Response, str | None]:
        """The content of the whole message, and the finish reason."""
        return {"content": record.text}, record.finish_reason

    def _reader(self) -> Callable[[Piece], tuple[list[Response], str | None]]:
        """A function of each piece: what it adds to the message, and the finish reason."""
        return lambda one: ([{"content": one.text}] if one.tokens else [], one.finish_reason)

    def chunks(self, envelope: Envelope) -> Generator[Response, None, None]:
        """See Reply."""
        # Tokens whose text is held back too are reported with the next text.
        entries: list[TokenLogprob] = []

        def chunk(delta: Response, finish: str | None = None) -> Response:
            reported = chat_logprobs(self.vocab, entries) if self.has_logprobs and entries else None
            entries.clear()
            choice = {"index": 0, "delta": delta, "logprobs": reported, "finish_reason": finish}
            return envelope.wrap("chat.completion.chunk", choice)

        read, is_first = self._reader(), True
        for piece in self.generation:
            if piece is PENDING:
                yield NOTHING_YET
                continue
            if is_first:
                # Only now: until the prompt is read, the request can still fail.
                yield chunk({"role": "assistant"})
                is_first = False
            entries += self._new_logprobs(piece)
            deltas, finish = read(piece)
            for delta in deltas:
                yield chunk(delta)
            if finish is not None:
                yield {**chunk({}, finish), **figures(self.generation.record)}
                return


def _coloured(stretches: Sequence[tuple[str, str]]) -> str:
    out = []
    for text, who in stretches:
        if who in _GROUNDS:
            title, ground = SOURCE_COLOURS[who][2], _GROUNDS[who]
            style = _DRAFTED.format(ground)
            out.append(f'<span style="{style}" title="{title}">{escape(text)}</span>')
        else:
            out.append(escape(text))
    return "".join(out)
