"""Chat completions whose answers are taken apart: calls of tools, and reasoning."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pyllama_spec.chat.tools import Answer, AnswerReader, ToolRequest
from pyllama_spec.engine import Vocab
from pyllama_spec.llama.responses import Envelope, Response, Result, figures
from pyllama_spec.requests.generation import Generation
from pyllama_spec.requests.logprobs import chat_logprobs


def _read(reader: AnswerReader, generation: Generation, vocab: Vocab) -> Answer:
    record = generation.record
    # What of the tokens' bytes is no text: a stop string that begins inside of the last one.
    n_bytes = sum(len(vocab.piece(token)) for token in record.tokens)
    n_cut = max(n_bytes - len(record.text.encode()), 0) if record.finish_reason == "stop" else 0
    answer = reader.read(record.tokens, record.text, n_cut, partial=record.finish_reason != "stop")
    # A call that was cut before anything of it could be read: as text it is not lost.
    return (
        Answer(record.text) if record.finish_reason == "length" and answer == Answer() else answer
    )


def _call(answer_id: str, i: int, name: str, arguments: str) -> Response:
    return {
        "id": f"call_{i}_{name}_{answer_id}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def tool_completion(
    generation: Generation,
    envelope: Envelope,
    vocab: Vocab,
    reader: AnswerReader,
    request: ToolRequest,
    *,
    logprobs: bool,
) -> Response:
    """A whole chat completion; finish_reason is "tool_calls" where there are calls."""
    record = generation.read_all()
    answer = _read(reader, generation, vocab)
    message: Response = {"role": "assistant", "content": answer.content or None}
    if not answer.calls:
        message["content"] = answer.content
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        calls = [_call(envelope.id, i, *call) for i, call in enumerate(answer.calls)]
        if request.is_legacy or request.forced:
            message["function_call"] = calls[0]["function"]
        message["tool_calls"] = calls
    is_call = bool(answer.calls) and record.finish_reason == "stop"
    choice: Response = {
        "index": 0,
        "message": message,
        "logprobs": chat_logprobs(vocab, record.logprobs) if logprobs else None,
        "finish_reason": "tool_calls" if is_call else record.finish_reason,
    }
    return Result({**envelope.wrap("chat.completion", choice), **figures(record)}, [record])


class _Deltas:
    """What is new in an answer since it was looked at last.

    Args:
        answer_id: of the answer; those of its calls are made of it.
        has_function: say the first call in OpenAI's older form as well, as a whole answer does.

    """

    def __init__(self, answer_id: str, *, has_function: bool = False) -> None:
        self._id, self._has_function = answer_id, has_function
        self._sent = Answer()

    def of(self, now: Answer) -> list[Response]:
        """Deltas that lead from what was sent to `now`; text that was sent stays."""
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
        for i, (name, arguments) in enumerate(now.calls):
            if i == len(sent.calls):
                sent.calls.append((name, arguments))
                deltas.append(self._delta(i, _call(self._id, i, name, arguments)))
                continue
            old_arguments = sent.calls[i][1]
            if len(arguments) > len(old_arguments) and arguments.startswith(old_arguments):
                sent.calls[i] = (name, arguments)
                more = {"arguments": arguments[len(old_arguments) :]}
                deltas.append(self._delta(i, {"function": more}))
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
    """A chat completion in chunks: a call begins with its id and name, its arguments follow."""

    def chunk(delta: Response, finish: str | None = None, reported: Any = None) -> Response:
        choice = {"index": 0, "delta": delta, "logprobs": reported, "finish_reason": finish}
        return envelope.wrap("chat.completion.chunk", choice)

    deltas = _Deltas(envelope.id, has_function=request.is_legacy or bool(request.forced))
    is_first, has_calls = True, False
    for piece in generation:
        if is_first:
            yield chunk({"role": "assistant"})
            is_first = False
        answer = _read(reader, generation, vocab)
        reported: Any = None
        if logprobs and piece.tokens:
            reported = chat_logprobs(vocab, generation.record.logprobs[-len(piece.tokens) :])
        for delta in deltas.of(answer):
            yield chunk(delta, reported=reported)
            reported = None
        has_calls = has_calls or bool(answer.calls)
        if piece.finish_reason is not None:
            is_call = has_calls and piece.finish_reason == "stop"
            finish = "tool_calls" if is_call else piece.finish_reason
            yield {**chunk({}, finish), **figures(generation.record)}
            return
