"""OpenAI's endpoints: chats, texts, embeddings, the list of models."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from pyllama_spec.server.api_errors import ApiError, openai_error
from pyllama_spec.server.exchange import Exchange, Route, sse
from pyllama_spec.server.service import Answer
from pyllama_spec.server.shapes import ChatRequest, CompletionRequest

_DONE = sse("[DONE]")


def error_event(error: ApiError) -> bytes:
    """An error in the middle of a stream."""
    return sse(openai_error(error))


async def openai_events(answer: Answer) -> AsyncGenerator[bytes, None]:
    """The chunks of an answer as events, and the one behind them."""
    async for chunk in answer:
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
    answer = exchange.service.chat(request)
    await _respond(exchange, answer, stream=bool(request.stream))


async def completions(exchange: Exchange) -> None:
    """POST /v1/completions."""
    request = await exchange.read(CompletionRequest)
    answer = exchange.service.complete(request)
    await _respond(exchange, answer, stream=bool(request.stream))


async def models(exchange: Exchange) -> None:
    """GET /v1/models."""
    service = exchange.service
    one = {"id": service.name, "object": "model", "created": 0, "owned_by": "pyllama_spec"}
    await exchange.send_json({"object": "list", "data": [one]})


ROUTES = (
    Route("POST", "/v1/chat/completions", chat_completions),
    Route("POST", "/v1/completions", completions),
    Route("GET", "/v1/models", models),
)
