"""Chat completions with parsed answers: tool calls and reasoning."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Generator, Sequence
from typing import Any

from pyllama_spec.chat.answers import Answer, AnswerReader, AnswerText, Call
from pyllama_spec.chat.tools import ToolRequest
from pyllama_spec.engine import Vocab
from pyllama_spec.llama.responses import NOTHING_YET, Envelope, Response, Result, figures
from pyllama_spec.requests.generation import Generation
from pyllama_spec.requests.logprobs import TokenLogprob, chat_logprobs
from pyllama_spec.requests.ticket import PENDING

# Nine letters and digits: templates in Mistral's way take no other id in a later turn.
_ID_CHARS = string.ascii_letters + string.digits
_ID_LENGTH = 9


def _made_id(answer_id: str, i: int) -> str:
    """The id of an answer's i-th call, equal in a stream and in the whole answer."""
    number = int.from_bytes(hashlib.blake2b(f"{answer_id}/{i}".encode()).digest(), "little")
    chars = []
    for _ in range(_ID_LENGTH):
        number, at = divmod(number, len(_ID_CHARS))
        chars.append(_ID_CHARS[at])
    return "".join(chars)


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


def tool_completion(
    generation: Generation,
    envelope: Envelope,
    vocab: Vocab,
    reader: AnswerReader,
    request: ToolRequest,
    *,
    logprobs: bool,
) -> Response:
    """A whole chat completion; finish_reason is "tool_calls" if it has calls."""
    record = generation.read_all()
    text = AnswerText(vocab, reader.shown)
    text.add(record.tokens, record.text)
    answer = text.read(reader, has_ended=True)
    message: Response = {"role": "assistant", "content": answer.content or None}
    if not answer.calls:
        message["content"] = answer.content
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        calls = [_call(envelope.id, answer.calls, i) for i in range(len(answer.calls))]
        if request.is_legacy or request.forced:
            message["function_call"] = calls[0]["function"]
        message["tool_calls"] = calls
    choice: Response = {
        "index": 0,
        "message": message,
        "logprobs": chat_logprobs(vocab, record.logprobs) if logprobs else None,
        "finish_reason": _finish(answer, record.finish_reason),
    }
    return Result({**envelope.wrap("chat.completion", choice), **figures(record)}, [record])


class _Deltas:
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


def tool_chunks(
    generation: Generation,
    envelope: Envelope,
    vocab: Vocab,
    reader: AnswerReader,
    request: ToolRequest,
    *,
    logprobs: bool,
) -> Generator[Response, None, None]:
    """A chat completion in chunks: a call's id and name come first, then its arguments."""

    def chunk(delta: Response, finish: str | None = None, reported: Any = None) -> Response:
        choice = {"index": 0, "delta": delta, "logprobs": reported, "finish_reason": finish}
        return envelope.wrap("chat.completion.chunk", choice)

    deltas = _Deltas(envelope.id, has_function=request.is_legacy or bool(request.forced))
    text = AnswerText(vocab, reader.shown)
    # Tokens whose text is held back too are reported with the next text.
    entries: list[TokenLogprob] = []

    def reported() -> Any:
        shown = chat_logprobs(vocab, entries) if logprobs and entries else None
        entries.clear()
        return shown

    is_first = True
    for piece in generation:
        if piece is PENDING:
            yield NOTHING_YET
            continue
        if is_first:
            yield chunk({"role": "assistant"})
            is_first = False
        text.add(piece.tokens, piece.text)
        entries += generation.record.logprobs[-len(piece.tokens) :] if piece.tokens else []
        answer = text.read(reader, has_ended=piece.finish_reason is not None)
        for delta in deltas.of(answer):
            yield chunk(delta, reported=reported())
        if piece.finish_reason is not None:
            finish = _finish(answer, piece.finish_reason)
            yield {**chunk({}, finish, reported()), **figures(generation.record)}
            return
