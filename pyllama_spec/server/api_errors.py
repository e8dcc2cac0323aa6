"""Errors for clients: a status, a code and a remedy, without internals."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pyllama_spec.errors import (
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
    shown,
)
from pyllama_spec.options import names_of
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.server.shapes import Speculation


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

    @property
    def type(self) -> str:
        """OpenAI's name for this kind of error."""
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else _SERVER)


# OpenAI's and Anthropic's packages would send the request twice more.
NO_RETRY = {"X-Should-Retry": "false"}
_SERVER = "server_error"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "timeout_error",
}
# What the library says of a keyword, and the field of a body that has another name.
_VALUE = re.compile(r"([a-z][a-z_]*)=")
_BEYOND = re.compile(r"(\S+) is outside (\S+) \.\. (\S+)")
# The words of msgspec for JSON's types, in what it expects and got.
_KINDS_OF_JSON = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_EXPECTED = re.compile(rf"\b(?:{'|'.join(_KINDS_OF_JSON)})\b(?=[^`]*`(?:[^`]*`[^`]*`)*[^`]*$)")
_LATER = re.compile(r"\btry again later$")
_LACKING = re.compile(r"Object (missing required|contains unknown) field `(.+)`")
_FIELDS = names_of("body", RequestOptions)
_KINDS_OF_JSON_VALUES: Mapping[type, str] = {
    type(None): "null", bool: "true or false", int: "an integer", float: "a number",
    str: "a string", list: "an array", tuple: "an array", dict: "an object",
}  # fmt: skip


def _in_json(value: object) -> str:
    """The beginning of a value as JSON."""
    try:
        return clipped(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return shown(value)


JSON = Face(_FIELDS, value=_in_json, kinds=_KINDS_OF_JSON_VALUES, is_operator=False)
# The first that fits counts.
_KINDS: tuple[tuple[type[BaseException], int, str], ...] = (
    (ContextFullError, 400, "context_length_exceeded"),
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
# Advice in the library's messages for whoever opens the model, and what clients are told instead.
_ADVICE: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern), instead, keyword)
    for pattern, instead, keyword in (
        (" or (choose|open the context with) a larger n_ctx$", "", "n_ctx"),
        (r"n_ctx and n_batch have room for(.*); choose larger ones, or truncate=True",
         r"the server has room for\1; shorten it", "n_ctx"),
        ("n_ctx and n_batch have room for", "the server has room for", "n_ctx"),
        ("^there are no embeddings without embedding=True: .*", "this server gives no embeddings",
         "embedding=True"),
        (": open it with pooling_type=mean or last$", "", "pooling_type"),
        (r"^the queue is full \(.*\): max_waiting=\d+ allows no more", "the queue is full",
         "max_waiting"),
        (r"max_waiting=\d+", "the server", "max_waiting"),
        (r" \(memory_mib\): allow more, .*$", "", "memory_mib"),
        ("; choose a smaller n_ctx.*$", "", "n_ctx"),
        (r"the server \S+ (was lost\b.*); close the model and open it again$",
         r"a server with layers \1", "rpc_servers"),
        (r"the server \S+ cannot be reached", "a server with layers cannot be reached",
         "rpc_servers"),
    )
)  # fmt: skip


def api_error(error: BaseException, retry_after_s: int) -> ApiError:
    """An exception as an HTTP error; hides the message of an unexpected exception."""
    told = error if isinstance(error, ApiError) else _of_kind(error)
    if told.status in (429, 503):
        told.headers["Retry-After"] = str(retry_after_s)
        told.message = _LATER.sub(f"try again in {retry_after_s} s", told.message)
    elif told.status == 504:
        told.headers.update(NO_RETRY)
    return told


def _of_kind(error: BaseException) -> ApiError:
    for kind, status, code in _KINDS:
        if isinstance(error, kind):
            if not isinstance(error, PyllamaSpecError):
                continue
            message, option = for_client(error.rendered(JSON))
            param, option = JSON.name(error.param), error.option or option
            if kind is not ArgumentError or param:
                return ApiError(status, message, code, param or None, option=option)
            message, found = _of_field(message)
            return ApiError(status, message, code, found, option=option)
    return ApiError(500, "the server failed inside; its log says where", "internal_error")


def _of_field(message: str) -> tuple[str, str | None]:
    """A message of the library about a value, in the words of OpenAI's API, and the field."""
    found = _VALUE.match(message)
    if found is None:
        return message, None
    name = _FIELDS.get(found[1], found[1])
    beyond = _BEYOND.fullmatch(message[found.end() :])
    if beyond is None:
        return f"{name}={message[found.end() :]}", name
    value, low, high = beyond.groups()
    return f"Invalid '{name}': expected a value from {low} to {high}, but got {value} instead", name


def for_client(message: str) -> tuple[str, str]:
    """A message of the library without its advice for the program that opens the model."""
    for pattern, instead, keyword in _ADVICE:
        told, n = pattern.subn(instead, message)
        if n:
            return told, keyword
    return message, ""


def invalid_type(error: Exception) -> ApiError:
    """The error for a field of a wrong type, and for one that is missing or unknown."""
    text, _, where = str(error).partition(" - at `$")
    param = where.rstrip("`").lstrip(".") or None
    if lacking := _LACKING.fullmatch(text):
        whole = lacking[2] if param is None else f"{param}.{lacking[2]}"
        if lacking[1] == "missing required":
            return ApiError(400, f"{whole} is missing", "invalid_value", whole)
        known = ", ".join(Speculation.__struct_fields__)  # of the only shape that refuses others
        return ApiError(
            400, f"there is no field {whole}; {param} takes {known}", "invalid_value", whole
        )
    if text.startswith("Expected"):
        text = _EXPECTED.sub(lambda kind: _KINDS_OF_JSON[kind[0]], text)
    return ApiError(400, f"{text}, in {param}" if param else text, "invalid_type", param)


def openai_error(error: ApiError) -> dict[str, Any]:
    """An error in OpenAI's form."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }
