"""Responses in OpenAI's form, with two further keys: `speculation` and `timing`.

A response is a function of what was generated: ResponseShape makes chunks of pieces, and the whole
of records. Of parsed answers tool calls and reasoning are apart.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

from pyllama_spec.chat.answers import Answer, AnswerReader, AnswerText, Call
from pyllama_spec.chat.tools import ToolRequest
from pyllama_spec.engine import Vocab
from pyllama_spec.engine.checks import boolean
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.requests.run import GenerationRecord, Piece, TokenLogprob, usage_of
from pyllama_spec.speculative import SpeculationStats

Response = dict[str, Any]


def answering_model(path: str, model: str | None) -> str:
    """The `model` of an answer: the caller's name for it, else the file's name."""
    return Path(path).name if model is None else model


class Deferred(Enum):
    """The value of stream= for a request that is read later, whole or in chunks."""

    WHOLE = False
    CHUNKS = True


def check_stream(stream: object) -> bool:
    """Whether a request is read in chunks."""
    return stream.value if isinstance(stream, Deferred) else boolean(stream, "stream")


class _Sent:
    """What was sent of a choice."""

    n_sent: int | None = None  # ids; None before the first chunk
    n_sources = 0


class TextChoice(_Sent):
    """A text completion.

    Args:
        vocab: the vocabulary.
        echo: the text to begin with.
        has_logprobs: whether log-probabilities are reported.
        offset: where the text starts after the prompt's, which counts without echo too.
        has_ids: whether the log-probabilities are also there by id, as `content`.

    Attributes:
        prompt_logprobs: those of the prompt's tokens, None for the first; None if not wanted.
    """

    kind = chunk_kind = "text_completion"

    def __init__(
        self, vocab: Vocab, echo: str, has_logprobs: bool, offset: int, has_ids: bool
    ) -> None:
        self._vocab, self._echo, self._has_ids = vocab, echo, has_ids
        self._has_logprobs, self._start, self._offset = has_logprobs, offset, offset
        self.prompt_logprobs: Sequence[TokenLogprob | None] | None = None

    def whole(self, record: GenerationRecord) -> Response:
        """The whole choice."""
        logprobs = None
        if self._has_logprobs:
            logprobs = completion_logprobs(self._vocab, record.logprobs, self._start)
            head = self._of_prompt(record)
            if head is not None:
                logprobs = {key: [*head[key], *logprobs[key]] for key in logprobs}
            if self._has_ids:
                logprobs |= chat_logprobs(self._vocab, record.logprobs, has_ids=True)
        return {
            "text": self._echo + record.text, "index": 0, "logprobs": logprobs,
            "finish_reason": record.finish_reason,
        }  # fmt: skip

    def _of_prompt(self, record: GenerationRecord) -> dict[str, list[Any]] | None:
        """The log-probabilities of the prompt, without a BOS token; None if not requested."""
        if self.prompt_logprobs is None:
            return None
        known = [
            entry or TokenLogprob(token, 0.0, ())
            for token, entry in zip(record.prompt_tokens, self.prompt_logprobs, strict=True)
            if token != self._vocab.bos
        ]
        head = completion_logprobs(self._vocab, known, 0)
        if head["tokens"]:  # OpenAI's API has nulls there: nothing comes before the first token
            head["token_logprobs"][0] = head["top_logprobs"][0] = None
        return head

    def head(self, record: GenerationRecord) -> Response | None:
        """What comes before the text of the first piece: until then the request can fail."""
        return _text(self._echo, self._of_prompt(record)) if self._echo else None

    def parts(self, piece: Piece, logprobs: Sequence[TokenLogprob]) -> list[Response]:
        """The choices of the chunks of a piece; the last one has the finish_reason."""
        if piece.finish_reason is not None:
            return [_text("", finish=piece.finish_reason)]
        reported = None
        if self._has_logprobs:
            reported = completion_logprobs(self._vocab, logprobs, self._offset)
            if self._has_ids:
                reported |= chat_logprobs(self._vocab, logprobs, has_ids=True)
        self._offset += len(piece.text)
        return [_text(piece.text, reported)]


def _text(text: str, logprobs: Response | None = None, finish: str | None = None) -> Response:
    return {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish}


class ChatChoice(_Sent):
    """An answer to a chat, as the model writes it."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, vocab: Vocab, has_logprobs: bool) -> None:
        self._vocab, self._has_logprobs = vocab, has_logprobs
        # Tokens whose text is held back too are reported with the next text.
        self._entries: list[TokenLogprob] = []

    def whole(self, record: GenerationRecord) -> Response:
        """See TextChoice."""
        message, finish = self.message(record)
        return {
            "index": 0,
            "message": {"role": "assistant", **message},
            "logprobs": chat_logprobs(self._vocab, record.logprobs) if self._has_logprobs else None,
            "finish_reason": finish,
        }

    def message(self, record: GenerationRecord) -> tuple[Response, str | None]:
        """The content of the whole message, and the finish reason."""
        return {"content": record.text}, record.finish_reason

    def deltas(self, piece: Piece) -> tuple[list[Response], str | None]:
        """What a piece adds to the message, and the finish reason."""
        return [{"content": piece.text}] if piece.tokens else [], piece.finish_reason

    def head(self, record: GenerationRecord) -> Response | None:
        """See TextChoice."""
        return self._part({"role": "assistant"})

    def parts(self, piece: Piece, logprobs: Sequence[TokenLogprob]) -> list[Response]:
        """See TextChoice."""
        self._entries += logprobs
        deltas, finish = self.deltas(piece)
        parts = [self._part(delta) for delta in deltas]
        return parts if finish is None else [*parts, self._part({}, finish)]

    def _part(self, delta: Response, finish: str | None = None) -> Response:
        entries, reported = self._entries, None
        if self._has_logprobs and entries:
            reported = chat_logprobs(self._vocab, entries)
        self._entries = []
        return {"index": 0, "delta": delta, "logprobs": reported, "finish_reason": finish}


def _made_id(answer_id: str, i: int) -> str:
    """The id of an answer's i-th call, equal in a stream and in the whole answer."""
    import hashlib  # loads a library of its own

    # Nine letters and digits: templates in Mistral's way take no other id in a later turn.
    return hashlib.blake2b(f"{answer_id}/{i}".encode()).hexdigest()[:9]


def _id(answer_id: str, calls: Sequence[Call], i: int) -> str:
    """The model's own id of a call if no earlier call has it, else a generated id."""
    own = calls[i].id
    is_new = own not in (one.id for one in calls[:i])
    return own if own and is_new else _made_id(answer_id, i)


def _call(answer_id: str, calls: Sequence[Call], i: int) -> Response:
    return {
        "id": _id(answer_id, calls, i),
        "type": "function",
        "function": {"name": calls[i].name, "arguments": calls[i].arguments},
    }


def _finish(answer: Answer, reason: str | None) -> str | None:
    """The finish reason: "tool_calls" only if all calls are complete."""
    is_call = bool(answer.calls) and all(call.is_whole for call in answer.calls)
    return "tool_calls" if is_call and reason == "stop" else reason


class Deltas:
    """The new parts of an answer since the last call."""

    def __init__(self, answer_id: str, *, has_function: bool = False) -> None:
        self._id, self._has_function = answer_id, has_function
        self._sent = Answer()

    def of(self, now: Answer) -> list[Response]:
        """The deltas from the sent answer to `now`; sent text is never changed."""
        deltas: list[Response] = []
        sent = self._sent
        for key, new, old in (
            ("reasoning_content", now.reasoning, sent.reasoning),
            ("content", now.content, sent.content),
        ):
            if len(new) > len(old) and new.startswith(old):
                deltas.append({key: new[len(old) :]})
        sent.reasoning = max(sent.reasoning, now.reasoning, key=len)
        sent.content = max(sent.content, now.content, key=len)
        for i, call in enumerate(now.calls):
            if call.is_open:  # its id, which goes first, is still to come
                break
            if i == len(sent.calls):
                sent.calls.append(call)
                deltas.append(self._delta(i, _call(self._id, now.calls, i)))
                continue
            old, new = sent.calls[i].arguments, call.arguments
            if len(new) > len(old) and new.startswith(old):
                sent.calls[i] = call
                deltas.append(self._delta(i, {"function": {"arguments": new[len(old) :]}}))
        return deltas

    def _delta(self, i: int, call: Response) -> Response:
        delta: Response = {"tool_calls": [{"index": i, **call}]}
        if self._has_function and i == 0:
            delta["function_call"] = dict(call["function"])
        return delta


class ParsedChoice(ChatChoice):
    """An answer to a chat of which calls and thoughts are kept apart."""

    def __init__(
        self,
        vocab: Vocab,
        has_logprobs: bool,
        reader: AnswerReader,
        request: ToolRequest,
        answer_id: str,
    ) -> None:
        super().__init__(vocab, has_logprobs)
        self._reader, self._id = reader, answer_id
        # Whether the first call is also given in OpenAI's older form.
        self._has_function = request.is_legacy or bool(request.forced)
        self._new = Deltas(answer_id, has_function=self._has_function)
        self._said = AnswerText(vocab, reader.shown)

    def message(self, record: GenerationRecord) -> tuple[Response, str | None]:
        """See ChatChoice."""
        text = AnswerText(self._vocab, self._reader.shown)
        text.add(record.tokens, record.text)
        answer = text.read(self._reader, has_ended=True)
        message: Response = {"content": answer.content or (None if answer.calls else "")}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            calls = [_call(self._id, answer.calls, i) for i in range(len(answer.calls))]
            if self._has_function:
                message["function_call"] = calls[0]["function"]
            message["tool_calls"] = calls
        return message, _finish(answer, record.finish_reason)

    def deltas(self, piece: Piece) -> tuple[list[Response], str | None]:
        """See ChatChoice."""
        self._said.add(piece.tokens, piece.text)
        answer = self._said.read(self._reader, has_ended=piece.finish_reason is not None)
        finish = piece.finish_reason and _finish(answer, piece.finish_reason)
        return self._new.of(answer), finish


Choice: TypeAlias = TextChoice | ChatChoice


class ResponseShape:
    """A response of choices, with the fields that its request wants."""

    def __init__(
        self, answer_id: str, model: str, choices: Sequence[Choice], wanted: RequestOptions, n: int
    ) -> None:
        """Of choices, n to each prompt, and the options of the request."""
        self.id, self._model = answer_id, model
        self._created = int(time.time())  # seconds since 1970
        self._choices, self._wanted, self._n, self._n_left = choices, wanted, n, len(choices)
        self._usage_is_apart = wanted.usage_apart

    def _head(self, kind: str) -> Response:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}

    # ---- in chunks

    def chunks(
        self, i: int, piece: Piece, records: Sequence[GenerationRecord]
    ) -> Sequence[Response]:
        """The chunks of a piece. The last one of a choice has its figures, that of all the usage.

        With stream_options a further one has the usage.
        """
        choice, record, chunks = self._choices[i], records[i], list[Response]()
        if choice.n_sent is None and (head := choice.head(record)) is not None:
            chunks.append(self._chunk(i, head, record, is_head=True))
        n = len(piece.tokens)
        for part in choice.parts(piece, record.logprobs[-n:] if n else ()):
            chunks.append(self._chunk(i, part, record))
            if part["finish_reason"] is not None:
                chunks += self._ended(chunks[-1], record, records)
        return chunks

    def _chunk(
        self, i: int, part: Response, record: GenerationRecord, *, is_head: bool = False
    ) -> Response:
        choice, wanted = self._choices[i], self._wanted
        part["index"] = i
        chunk = {**self._head(choice.chunk_kind), "choices": [part]}
        if wanted.return_token_ids:
            part["token_ids"] = [] if is_head else record.tokens[choice.n_sent or 0 :]
            if choice.n_sent is None:
                part["prompt_token_ids"] = list(record.prompt_tokens)
        choice.n_sent = 0 if is_head else len(record.tokens)
        if wanted.return_token_sources and not is_head:
            part["token_sources"] = _sources(record.token_sources[choice.n_sources :])
            choice.n_sources = len(record.token_sources)
        if self._usage_is_apart:
            chunk["usage"] = record.usage if wanted.usage_in_each else None
        return chunk

    def _ended(
        self, chunk: Response, record: GenerationRecord, records: Sequence[GenerationRecord]
    ) -> list[Response]:
        """Adds the figures to the last chunk of a choice; returns what comes after it."""
        self._add_end(chunk["choices"][0], record)
        if record.note:
            chunk["note"] = record.note
        chunk |= {"speculation": record.stats.as_dict(), "timing": record.timing.as_dict()}
        self._n_left -= 1
        usage = record.usage if self._n_left else usage_of(records, len(records))
        if self._usage_is_apart:
            chunk["usage"] = usage if self._wanted.usage_in_each else None
            return [] if self._n_left else [
                {**self._head(chunk["object"]), "choices": [], "usage": usage}
            ]  # fmt: skip
        if not self._n_left:
            chunk["usage"] = usage
        return []

    # ---- as a whole

    def choice(self, i: int, record: GenerationRecord) -> Response:
        """The whole of choice i; one of several has its own figures."""
        choice = {**self._choices[i].whole(record), "index": i}
        if len(self._choices) > 1:
            choice |= {"speculation": record.stats.as_dict(), "timing": record.timing.as_dict()}
        self._add_end(choice, record)
        if self._wanted.return_token_ids:
            choice["token_ids"] = list(record.tokens)
            choice["prompt_token_ids"] = list(record.prompt_tokens)
        if self._wanted.return_token_sources:
            choice["token_sources"] = _sources(record.token_sources)
        return choice

    def whole(
        self, choices: Sequence[Response], records: Sequence[GenerationRecord], wall_s: float
    ) -> Response:
        """The whole response; the figures of several are sums, and the time is that of all."""
        first, stats = records[0], SpeculationStats()
        for record in records:
            stats.add(record.stats)
        usage, timing = usage_of(records, self._n), first.timing.as_dict()
        if len(records) > 1:
            tps = usage["completion_tokens"] / wall_s if wall_s > 0 else 0.0
            timing = {"wall_s": wall_s, "tps": tps}
        speculation = (first.stats if len(records) == 1 else stats).as_dict()
        response: Response = {
            **self._head(self._choices[0].kind), "choices": list(choices), "usage": usage,
            "speculation": speculation, "timing": timing,
        }  # fmt: skip
        if first.note:
            response["note"] = first.note
        return response

    def _add_end(self, choice: Response, record: GenerationRecord) -> None:
        choice["stop_reason"] = record.stop_reason
        if self._wanted.context_shift:
            choice["context_shifts"] = record.n_shifts


def _sources(pieces: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"text": text, "source": source} for text, source in pieces]


def completion_logprobs(
    vocab: Vocab, entries: Sequence[TokenLogprob], offset: int
) -> dict[str, list[Any]]:
    """A completion's `logprobs` object. `offset`: characters before the first token."""
    out: dict[str, list[Any]] = {
        "tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": [],
    }  # fmt: skip
    for entry in entries:
        text = token_text(vocab, entry.token)
        by_text: dict[str, float] = {}
        for i, value in entry.top:  # of ids with one text the likeliest counts
            by_text.setdefault(token_text(vocab, i), value)
        by_text[text] = entry.logprob
        # OpenAI's order: likeliest first, the token itself among them.
        top = dict(sorted(by_text.items(), key=itemgetter(1), reverse=True))
        out["tokens"].append(text)
        out["text_offset"].append(offset)
        out["token_logprobs"].append(entry.logprob)
        out["top_logprobs"].append(top)
        offset += len(vocab.piece(entry.token).decode(errors="ignore"))
    return out


def chat_logprobs(
    vocab: Vocab, entries: Sequence[TokenLogprob], *, has_ids: bool = False
) -> dict[str, Any]:
    """The `logprobs` object of a chat completion."""

    def shown(token: int, logprob: float) -> dict[str, Any]:
        data = vocab.piece(token, special=True)
        own = {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}
        return {"id": token, **own} if has_ids else own

    content = [
        {
            **shown(entry.token, entry.logprob),
            "top_logprobs": [shown(i, value) for i, value in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def token_text(vocab: Vocab, token: int) -> str:
    """One token as text; incomplete characters become U+FFFD."""
    return vocab.piece(token, special=True).decode(errors="replace")
