"""Endpoints under the names of other servers: llama-server, llama-cpp-python."""

from __future__ import annotations

from msgspec import Struct

from pyllama_spec.server.exchange import Exchange, Route
from pyllama_spec.server.routes_dialects import count_input_tokens, n_prompt, responses
from pyllama_spec.server.routes_openai import chat_completions, models
from pyllama_spec.server.shapes import ChatRequest, Name


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
