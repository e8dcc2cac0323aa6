"""OpenAI's endpoints: chats, texts, embeddings, the list of models; and reranking."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec.engine.checks import one_of
from pyllama_spec.errors import ArgumentError, ContextFullError, UnsupportedError
from pyllama_spec.llama import Llama
from pyllama_spec.server.api_errors import ApiError
from pyllama_spec.server.exchange import Exchange, Route, ToChat
from pyllama_spec.server.models import ServedModel
from pyllama_spec.server.service import Service, beyond, entries_of, text_or_ids
from pyllama_spec.server.shapes import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    NativeEntry,
    RerankRequest,
)


async def count_tokens(exchange: Exchange, request: Any, to_chat: ToChat | None = None) -> Any:
    """POST /v1/chat/completions/input_tokens."""
    n = await exchange.count_tokens(request, to_chat)
    return {"object": "response.input_tokens", "input_tokens": n}


async def models(exchange: Exchange, _: None) -> Any:
    """GET /v1/models: all models with states, the default first; adapters count as models.

    `models` is what llama-server has beside OpenAI's `data`.
    """
    default = exchange.models.find(None).model
    listed = sorted(exchange.models.all, key=lambda one: one is not default)
    shown = [_model(one, name) for one in listed for name in (None, *one.spec.adapters)]
    return {"object": "list", "data": shown, "models": [_capable(one) for one in listed]}


async def model(exchange: Exchange, _: None) -> Any:
    """GET /v1/models/{name}."""
    name, only = exchange.request.path_params["name"], exchange.models.only
    if only is not None and name not in (only.name, *only.spec.aliases):
        raise ApiError(404, f"there is no model {name!r:.100} here", "model_not_found", "model")
    return _model(*exchange.models.find(name))


def _capable(one: ServedModel) -> dict[str, Any]:
    """A model in llama-server's form."""
    more = one.service is not None and any(one.service.llm.modalities.values())
    can = ["completion", *["multimodal"] * more]
    return {"name": one.name, "model": one.name, "type": "model", "capabilities": can}


def _model(one: ServedModel, adapter: str | None) -> dict[str, Any]:
    """A model, or one of its adapters."""
    shown: dict[str, Any] = {
        "id": one.name if adapter is None else adapter, "object": "model", "created": one.created,
        "owned_by": "pyllama_spec", "state": one.state,
    }  # fmt: skip
    if adapter is not None:
        shown["parent"] = one.name
    elif one.spec.aliases:
        shown["aliases"] = list(one.spec.aliases)
    if adapter is not None and one.opened is not None and one.opened.adapters[adapter] is None:
        shown["state"] = "failed"
    service = one.service
    if service is None:
        draft = one.spec.keywords.get("draft")
        shown["meta"] = {"draft": None if draft in (None, "none") else Path(str(draft)).name}
        return shown
    info = service.llm.model.info
    shown["meta"] = {
        "n_vocab": info.n_vocab, "n_embd": info.n_embd, "n_ctx_train": info.n_ctx_train,
        "draft": service.draft_name, "memory_bytes": one.n_bytes,
        "modalities": service.llm.modalities,
    }  # fmt: skip
    return shown


async def embeddings(exchange: Exchange, request: EmbeddingRequest) -> Any:
    """POST /v1/embeddings: a vector of length 1 for each text."""
    texts = entries_of(request.input)
    async with exchange.model(request.model, needs_base=True) as service:
        _check_embedding(request, texts, service)
        async with service.beside() as check:
            vectors, n_tokens = await asyncio.to_thread(_vectors, service.llm, texts, check)
        service.metrics.note_vectors(n_tokens)
    exchange.info.note["prompt_tokens"] = n_tokens
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": i, "embedding": _encoded(one, request)}
            for i, one in enumerate(vectors)
        ],
        "model": request.model or service.name,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }


def _check_embedding(request: EmbeddingRequest, texts: list[Any], service: Service) -> None:
    most, n_embd = service.settings.max_inputs, service.llm.model.info.n_embd_out
    one_of(request.encoding_format, ("float", "base64"), "encoding_format")
    if len(texts) > most:
        raise beyond("input", f"has {len(texts)} entries", most)
    if not texts:
        raise ApiError(400, "input is empty: there is nothing to embed", "invalid_value", "input")
    if request.dimensions not in (None, n_embd):
        raise ApiError(
            400, f"dimensions={request.dimensions}: this model's vectors have {n_embd} numbers and "
            "cannot be shortened: omit dimensions", "unsupported", "dimensions",
        )  # fmt: skip


def _vectors(
    llm: Llama, texts: list[NativeEntry], check: Callable[[], None]
) -> tuple[list[list[float]], int]:
    """A vector per text, one after the other, so that a client may disconnect in between."""
    vectors, n_tokens = [], 0
    for i, text in enumerate(texts):
        check()
        try:
            given = text_or_ids(text, llm.model.vocab, llm.model.info.n_ctx_train)
            vector, n = llm.embed(given, normalize=True, truncate=False, return_count=True)
        except (ArgumentError, ContextFullError) as error:
            raise (error.copied(param=f"input[{i}]") if len(texts) > 1 else error) from None
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


async def rerank(exchange: Exchange, request: RerankRequest) -> Any:
    """POST /v1/rerank: the documents by their score for the query, best first."""
    given = request.texts if request.documents is None else request.documents
    if not given:
        raise ApiError(
            400, "documents is missing or empty: give a list of texts", "invalid_value", "documents"
        )
    documents = [_document(one) for one in given]
    async with exchange.model(request.model, needs_base=True) as service:
        if len(documents) > (most := service.settings.max_inputs):
            raise beyond("documents", f"has {len(documents)} entries", most)
        llm, query = service.llm, request.query
        async with service.beside() as check:
            scores = await asyncio.to_thread(_scores, llm, query, documents, check)
        is_counted = request.documents is not None
        n_tokens = await asyncio.to_thread(_n_tokens, llm, query, documents) if is_counted else 0
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    if request.top_n is not None:
        order = order[: max(request.top_n, 0)]
    if request.documents is None:  # the other published form
        texts = [{"text": documents[i]} if request.return_text else {} for i in order]
        return [{"index": i, "score": scores[i], **t} for i, t in zip(order, texts, strict=True)]
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in order]
    if request.return_documents:
        results = [{**one, "document": {"text": documents[one["index"]]}} for one in results]
    return {
        "object": "list",
        "model": request.model or service.name,
        "results": results,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }


def _document(given: str | dict[str, Any]) -> str:
    text = given.get("text") if isinstance(given, dict) else given
    if not isinstance(text, str):
        raise ApiError(
            400, "a document is a text, or an object with one in text", "invalid_value",
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
    Route("POST", "/v1/chat/completions", Exchange.generate, ChatRequest),
    Route("POST", "/chat/completions", Exchange.generate, ChatRequest),
    Route("POST", "/v1/chat/completions/input_tokens", count_tokens, ChatRequest),
    Route("POST", "/chat/completions/input_tokens", count_tokens, ChatRequest),
    Route("POST", "/v1/completions", Exchange.generate, CompletionRequest),
    Route("POST", "/v1/embeddings", embeddings, EmbeddingRequest),
    Route("POST", "/embeddings", embeddings, EmbeddingRequest),
    Route("POST", "/v1/rerank", rerank, RerankRequest),
    Route("POST", "/v1/reranking", rerank, RerankRequest),
    Route("POST", "/rerank", rerank, RerankRequest),
    Route("POST", "/reranking", rerank, RerankRequest),
    Route("GET", "/v1/models", models),
    Route("GET", "/models", models),
    Route("GET", "/v1/models/{name:path}", model),
)
