"""OpenAI's endpoints: chats, texts, embeddings, the list of models."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from pyllama_spec.server.api_errors import ApiError, openai_error
from pyllama_spec.server.exchange import Exchange, Route, sse
from pyllama_spec.server.service import Answer, Service
from pyllama_spec.server.shapes import ChatRequest, CompletionRequest

_DONE = sse("[DONE]")


def error_event(error: ApiError) -> bytes:
    """An error in the middle of a stream."""
    return sse(openai_error(error))


async def openai_events(answer: Answer) -> AsyncGenerator[bytes, None]:
    """The chunks of an answer as events, and the one behind them."""
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
    answer = await exchange.prepared(exchange.service.chat, request)
    await _respond(exchange, answer, stream=bool(request.stream))


async def completions(exchange: Exchange) -> None:
    """POST /v1/completions."""
    request = await exchange.read(CompletionRequest)
    answer = await exchange.prepared(exchange.service.complete, request)
    await _respond(exchange, answer, stream=bool(request.stream))


async def models(exchange: Exchange) -> None:
    """GET /v1/models."""
    service = exchange.service
    await exchange.send_json({"object": "list", "data": [_model(service)]})


async def model(exchange: Exchange) -> None:
    """GET /v1/models/{name}."""
    service, name = exchange.service, exchange.path_params["name"]
    if name != service.name:
        raise ApiError(404, f"there is no model {name!r:.100} here", "model_not_found", "model")
    await exchange.send_json(_model(service))


def _model(service: Service) -> dict[str, Any]:
    info = service.llm.model.info
    return {
        "id": service.name, "object": "model", "created": service.created,
        "owned_by": "pyllama_spec",
        "meta": {
            "n_vocab": info.n_vocab, "n_embd": info.n_embd, "n_ctx_train": info.n_ctx_train,
            "draft": service.draft_name,
        },
    }  # fmt: skip


ROUTES = (
    Route("POST", "/v1/chat/completions", chat_completions),
    Route("POST", "/v1/completions", completions),
    Route("GET", "/v1/models", models),
    Route("GET", "/v1/models/{name:path}", model),
)
