"""Runs requests on the Llama: from a parsed body to the chunks of an answer, or a whole one."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
import threading
import traceback
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from pyllama_spec._version import __version__
from pyllama_spec.chat.template import check_fits
from pyllama_spec.constraints import left_out_of
from pyllama_spec.engine import Vocab, engine_version
from pyllama_spec.errors import (
    CancelledError,
    EngineError,
    OutOfMemoryError,
    PyllamaSpecError,
    QueueFullError,
    RemoteError,
    UnsupportedError,
)
from pyllama_spec.llama import Llama
from pyllama_spec.llama.responses import Deferred, Response
from pyllama_spec.options import options_of
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.requests.stream import Stream
from pyllama_spec.schema.grammar import literal
from pyllama_spec.server.api_errors import ApiError, openai_error
from pyllama_spec.server.metrics import ModelMetrics
from pyllama_spec.server.settings import ServerSettings
from pyllama_spec.server.shapes import (
    Bias,
    ChatRequest,
    CompletionRequest,
    Json,
    NativeEntry,
    NativePrompt,
    PromptObject,
    Sampling,
    Speculation,
)

log = logging.getLogger("pyllama_spec.server")
_REQUEST_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
# A request for a text, in the form that all dialects are parsed to.
Asked = ChatRequest | CompletionRequest
# An event of a stream: its name, if it has one, and its data.
Event = tuple[str | None, Any]
# In lists and objects of one request: 2,048 messages with many parts each have fewer.
_MAX_VALUES = 100_000
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
    "allowed_token_ids": (None, []), "bad_words": (None, []), "use_beam_search": (None, False),
    "best_of": (None, 1),
}  # fmt: skip
# Fields that are translated below, or are not for the library.
_APART = frozenset((
    "model", "messages", "prompt", "stream", "stream_options", "speculation",
    "prediction", "json_schema", "logit_bias", "structured_outputs", *_GUIDED.values(),
    *_UNSUPPORTED,
))  # fmt: skip


class RequestInfo:
    """An HTTP request beside its body: its id, its key's owner, and when it arrived.

    `note` has the fields of its line in the log. What every request has, exchange.py puts there,
    and Answer the counts of a generated text; a handler that counts tokens itself adds
    `prompt_tokens`, and else nothing. Names and numbers, never text of a request.
    """

    def __init__(self, client_id: str = "") -> None:
        self.id = client_id if _REQUEST_ID.fullmatch(client_id) else secrets.token_hex(8)
        self.caller, self.arrived_at = "", monotonic()
        self.note: dict[str, Any] = {}


def note_failure(error: BaseException) -> None:
    """Logs an unexpected exception by type and place; its message may hold a client's text."""
    if isinstance(error, (ApiError, PyllamaSpecError)):
        return
    frames = traceback.extract_tb(error.__traceback__)
    places = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames[::-1])
    log.error("%s in %s", type(error).__name__, places)


class Thoughts(NamedTuple):
    """A chat template's support of thoughts: marked, so that they can be separated and bounded."""

    are_marked: bool = False
    reads_effort: bool = False

    @property
    def take_effort(self) -> bool:
        """Whether an effort has an effect."""
        return self.are_marked or self.reads_effort


class Shape:
    """The form of one request's answer: OpenAI's own, and the base of the other dialects.

    Its methods are given the chunks of the answer in order, as OpenAI's dicts, and do nothing else.
    """

    def shown_id(self, answer_id: str) -> str | None:
        """The id that the client sees; None for none."""
        return answer_id

    def whole(self, answer: Json) -> Any:
        """A whole answer."""
        return answer

    def of(self, chunk: Json) -> Iterator[Event]:
        """The events of the next chunk."""
        yield None, chunk

    def end(self) -> Iterator[Event]:
        """The events after the last chunk."""
        yield None, "[DONE]"

    def failed(self, error: ApiError) -> Iterator[Event]:
        """The events of an error after the answer began."""
        yield None, openai_error(error)


class Service:
    """The service of one model: the model, its limits, and its running requests."""

    def __init__(
        self, llm: Llama, settings: ServerSettings, name: str, metrics: ModelMetrics
    ) -> None:
        self.llm, self.settings, self.name, self.metrics = llm, settings, name, metrics
        # OpenAI's field: the settings that an answer with a seed depends on besides it.
        self.fingerprint = f"build-{__version__}-{engine_version()}"
        self.answers: set[Answer] = set()
        self.is_usable = True
        self._one_beside, self._n_beside = asyncio.Semaphore(1), 0

    @property
    def draft_name(self) -> str | None:
        """The drafter's name; None without one, and for a model without generation."""
        try:
            name = self.llm.drafter_name
        except UnsupportedError:
            return None
        return None if name == "none" else name

    @cached_property
    def thoughts(self) -> Thoughts:
        """The template's support of thoughts; slow the first time."""
        if self.llm.chat_handler is not None:
            return Thoughts()
        source = self.llm.template.source
        try:
            tags = self.llm.thought_tags
        except PyllamaSpecError:  # the engine reads no answers in its form, so none is taken apart
            tags = ()
        return Thoughts(bool(tags), "reasoning_effort" in source)

    # ---- requests of texts

    def answer(self, asked: Asked, info: RequestInfo) -> Answer:
        """Prepares the answer to a chat, or the completion of a text or of each of several."""
        keywords = self.keywords(asked, info)
        if isinstance(asked, ChatRequest):
            create = self.llm.acreate_chat_completion
            return Answer(self, create, asked.messages, keywords, info)
        most, prompt = self.settings.max_inputs, asked.prompt
        is_list = isinstance(prompt, list) and any(not isinstance(one, int) for one in prompt)
        if is_list and len(prompt) > most:
            raise beyond("prompt", f"has {len(prompt)} entries", most)
        return Answer(self, self.llm.acreate_completion, prompt, keywords, info)

    def keywords(self, asked: Asked, info: RequestInfo) -> dict[str, Any]:
        """The keywords of a call within the limits."""
        if isinstance(asked, ChatRequest):
            self._name_system(asked.messages)
            is_open = asked.continue_final_message is None and not asked.add_generation_prompt
            if is_open and self.settings.continues_last:
                asked.continue_final_message = _ends_in_answer(asked.messages)
        keywords = keywords_of(asked, self.settings, self.name, info.caller)
        if asked.logit_bias is not None:
            keywords["logit_bias"] = _bias(asked.logit_bias, self.llm.model.vocab)
        return keywords

    def _name_system(self, messages: Sequence[Json]) -> None:
        """Makes a developer the system where the template names none: most leave him out."""
        for message in messages:
            if message.get("role") == "developer" and (
                self.llm.chat_handler is None
                and not re.search("['\"]developer", self.llm.template.source)
            ):
                message["role"] = "system"

    def unstarted(self, request: ChatRequest, info: RequestInfo) -> Stream[Response]:
        """A handle that is never started, for the chat's prompt; takes milliseconds."""
        keywords = self.keywords(request, info)
        create: Any = self.llm.create_chat_completion
        handle: Stream[Response] = create(request.messages, stream=True, **keywords)
        return handle

    # ---- requests without generation

    @asynccontextmanager
    async def beside(self) -> AsyncGenerator[Callable[[], None], None]:
        """Admits one request for embeddings or scores at a time; yields its check for a thread."""
        most = getattr(self.llm, "max_waiting", None)
        if most is not None and self._n_beside > most:
            raise QueueFullError(most, f"{self._n_beside} requests for embeddings or scores")
        has_left = threading.Event()

        def check() -> None:
            if has_left.is_set():
                raise CancelledError("the client has disconnected")

        self._n_beside += 1
        try:
            async with self._one_beside:
                yield check
        except Exception as error:
            self.note_error(error)
            raise
        finally:
            has_left.set()
            self._n_beside -= 1

    # ---- running requests

    def n_running(self) -> int:
        """The number of running requests."""
        return sum(one.stage not in ("new", "queued", "ended") for one in self.answers)

    def n_waiting(self) -> int:
        """The number of queued requests."""
        return sum(one.stage in ("new", "queued") for one in self.answers)

    def note_error(self, error: BaseException) -> None:
        """Checks whether the model still works after a request's error."""
        if not isinstance(error, (EngineError, OutOfMemoryError, RemoteError)):
            return
        if self.is_usable and not self.llm.is_usable:
            self.is_usable = False
        if not self.is_usable and isinstance(error, EngineError):
            raise ApiError(
                503, "the model failed, and the server reopens it: try again later",
                "model_failed",
            ) from error  # fmt: skip


class Answer:
    """The answer to one request: read it once, by chunks() or by whole()."""

    def __init__(
        self,
        service: Service,
        create: Callable[..., Any],
        prompt: Any,
        keywords: dict[str, Any],
        info: RequestInfo,
    ) -> None:
        self._service, self._create, self._prompt = service, create, prompt
        self._keywords, self._info, self._note = keywords, info, ""
        self._handle: Stream[Response] | None = None
        self._is_counted = False

    @property
    def stage(self) -> str:
        """The stage of the request: see RequestStatus."""
        return "new" if self._handle is None else self._handle.status.stage

    def status(self) -> dict[str, Any]:
        """The stage with counts, without text."""
        names = ("stage", "queue_position", "n_prompt", "n_read", "n_generated")
        if self._handle is None:
            return {"stage": "new"}
        status = self._handle.status
        return {name: getattr(status, name) for name in names}

    @asynccontextmanager
    async def _begun(
        self, stream: bool | Deferred, shape: Shape
    ) -> AsyncGenerator[Stream[Response], None]:
        """Aborts the request at the end of the block unless it has ended."""
        service, note, begin = self._service, self._info.note, monotonic()
        service.answers.add(self)
        try:
            handle = await self._create(self._prompt, stream=stream, **self._keywords)
            self._handle = handle
            self._note = _loosening(self._keywords.get("response_format"))
            if (shown := shape.shown_id(handle.id)) is not None:
                note["answer"] = shown
            async with handle:
                yield handle
            service.metrics.note_seconds(monotonic() - begin)
        except BaseException as error:
            if not self._is_counted:
                if self._handle is not None:  # else its pictures were being read
                    self._note_cut(self._handle)
                if not isinstance(error, Exception):  # which the client gets, and is counted then
                    service.metrics.note_left()
            service.note_error(error)
            raise
        finally:
            service.answers.discard(self)

    async def whole(self, shape: Shape) -> Any:
        """The whole answer. Cancelling the waiting task cancels the request."""
        async with self._begun(Deferred.WHOLE, shape) as handle:
            response = await handle
        each = [choice for choice in response["choices"] if "timing" in choice]
        parts = [{**choice, "choices": [choice]} for choice in each] or [response]
        _add_accepted(response["usage"], parts)
        self._count(parts, response["usage"])
        return shape.whole(self._completed(response))

    async def events(self, shape: Shape) -> AsyncGenerator[Event, None]:
        """The answer in events; closing the iterator ends the request."""
        ended: list[Response] = []
        n, options = self._keywords.get("n") or 1, self._keywords.get("stream_options") or {}
        async with self._begun(True, shape) as handle:
            async for chunk in handle:
                if "speculation" in chunk:
                    ended.append(chunk)
                elif not chunk["choices"]:  # the last of all, where it was asked for
                    last = ended[-1]
                    chunk = {
                        **chunk, "speculation": last["speculation"], "timing": last["timing"],
                    }  # fmt: skip
                usage, is_whole = chunk.get("usage"), len(ended) == n
                if usage is not None and "speculation" in chunk:
                    # That of a choice, but for the last one's, which is that of all.
                    parts = ended if is_whole else [chunk]
                    _add_accepted(usage, parts)
                    if is_whole and not (chunk["choices"] and options.get("include_usage")):
                        self._count(parts, usage)
                for event in shape.of(self._completed(chunk)):
                    yield event
        for event in shape.end():
            yield event

    def _completed(self, response: Response) -> Response:
        """Adds the fields of an answer or chunk that clients of other servers expect."""
        whole: Response = {**response, "system_fingerprint": self._service.fingerprint}
        for one in response["choices"]:
            if "role" in one.get("delta", ()):  # as in the APIs of OpenAI and llama-server
                one["delta"].setdefault("content", None)
        if note := "; ".join(filter(None, (response.get("note"), self._note))):
            whole["note"] = note
        usage = response.get("usage")
        timing, speculation = response.get("timing"), response.get("speculation")
        if usage and timing and speculation and "decode_s" in timing:
            whole["timings"] = timings(usage, timing, speculation)
        return whole

    def _count(self, parts: Sequence[Response], usage: dict[str, Any]) -> None:
        """Counts the answer once, at its last chunk, for the log and the metrics."""
        self._is_counted = True
        self._info.note.update(
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
            completion_tokens=usage["completion_tokens"],
            drafted=_sum_of(parts, "drafted"), accepted=_sum_of(parts, "accepted"),
            saved_s=round(sum(part["speculation"]["saved_s"] or 0.0 for part in parts), 3) or 0.0,
        )  # fmt: skip
        self._service.metrics.note_end(parts, usage)

    def _note_cut(self, handle: Stream[Response]) -> None:
        """Notes what was computed of a request that has not ended."""
        # The first of the n answers to a prompt reads it.
        prompts = handle.statuses[:: self._keywords.get("n") or 1]
        n_prompt = sum(one.n_prompt for one in prompts)
        self._info.note.update(prompt_tokens=n_prompt, completion_tokens=handle.n_generated)


def _loosening(response_format: Any) -> str:
    """What an answer's schema has lost, once it is compiled; "" for nothing."""
    inner = (response_format or {}).get("json_schema", response_format)
    is_loose = isinstance(inner, dict) and inner.get("strict") is False
    return left_out_of(inner["schema"]) if is_loose and inner.get("schema") else ""


def _sum_of(parts: Sequence[Response], name: str) -> int:
    n: int = sum(part["speculation"][name] for part in parts)
    return n


def _add_accepted(usage: dict[str, Any], parts: Sequence[Response]) -> None:
    """Adds the accepted draft tokens to a usage, under OpenAI's name."""
    accepted = _sum_of(parts, "accepted")
    usage["completion_tokens_details"] = {
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": _sum_of(parts, "drafted") - accepted,
    }


def timings(
    usage: Mapping[str, Any], timing: Mapping[str, Any], speculation: Mapping[str, Any]
) -> dict[str, Any]:
    """The times under llama-server's names, in milliseconds and tokens per second.

    The first token comes with the prompt's last row, so it does not count in the rate of predicted
    tokens.
    """
    n_cached = usage["prompt_tokens_details"]["cached_tokens"]
    n_read, n = usage["prompt_tokens"] - n_cached, usage["completion_tokens"]
    prompt_s, decode_s = timing.get("prompt_s", 0.0), timing.get("decode_s", 0.0)
    return {
        "cache_n": n_cached,
        "prompt_n": n_read,
        "prompt_ms": 1e3 * prompt_s,
        "prompt_per_token_ms": 1e3 * prompt_s / n_read if n_read else 0.0,
        "prompt_per_second": n_read / prompt_s if prompt_s else 0.0,
        "predicted_n": n,
        "predicted_ms": 1e3 * decode_s,
        "predicted_per_token_ms": 1e3 * decode_s / (n - 1) if n > 1 else 0.0,
        "predicted_per_second": (n - 1) / decode_s if n > 1 and decode_s else 0.0,
        "draft_n": speculation["drafted"],
        "draft_n_accepted": speculation["accepted"],
    }


# ---- the keywords of a call


def _ends_in_answer(messages: Sequence[Json]) -> bool:
    """Whether a chat ends in the beginning of an answer, as llama-server sees it."""
    roles = [message.get("role") for message in messages[-2:]]
    if roles == ["assistant"] * 2:
        raise _wrong("messages", "messages end in two of the assistant: join them")
    return roles[-1:] == ["assistant"] and not messages[-1].get("tool_calls")


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
    if keywords.get("max_completion_tokens") is not None:
        keywords["max_tokens"] = keywords.pop("max_completion_tokens")
    _limit(keywords, settings)
    keywords.update(_drafting(request.speculation))
    return keywords


def _check_supported(fields: Mapping[str, Any]) -> None:
    for field, neutral in _UNSUPPORTED.items():
        if fields.get(field) not in neutral:
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


def check_values(body: object) -> None:
    """Limits the fields with many values: messages, their parts, tools, schemas."""
    n, left = 0, [body]
    while left:
        one = left.pop()
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        n += len(inner)
        if n > _MAX_VALUES:
            raise ApiError(
                400, f"the body has more than the {_MAX_VALUES} values in lists and objects that "
                "this server takes: send fewer messages, parts or tools", "beyond_bound",
            )  # fmt: skip
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


def _bias(given: Mapping[str, float] | list[Bias], vocab: Vocab) -> dict[int, float]:
    """The logit biases by id; of a text, those of all its tokens."""
    found = {}
    for word, bias in given if isinstance(given, list) else given.items():
        is_id = isinstance(word, int) or word.removeprefix("-").isdecimal()
        for token in [int(word)] if is_id else vocab.tokenize(str(word), add_special=False):
            found[token] = -math.inf if bias is False else float(bias)
    return found


# ---- prompts


def entries_of(given: NativePrompt) -> list[NativeEntry]:
    """The prompts of a request: a list with an id is one."""
    if isinstance(given, list) and not any(isinstance(one, int) for one in given):
        return given  # type: ignore[return-value]
    return [given]  # type: ignore[list-item]


def text_or_ids(entry: NativeEntry, vocab: Vocab, n_ctx: int) -> str | list[int]:
    """A prompt as the library takes it; a text between ids is refused if it is too long."""
    if isinstance(entry, PromptObject):
        return entry.prompt_string or "".join(part.text for part in entry.content)
    if isinstance(entry, str):
        return entry
    ids = list[int]()
    for part in entry:
        if isinstance(part, int):
            ids.append(part)
        else:
            check_fits(vocab, part, n_ctx)
            ids += vocab.tokenize(part, add_special=not ids, parse_special=True)
    return ids
