"""Anthropic's messages and OpenAI's responses over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from functools import partial

import msgspec
from msgspec import Struct

from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.server.api_errors import ApiError, invalid_type
from pyllama_spec.server.dialects import (
    messages_answer,
    messages_request,
    responses_answer,
    responses_request,
)
from pyllama_spec.server.dialects.fields import NO_THOUGHTS, Json, Thoughts
from pyllama_spec.server.exchange import Exchange, Route, sse
from pyllama_spec.server.keywords import check_values
from pyllama_spec.server.routes_openai import chat_completions, models
from pyllama_spec.server.service import Answer, Service
from pyllama_spec.server.serving import Seen
from pyllama_spec.server.shapes import ChatRequest, Name

Event = tuple[str, Json]


def thoughts_of(service: Service) -> Thoughts:
    """The template's support of thoughts; slow the first time."""
    llm = service.llm
    if llm.chat_handler is not None:
        return NO_THOUGHTS
    source = llm.template.source
    try:
        tags = service.thought_tags.of_template(source)
    except PyllamaSpecError:  # the engine reads no answers in its form, so none is taken apart
        tags = ()
    return Thoughts(bool(tags), "reasoning_effort" in source)


async def _chat(
    exchange: Exchange,
    translate: Callable[[object, Thoughts], Json],
    failed: Callable[[Json], Callable[[ApiError], Iterable[Event]]] | None = None,
) -> tuple[Json, ChatRequest]:
    """The body, and the equivalent chat request."""
    body = await exchange.read(dict)
    name = body.get("model")  # a value of another type is refused below
    late_error = None
    if failed is not None and body.get("stream") is True:
        late_error = _last_event(failed(body))
    service = await exchange.use(name if isinstance(name, str) else None, late_error=late_error)
    for name in ("messages", "input"):
        service.check_n_messages(name, body.get(name))

    seen = Seen(body)

    def translated() -> ChatRequest:
        check_values(body)
        return msgspec.convert(translate(seen, thoughts_of(service)), ChatRequest)

    try:
        # A thread in any case: what a template knows of thoughts takes a moment the first time.
        request = await service.in_thread(translated)
    except msgspec.ValidationError as error:
        raise invalid_type(error) from None
    exchange.note_unknown([name for name in body if body[name] is not None], seen.names)
    return body, request


async def _events(
    answer: Answer, of: Callable[[Json], Iterable[Event]], end: Callable[[], Iterable[Event]]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(answer.chunks()) as chunks:
        async for chunk in chunks:
            for name, data in of(chunk):
                yield sse(data, name)
    for name, data in end():
        yield sse(data, name)


def _last_event(failed: Callable[[ApiError], Iterable[Event]]) -> Callable[[ApiError], bytes]:
    """The error event that ends a stream."""

    def event(error: ApiError) -> bytes:
        return b"".join(sse(data, name) for name, data in failed(error))

    return event


# ---- Anthropic's messages


def _messages_error(error: ApiError) -> Json:
    return messages_answer.error(error.status, error.message, error.request_id)


def _messages_failed(
    events: messages_answer.MessageEvents,
) -> Callable[[ApiError], Iterable[Event]]:
    return lambda error: events.failed(error.status, error.message, error.request_id)


async def messages(exchange: Exchange) -> None:
    """POST /v1/messages."""
    body, request = await _chat(
        exchange,
        messages_request.chat_request,
        lambda _: _messages_failed(messages_answer.MessageEvents()),
    )
    answer = await exchange.prepared(exchange.service.chat, request)
    answer.shown_id = messages_answer.message_id
    shows = messages_request.shows_thoughts(body)
    if request.stream:
        events = messages_answer.MessageEvents(shows_thoughts=shows)
        made = _events(answer, events.of, events.end)
        await exchange.send_events(made, _last_event(_messages_failed(events)))
        return
    whole = await exchange.watched(answer.whole())
    await exchange.send_json(messages_answer.message(whole, shows_thoughts=shows))


async def count_tokens(exchange: Exchange) -> None:
    """POST /v1/messages/count_tokens."""
    _, request = await _chat(exchange, messages_request.chat_request)
    n = await exchange.watched(exchange.service.in_thread(n_prompt, exchange.service, request))
    await exchange.send_json({"input_tokens": n})


def n_prompt(service: Service, request: ChatRequest) -> int:
    """The number of tokens of a chat's prompt, without computing them."""
    with service.unstarted(request) as handle:
        return handle.status.n_prompt


# ---- OpenAI's responses


async def count_input_tokens(exchange: Exchange) -> None:
    """POST /v1/responses/input_tokens."""
    _, request = await _chat(exchange, responses_request.chat_request)
    n = await exchange.watched(exchange.service.in_thread(n_prompt, exchange.service, request))
    await exchange.send_json({"object": "response.input_tokens", "input_tokens": n})


def _responses_failed(
    events: responses_answer.ResponseEvents,
) -> Callable[[ApiError], Iterable[Event]]:
    return lambda error: events.failed(error.status, error.message)


async def responses(exchange: Exchange) -> None:
    """POST /v1/responses."""
    body, request = await _chat(
        exchange, responses_request.chat_request,
        lambda body: _responses_failed(responses_answer.ResponseEvents(body)),
    )  # fmt: skip
    answer = await exchange.prepared(exchange.service.chat, request)
    answer.shown_id = responses_answer.response_id
    if request.stream:
        events = responses_answer.ResponseEvents(body)
        made = _events(answer, events.of, events.end)
        await exchange.send_events(made, _last_event(_responses_failed(events)))
        return
    whole = await exchange.watched(answer.whole())
    await exchange.send_json(responses_answer.response(whole, body))


_of_messages = partial(
    Route, error_form=_messages_error, id_headers=(b"x-request-id", b"request-id")
)

# ---- endpoints under the names of other servers: llama-server, llama-cpp-python


class ExtrasText(Struct, kw_only=True):
    """The body of /extras/tokenize and /extras/tokenize/count."""

    input: str
    model: Name | None = None


class ExtrasTokens(Struct, kw_only=True):
    """The body of /extras/detokenize."""

    tokens: list[int]
    model: Name | None = None


async def _tokens(exchange: Exchange) -> list[int]:
    request = await exchange.read(ExtrasText)
    service = await exchange.use(request.model)
    return await service.in_thread(service.llm.tokenize, request.input.encode(), special=True)


async def extras_tokenize(exchange: Exchange) -> None:
    """POST /extras/tokenize: with a BOS token if the model prepends one."""
    await exchange.send_json({"tokens": await _tokens(exchange)})


async def extras_count(exchange: Exchange) -> None:
    """POST /extras/tokenize/count."""
    await exchange.send_json({"count": len(await _tokens(exchange))})


async def extras_detokenize(exchange: Exchange) -> None:
    """POST /extras/detokenize."""
    request = await exchange.read(ExtrasTokens)
    service = await exchange.use(request.model)
    raw = await service.in_thread(service.llm.detokenize, request.tokens)
    await exchange.send_json({"text": raw.decode(errors="replace")})


async def count_chat_tokens(exchange: Exchange) -> None:
    """POST /v1/chat/completions/input_tokens."""
    request = await exchange.read(ChatRequest)
    service = await exchange.use(request.model)
    n = await exchange.watched(service.in_thread(n_prompt, service, request))
    await exchange.send_json({"object": "response.input_tokens", "input_tokens": n})


ROUTES = (
    _of_messages("POST", "/v1/messages", messages),
    _of_messages("POST", "/v1/messages/count_tokens", count_tokens),
    Route("POST", "/v1/responses", responses),
    Route("POST", "/v1/responses/input_tokens", count_input_tokens),
    Route("POST", "/v1/chat/completions/input_tokens", count_chat_tokens),
    Route("POST", "/chat/completions/input_tokens", count_chat_tokens),
    Route("POST", "/responses/input_tokens", count_input_tokens),
    Route("POST", "/chat/completions", chat_completions),
    Route("POST", "/responses", responses),
    Route("GET", "/models", models),
    Route("POST", "/extras/tokenize", extras_tokenize),
    Route("POST", "/extras/tokenize/count", extras_count),
    Route("POST", "/extras/detokenize", extras_detokenize),
)
