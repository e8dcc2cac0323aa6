"""Converts the fields of a body to keywords of Llama's calls, within the server's limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from pyllama_spec.options import options_of
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.schema.grammar import literal
from pyllama_spec.server.api_errors import ApiError
from pyllama_spec.server.door import MAX_VALUES, too_many_values
from pyllama_spec.server.settings import ServerSettings
from pyllama_spec.server.shapes import Bias, ChatRequest, Json, Sampling, Speculation

# The options by their names in a body.
_OPTIONS = {
    name: one.name for one in options_of(RequestOptions).values() for name in one.body_names
}
# vLLM's names of constraints: within structured_outputs, and on their own.
_GUIDED = {name: f"guided_{name}" for name in ("json", "regex", "choice", "grammar")}
# Its options beside them, which decide how a constraint is followed there.
_NO_CONSTRAINTS = (
    "disable_fallback", "disable_any_whitespace", "disable_additional_properties",
    "whitespace_pattern",
)  # fmt: skip
# Fields of other servers that limit or change a text, and the values that change nothing.
_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "lora": (None, []), "dynatemp_range": (None, 0), "t_max_predict_ms": (None, 0, -1),
    "allowed_token_ids": (None, []), "use_beam_search": (None, False),
}  # fmt: skip
# Fields that are translated below, or are not for the library.
_APART = frozenset((
    "model", "messages", "prompt", "best_of", "stream", "stream_options", "speculation",
    "prediction", "json_schema", "logit_bias", "structured_outputs", *_GUIDED.values(),
    *_UNSUPPORTED,
))  # fmt: skip


def keywords_of(
    request: Sampling, settings: ServerSettings, name: str, caller: str
) -> dict[str, Any]:
    """The keywords of a Llama call for a request, whose key's owner is `caller`, or ""."""
    fields = msgspec.structs.asdict(request)
    # A prompt may be as many ids as the context has.
    check_values({field: value for field, value in fields.items() if field != "prompt"})
    _check_supported(fields)
    keywords = dict(settings.defaults)
    if isinstance(request, ChatRequest):
        keywords.update(settings.chat_defaults)
        if request.add_generation_prompt is False:  # such a prompt begins no answer to take apart
            keywords.pop("reasoning_format", None)
    for field, value in fields.items():
        if value is not None and field not in _APART:
            keywords[_OPTIONS.get(field, field)] = value
    if fields.get("top_logprobs") and not keywords.get("logprobs"):
        raise ApiError(
            400, 'top_logprobs needs "logprobs": true', "invalid_value", "top_logprobs"
        )  # fmt: skip
    keywords["model"] = request.model or name
    if caller:  # no client can pose as a user of another key
        keywords["user"] = f"{caller}: {request.user or ''}"
    if request.stream_options is not None:
        keywords["stream_options"] = msgspec.structs.asdict(request.stream_options)
    if form := _constraint(request, fields):
        keywords["response_format"] = form
    if request.prediction is not None:
        keywords["prediction"] = _predicted(request.prediction.content)
    if request.logit_bias is not None:
        keywords["logit_bias"] = _bias(request.logit_bias)
    if keywords.get("max_completion_tokens") is not None:
        keywords["max_tokens"] = keywords.pop("max_completion_tokens")
    _limit(keywords, settings)
    keywords.update(_drafting(request.speculation))
    return keywords


def _check_supported(fields: Mapping[str, Any]) -> None:
    for field, neutral in _UNSUPPORTED.items():
        if fields[field] not in neutral:
            raise ApiError(
                400, f"{field} has no effect on this server: leave it out", "unsupported", field
            )  # fmt: skip


def _constraint(request: Sampling, fields: Mapping[str, Any]) -> Json | None:
    """The response_format of the only constraint that a request names."""
    form = request.response_format
    found = {"response_format": None if form == {"type": "text"} else form}
    if request.json_schema is not None:
        found["json_schema"] = {"type": "json_object", "schema": request.json_schema}
    given = {field: (name, fields[field]) for name, field in _GUIDED.items()}
    for name, value in (request.structured_outputs or {}).items():
        if name not in _NO_CONSTRAINTS:
            given[f"structured_outputs.{name}"] = (name, value)
    for field, (name, value) in given.items():
        found[field] = _guided(field, name, value)
    found = {name: form for name, form in found.items() if form is not None}
    if len(found) > 1:
        raise _wrong([*found][1], f"{', '.join(found)}: give one of them")
    return next(iter(found.values()), None)


def _guided(field: str, name: str, value: Any) -> Json | None:
    """The response_format of a constraint under vLLM's name."""
    if value is None or value is False:
        return None
    if name == "choice":
        texts = value if isinstance(value, list) else []
        if not texts or not all(one and isinstance(one, str) for one in texts):
            raise _wrong(field, f"{field} is a list of at least one string, none of them empty")
        rules = " | ".join(map(literal, texts))
        return {"type": "grammar", "grammar": f"root ::= {rules}"}
    if name == "json_object":
        return {"type": "json_object"}
    if name == "json":
        try:
            schema = msgspec.json.decode(value) if isinstance(value, str) else value
        except msgspec.DecodeError as error:
            raise _wrong(field, f"{field} is not JSON: {error}") from None
        return {"type": "json_object", "schema": schema}
    if name not in _GUIDED:
        raise _wrong(field, f"{field} is no constraint of this server; there are json, "
                     "json_object, regex, choice and grammar")  # fmt: skip
    return {"type": name, name: value}


def _wrong(field: str, why: str) -> ApiError:
    return ApiError(400, why, "invalid_value", field)


def cut_note(request: Sampling, settings: ServerSettings) -> str | None:
    """The answer's note when its request wants more tokens than the server allows."""
    asked = getattr(request, "max_completion_tokens", None)
    asked = request.max_tokens if asked is None else asked
    most = settings.max_tokens
    if most is None or asked is None or asked <= most:
        return None
    return f"the server gives at most {most} tokens: a larger max_tokens had no effect"


def check_values(body: object) -> None:
    """Limits the fields with many values: messages, their parts, tools, schemas."""
    n, left = 0, [body]
    while left:
        one = left.pop()
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        n += len(inner)
        if n > MAX_VALUES:
            raise too_many_values()
        left.extend(inner)


def beyond(field: str, what: str, most: int) -> ApiError:
    """The error for a field above the server's limit."""
    return ApiError(400, f"{field} {what}; this server takes {most}", "beyond_bound", field)


def _predicted(content: str | list[Json]) -> str:
    """The text of a prediction, which may consist of parts."""
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content]
    if not all(isinstance(part, str) for part in parts):
        raise ApiError(
            400, "prediction has a part that is not a text: its parts are {\"type\": \"text\", "
            "\"text\": ...}", "invalid_value", "prediction",
        )  # fmt: skip
    return "".join(part for part in parts if part)


def _drafting(wanted: Speculation | None) -> dict[str, Any]:
    if wanted is None:
        return {}
    keywords: dict[str, Any] = {
        "return_token_sources": wanted.show_tokens, "acceptance": wanted.acceptance,
    }  # fmt: skip
    if not wanted.draft:
        keywords["n_draft"] = 0
    elif wanted.n_draft is not None:
        keywords["n_draft"] = wanted.n_draft
    return keywords


def _limit(keywords: dict[str, Any], settings: ServerSettings) -> None:
    if settings.is_greedy_below_0 and keywords.get("temperature", 0) < 0:
        keywords["temperature"] = 0.0
    _bound(keywords, "max_tokens", settings.max_tokens)
    _bound(keywords, "timeout_s", settings.max_time_s)


def _bound(keywords: dict[str, Any], name: str, most: float | None) -> None:
    """Limits a keyword to the server's limit; None and 0 mean no limit."""
    asked = keywords.get(name)
    if most is not None and (asked is None or asked <= 0 or asked > most):
        keywords[name] = most


def _bias(given: Mapping[str, float] | list[Bias]) -> dict[int | str, float]:
    """The logit biases by id."""
    pairs = given if isinstance(given, list) else list(given.items())
    return {token: -math.inf if bias is False else float(bias) for token, bias in pairs}
