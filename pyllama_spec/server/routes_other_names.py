"""Endpoints under the names that other servers have for them: llama-server, llama-cpp-python's."""

from __future__ import annotations

from msgspec import Struct

from pyllama_spec.server.exchange import Exchange, Route
from pyllama_spec.server.routes_dialects import responses
from pyllama_spec.server.routes_openai import chat_completions, models


class ExtrasText(Struct, kw_only=True):
    """The body of /extras/tokenize and /extras/tokenize/count."""

    input: str


class ExtrasTokens(Struct, kw_only=True):
    """The body of /extras/detokenize."""

    tokens: list[int]


async def _tokens(exchange: Exchange) -> list[int]:
    request = await exchange.read(ExtrasText)
    llm = exchange.service.llm
    return await exchange.service.in_thread(llm.tokenize, request.input.encode(), special=True)


async def extras_tokenize(exchange: Exchange) -> None:
    """POST /extras/tokenize: with a BOS token, where the model has one before its texts."""
    await exchange.send_json({"tokens": await _tokens(exchange)})


async def extras_count(exchange: Exchange) -> None:
    """POST /extras/tokenize/count."""
    await exchange.send_json({"count": len(await _tokens(exchange))})


async def extras_detokenize(exchange: Exchange) -> None:
    """POST /extras/detokenize."""
    request = await exchange.read(ExtrasTokens)
    llm = exchange.service.llm
    raw = await exchange.service.in_thread(llm.detokenize, request.tokens)
    await exchange.send_json({"text": raw.decode(errors="replace")})


ROUTES = (
    Route("POST", "/chat/completions", chat_completions),
    Route("POST", "/responses", responses),
    Route("GET", "/models", models),
    Route("POST", "/extras/tokenize", extras_tokenize),
    Route("POST", "/extras/tokenize/count", extras_count),
    Route("POST", "/extras/detokenize", extras_detokenize),
)
