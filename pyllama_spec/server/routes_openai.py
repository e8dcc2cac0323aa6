"""OpenAI's endpoints: chats, texts, embeddings, the list of models."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from pyllama_spec.server.api_errors import ApiError, openai_error
from pyllama_spec.server.error_fields import in_json
from pyllama_spec.server.exchange import Exchange, Route, sse
from pyllama_spec.server.served_model import ServedModel
from pyllama_spec.server.service import Answer
from pyllama_spec.server.shapes import ChatRequest, CompletionRequest, Sampling

_DONE = sse("[DONE]")


def error_event(error: ApiError) -> bytes:
    """An error in the middle of a stream."""
    return sse(openai_error(error))


def late_error_of(request: Sampling) -> Callable[[ApiError], bytes] | None:
    """The error format within a stream for a request, or None without a stream."""
    return error_event if request.stream else None


async def openai_events(answer: Answer) -> AsyncGenerator[bytes, None]:
    """The chunks of an answer as events, and the end event."""
    async with aclosing(answer.chunks()) as chunks:
        async for chunk in chunks:
            yield sse(chunk)
    yield _DONE


async def _respond(exchange: Exchange, answer: Answer, *, stream: bool) -> None:
    if stream:
        await exchange.send_events(openai_events(answer), error_event)
    else:
        await exchange.send_json(await exchange.watched(answer.whole()))


async def chat_completions(exchange: Exchange) -> None:
    """POST /v1/chat/completions."""
    request = await exchange.read(ChatRequest)
    service = await exchange.use(request.model, late_error=late_error_of(request))
    answer = await exchange.prepared(service.chat, request)
    await _respond(exchange, answer, stream=bool(request.stream))


async def completions(exchange: Exchange) -> None:
    """POST /v1/completions."""
    request = await exchange.read(CompletionRequest)
    service = await exchange.use(request.model, late_error=late_error_of(request))
    answer = await exchange.prepared(service.complete, request)
    await _respond(exchange, answer, stream=bool(request.stream))


async def models(exchange: Exchange) -> None:
    """GET /v1/models: all models with states, the default first; adapters count as models."""
    default = exchange.models.find(None).model
    listed = sorted(exchange.models.all, key=lambda one: one is not default)
    shown = [_model(one, name) for one in listed for name in (None, *one.adapters)]
    await exchange.send_json({"object": "list", "data": shown})


async def model(exchange: Exchange) -> None:
    """GET /v1/models/{name}."""
    name, only = exchange.request.path_params["name"], exchange.models.only
    if only is not None and name not in (only.name, *only.aliases):
        raise ApiError(404, f"there is no model {name!r:.100} here", "model_not_found", "model")
    await exchange.send_json(_model(*exchange.models.find(name)))


def _model(one: ServedModel, adapter: str | None) -> dict[str, Any]:
    """A model, or one of its adapters."""
    shown: dict[str, Any] = {
        "id": one.name if adapter is None else adapter, "object": "model", "created": one.created,
        "owned_by": "pyllama_spec", "state": one.state,
    }  # fmt: skip
    if adapter is not None:
        shown["parent"] = one.name
    elif one.aliases:
        shown["aliases"] = list(one.aliases)
    if (why := one.failure_of(adapter)) is not None:
        shown |= {"state": "failed", "error": in_json(why)}
    service = one.service
    if service is None:
        shown["meta"] = {"draft": one.draft_asked_for}
        return shown
    info = service.llm.model.info
    shown["meta"] = {
        "n_vocab": info.n_vocab, "n_embd": info.n_embd, "n_ctx_train": info.n_ctx_train,
        "draft": service.draft_name, "memory_bytes": one.n_bytes,
    }  # fmt: skip
    return shown


ROUTES = (
    Route("POST", "/v1/chat/completions", chat_completions),
    Route("POST", "/v1/completions", completions),
    Route("GET", "/v1/models", models),
    Route("GET", "/v1/models/{name:path}", model),
)
