"""Chat completions with parsed answers: tool calls and reasoning."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Sequence

from pyllama_spec.chat.answers import Answer, AnswerReader, AnswerText, Call
from pyllama_spec.chat.tools import ToolRequest
from pyllama_spec.engine import Vocab
from pyllama_spec.llama.responses import ChatChoice, Response
from pyllama_spec.requests.run import GenerationRecord, Piece

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
