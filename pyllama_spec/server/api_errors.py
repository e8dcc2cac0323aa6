"""Errors for clients: a status, a code and a remedy, without internals."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from pyllama_spec.errors import (
    LATER,
    ArgumentError,
    CancelledError,
    ClosedError,
    ContextFullError,
    DeadlineError,
    Face,
    OutOfMemoryError,
    PyllamaSpecError,
    QueueFullError,
    RemoteError,
    UnsupportedError,
    clipped,
    limited,
    shown,
)
from pyllama_spec.options import options_of
from pyllama_spec.requests.options import RequestOptions


class ApiError(Exception):
    """An error as the answer to a request.

    `option` is what the operator can change, for the log: a name in ServerSettings, a keyword of
    Llama() or a key in a models file; "" for nothing.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        option: str = "",
    ) -> None:
        super().__init__(message)
        self.option = option
        self.request_id: str | None = None
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = dict(headers or {})
        self.details: dict[str, Any] = {}

    @property
    def type(self) -> str:
        """OpenAI's name for this kind of error."""
        if self.code == _TOO_LONG:  # llama-server's
            return "exceed_context_size_error"
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else _SERVER)


# OpenAI's and Anthropic's packages would send the request twice more.
NO_RETRY = {"X-Should-Retry": "false"}
_SERVER, _TOO_LONG = "server_error", "context_length_exceeded"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "timeout_error",
}
_LACKING = re.compile(r"Object (missing required|contains unknown) field `(.+)`")
_MAX_NAME = 200
# Python's names of arguments, and those that a request may have for them: the first of its own.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    **{one.name: one.body_names for one in options_of(RequestOptions).values()},
    "input": ("messages", "prompt"), "logprobs": ("n_probs",),
    "max_tokens": ("n_predict", "max_completion_tokens", "max_output_tokens"),
    "n_draft": ("speculation.n_draft",), "acceptance": ("speculation.acceptance",),
    "stop": ("stop_sequences",),
    "prompt": ("messages", "input_prefix", "input"),
    "response_format": ("json_schema", "text", "output_config"), "suffix": ("input_suffix",),
    "token": ("tokens",), "tool_choice": ("function_call",), "tools": ("functions",),
}  # fmt: skip
_KINDS_OF_JSON: Mapping[type, str] = {
    type(None): "null", bool: "true or false", int: "an integer", float: "a number",
    str: "a string", list: "an array", tuple: "an array", dict: "an object",
}  # fmt: skip
_WORDS_OF_JSON = {"True": "true", "False": "false", "None": "null"}


def _in_json(value: object) -> str:
    """The beginning of a value as JSON."""
    try:
        return clipped(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return shown(value)


def face_of(given: Collection[str] = ()) -> Face:
    """The words of JSON, with the names that a request with the fields `given` has for options."""
    names = {}
    for name, others in _FIELDS.items():
        found = [one for one in others if one.partition(".")[0] in given]
        if found and name not in given:
            names[name] = found[0]
    return Face(
        names, words=_WORDS_OF_JSON, value=_in_json, kinds=_KINDS_OF_JSON, is_operator=False
    )


# The first that fits counts.
_KINDS: tuple[tuple[type[PyllamaSpecError], int, str], ...] = (
    (ContextFullError, 400, _TOO_LONG),
    (QueueFullError, 429, "queue_full"),
    (DeadlineError, 504, "timeout"),
    (CancelledError, 503, "cancelled"),
    (ClosedError, 503, "closed"),
    (RemoteError, 503, "layers_unreachable"),
    (OutOfMemoryError, 503, "out_of_memory"),
    (UnsupportedError, 400, "unsupported"),
    (ArgumentError, 400, "invalid_value"),
    (PyllamaSpecError, 500, "engine_error"),
)


def api_error(error: BaseException, retry_after_s: int, given: Collection[str] = ()) -> ApiError:
    """An exception as an HTTP error, in the words of a request with the fields `given`.

    Hides the message of an unexpected exception.
    """
    shown_error = error if isinstance(error, ApiError) else _of_kind(error, face_of(given))
    shown_error.message = limited(shown_error.message)  # a client's own text, of megabytes
    if shown_error.status in (429, 503):
        shown_error.headers["Retry-After"] = str(retry_after_s)
        shown_error.message = shown_error.message.replace(LATER, f"try again in {retry_after_s} s")
    elif shown_error.status == 504:
        shown_error.headers.update(NO_RETRY)
    return shown_error


def _of_kind(error: BaseException, face: Face) -> ApiError:
    if not isinstance(error, PyllamaSpecError):
        return ApiError(500, "the server failed inside; its log says where", "internal_error")
    status, code = next((status, code) for kind, status, code in _KINDS if isinstance(error, kind))
    param, text = face.name(error.param)[:_MAX_NAME] if status == 400 else "", error.rendered(face)
    if isinstance(error, RemoteError):
        text = f"a server with layers of the model is lost; {LATER}"  # and not its address
    elif isinstance(error, ContextFullError) and error.n_ctx:
        # Words of OpenAI and of llama-server, by which LiteLLM and others know the error.
        asked = f"a request of {error.n_tokens} tokens" if error.n_tokens else "the request"
        text = (
            f"This model's maximum context length is {error.n_ctx} tokens: {asked} is too large "
            "and exceeds the available context size"
        )
    made = ApiError(status, text, code, param or None, option=error.option)
    if isinstance(error, ContextFullError):
        made.details = {"n_prompt_tokens": error.n_tokens, "n_ctx": error.n_ctx}
    return made


# msgspec's names of types, as JSON has them.
_JSON_WORDS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_KIND = re.compile(r"\b(?:str|int|float|bool)\b")


def invalid_type(error: Exception) -> ApiError:
    """The error for a field of a wrong type, and for one that is missing or unknown."""
    text, _, where = str(error).partition(" - at `$")
    param = where.rstrip("`").lstrip(".") or None
    if lacking := _LACKING.fullmatch(text):
        whole = lacking[2] if param is None else f"{param}.{lacking[2]}"
        if lacking[1] == "missing required":
            return ApiError(400, f"{whole} is missing", "invalid_value", whole)
        return ApiError(400, f"there is no field {whole}", "invalid_value", whole)
    text = _KIND.sub(lambda kind: _JSON_WORDS[kind[0]], text)
    return ApiError(400, f"{text}, in {param}" if param else text, "invalid_type", param)


def openai_error(error: ApiError) -> dict[str, Any]:
    """An error in OpenAI's form."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
            **error.details,
        }
    }
