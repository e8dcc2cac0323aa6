"""OpenAI's endpoints: chats, texts, embeddings, the list of models; and reranking."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import numpy as np

from pyllama_spec.errors import UnsupportedError
from pyllama_spec.llama import Llama
from pyllama_spec.server.api_errors import ApiError, openai_error
from pyllama_spec.server.exchange import Exchange, Route, sse
from pyllama_spec.server.keywords import beyond
from pyllama_spec.server.served_model import ServedModel
from pyllama_spec.server.service import Answer
from pyllama_spec.server.shapes import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Prompt,
    RerankRequest,
    Sampling,
)

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
        shown |= {"state": "failed", "error": why}
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


async def embeddings(exchange: Exchange) -> None:
    """POST /v1/embeddings: a vector of length 1 for each text."""
    request = await exchange.read(EmbeddingRequest)
    service = await exchange.use(request.model, needs_base=True)
    texts, most = await exchange.prepared(_texts, request.input), service.settings.max_inputs
    if len(texts) > most:
        raise beyond("input", f"has {len(texts)} entries", most)
    if not texts:
        raise ApiError(400, "input is empty: there is nothing to embed", "invalid_value", "input")
    n_embd = service.llm.model.info.n_embd_out
    if request.dimensions not in (None, n_embd):
        raise ApiError(
            400, f"dimensions={request.dimensions}: this model's vectors have {n_embd} numbers and "
            "cannot be shortened: omit dimensions", "unsupported", "dimensions",
        )  # fmt: skip

    async def computed() -> tuple[list[list[float]], int]:
        async with service.beside() as check:
            return await service.in_thread(_vectors, service.llm, texts, check)

    vectors, n_tokens = await exchange.watched(computed())
    exchange.note["prompt_tokens"] = n_tokens
    await exchange.send_json({
        "object": "list",
        "data": [
            {"object": "embedding", "index": i, "embedding": _encoded(one, request)}
            for i, one in enumerate(vectors)
        ],
        "model": request.model or service.name,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    })  # fmt: skip


def _texts(given: Prompt) -> list[str | list[int]]:
    """The texts of a request, each as str or ids."""
    if isinstance(given, str):
        return [given]
    if given and all(isinstance(one, int) for one in given):
        return [[one for one in given if isinstance(one, int)]]
    return [one for one in given if not isinstance(one, int)]


def _vectors(
    llm: Llama, texts: list[str | list[int]], check: Callable[[], None]
) -> tuple[list[list[float]], int]:
    """A vector per text, one after the other, so that a client may disconnect in between."""
    vectors, n_tokens = [], 0
    for text in texts:
        check()
        vector, n = llm.embed(text, normalize=True, truncate=False, return_count=True)
        if vector and isinstance(vector[0], list):
            raise UnsupportedError(
                "this model returns a vector for each token, not for a text",
                setup="open it with `pooling_type=mean` or last",
            )
        vectors.append(vector)
        n_tokens += n
    return vectors, n_tokens


def _encoded(vector: list[float], request: EmbeddingRequest) -> Any:
    if request.encoding_format == "float":
        return vector
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode("ascii")


async def rerank(exchange: Exchange) -> None:
    """POST /v1/rerank: the documents by their score for the query, best first."""
    request = await exchange.read(RerankRequest)
    service = await exchange.use(request.model, needs_base=True)
    given = request.texts if request.documents is None else request.documents
    if given is None:
        raise ApiError(
            400, "documents is missing: give a list of texts", "invalid_value", "documents"
        )
    documents, most = [_document(one) for one in given], service.settings.max_inputs
    if len(documents) > most:
        raise beyond("documents", f"has {len(documents)} entries", most)

    async def computed() -> list[float]:
        async with service.beside() as check:
            return await service.in_thread(_scores, service.llm, request.query, documents, check)

    scores = await exchange.watched(computed())
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    if request.top_n is not None:
        order = order[: max(request.top_n, 0)]
    if request.documents is None:
        shown: list[dict[str, Any]] = [{"index": i, "score": scores[i]} for i in order]
        if request.return_text:
            shown = [{**one, "text": documents[one["index"]]} for one in shown]
        await exchange.send_json(shown)
        return
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in order]
    if request.return_documents:
        results = [{**one, "document": {"text": documents[one["index"]]}} for one in results]
    n_tokens = await service.in_thread(_n_tokens, service.llm, request.query, documents)
    await exchange.send_json({
        "object": "list",
        "model": request.model or service.name,
        "results": results,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    })  # fmt: skip


def _document(given: str | dict[str, Any]) -> str:
    text = given.get("text") if isinstance(given, dict) else given
    if not isinstance(text, str):
        raise ApiError(
            400, "a document is a text, or an object with one as `text`", "invalid_value",
            "documents",
        )  # fmt: skip
    return text


def _scores(llm: Llama, query: str, documents: list[str], check: Callable[[], None]) -> list[float]:
    scores = llm.rank(query, [])  # raises if the model is not a reranker, even without documents
    for document in documents:
        check()
        scores += llm.rank(query, [document])
    return scores


def _n_tokens(llm: Llama, query: str, documents: list[str]) -> int:
    """The number of tokens read: the query with each document."""

    def n_of(text: str) -> int:
        return len(llm.tokenize(text, add_bos=False))

    return n_of(query) * len(documents) + sum(map(n_of, documents))


ROUTES = (
    Route("POST", "/v1/chat/completions", chat_completions),
    Route("POST", "/v1/completions", completions),
    Route("GET", "/v1/models", models),
    Route("GET", "/v1/models/{name:path}", model),
    Route("POST", "/v1/embeddings", embeddings),
    Route("POST", "/embeddings", embeddings),
    Route("POST", "/v1/rerank", rerank),
    Route("POST", "/v1/reranking", rerank),
    Route("POST", "/rerank", rerank),
    Route("POST", "/reranking", rerank),
)
