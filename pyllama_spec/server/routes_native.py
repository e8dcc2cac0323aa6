"""llama-server's own endpoints: completions, tokens, templates, and the server's state."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from pyllama_spec.chat.prompts import template_variables
from pyllama_spec.engine import Vocab, engine_version
from pyllama_spec.errors import UnsupportedError
from pyllama_spec.llama import Llama
from pyllama_spec.server.api_errors import ApiError
from pyllama_spec.server.exchange import Exchange, Route, sse, stopping
from pyllama_spec.server.metrics import CONTENT_TYPE
from pyllama_spec.server.models import given_up
from pyllama_spec.server.routes_openai import error_event, late_error_of
from pyllama_spec.server.service import Answer, Service, timings
from pyllama_spec.server.shapes import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    InfillRequest,
    NativeRequest,
    NativeSampling,
    Sampling,
    TokenizeRequest,
)

# The default of llama-server's texts: up to the context's end.
_NO_LIMIT = -1
# Tokens that are written as JSON in one go.
_TOGETHER = 1 << 16
_STOPS = {"length": "limit", "stop": "eos"}


# ---- texts in llama-server's form


async def completion(exchange: Exchange) -> None:
    """POST /completion."""
    request = await exchange.read(NativeRequest)
    await _respond(exchange, request, _translated(request, request.prompt))


async def infill(exchange: Exchange) -> None:
    """POST /infill: fills the text between two texts."""
    request = await exchange.read(InfillRequest)
    beside = "".join(
        f"--- {one.filename or 'snippet'} ---\n\n{one.text}\n" for one in request.input_extra
    )
    translated = _translated(request, beside + request.input_prefix + request.prompt)
    translated.suffix = request.input_suffix
    await _respond(exchange, request, translated)


def _translated(request: NativeSampling, prompt: Any) -> CompletionRequest:
    """The equivalent completion request."""
    shared = {name: getattr(request, name) for name in Sampling.__struct_fields__}
    translated = CompletionRequest(prompt=prompt, **shared)
    n = request.n_predict if request.n_predict is not None else request.max_tokens
    translated.max_tokens = _NO_LIMIT if n is None else n
    translated.logprobs = request.n_probs or None
    translated.return_token_ids = True
    translated.stream_options = None
    return translated


async def _respond(
    exchange: Exchange, request: NativeSampling, translated: CompletionRequest
) -> None:
    service = await exchange.use(request.model, late_error=late_error_of(request))
    if translated.max_tokens == 0:  # only prefills the prompt; one token is the least here
        translated.max_tokens = 1
    answer = await exchange.prepared(service.complete, translated)
    answer.shown_id = None
    if request.stream:
        await exchange.send_events(_events(answer, service.name, request), error_event)
        return
    response = await exchange.watched(answer.whole())
    shown = [_native(response, choice, service.name, request) for choice in response["choices"]]
    await exchange.send_json(shown[0] if len(shown) == 1 else shown)


def _native(
    response: Mapping[str, Any],
    choice: Mapping[str, Any],
    model: str,
    request: NativeSampling,
) -> dict[str, Any]:
    """A choice, or its last chunk, in llama-server's format."""
    usage = response["usage"]
    reason, word = choice["stop_reason"], ""
    stop_type = _STOPS.get(choice["finish_reason"], "none")
    if isinstance(reason, str):
        stop_type, word = "word", reason
    n_prompt = usage["prompt_tokens"]
    shown = {
        "index": choice["index"],
        "content": choice["text"],
        "tokens": choice["token_ids"] if request.return_tokens else [],
        "stop": True,
        "model": request.model or model,
        "tokens_predicted": usage["completion_tokens"],
        "tokens_evaluated": n_prompt,
        "tokens_cached": n_prompt + usage["completion_tokens"],
        "truncated": False,
        "stop_type": stop_type,
        "stopping_word": word,
        "has_new_line": "\n" in choice["text"],
        "timings": timings(usage, response["timing"], response["speculation"]),
        "speculation": response["speculation"],
    }
    if choice.get("logprobs"):
        shown["completion_probabilities"] = _probabilities(choice, request.n_probs or 0)
    if "token_sources" in choice:
        shown["token_sources"] = choice["token_sources"]
    return shown


def _probabilities(choice: Mapping[str, Any], n: int) -> list[dict[str, Any]]:
    logprobs, ids = choice["logprobs"], choice["token_ids"]
    return [
        {
            "id": token_id, "token": token, "bytes": list(token.encode()), "logprob": logprob,
            "top_logprobs": [
                {"token": k, "logprob": v}
                for k, v in sorted((top or {}).items(), key=lambda one: -one[1])[:n]
            ],
        }
        for token_id, token, logprob, top in zip(
            ids, logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"],
            strict=False,
        )
    ]  # fmt: skip


async def _events(
    answer: Answer, model: str, request: NativeSampling
) -> AsyncGenerator[bytes, None]:
    async with aclosing(answer.chunks()) as chunks:
        async for chunk in chunks:
            (choice,) = chunk["choices"]
            if choice["finish_reason"] is not None:
                yield sse(_native(chunk, choice, model, request))
                continue
            shown = {
                "index": choice["index"], "content": choice["text"],
                "tokens": choice["token_ids"], "stop": False,
            }  # fmt: skip
            if choice.get("logprobs"):
                shown["completion_probabilities"] = _probabilities(choice, request.n_probs or 0)
            if "token_sources" in choice:
                shown["token_sources"] = choice["token_sources"]
            yield sse(shown)


# ---- tokens and templates


async def tokenize(exchange: Exchange) -> None:
    """POST /tokenize."""
    request = await exchange.read(TokenizeRequest)
    service = await exchange.use(request.model)
    parts = await service.in_thread(_tokenized, service.llm.model.vocab, request)
    await exchange.send_parts(parts, b"application/json")


def _tokenized(vocab: Vocab, request: TokenizeRequest) -> list[bytes]:
    """The answer in parts: writing millions of ids at once would block all other requests."""
    ids = vocab.tokenize(
        request.content, add_special=request.add_special, parse_special=request.parse_special
    )
    each: dict[int, bytes] = {}
    parts = []
    for at in range(0, len(ids), _TOGETHER):
        part = ids[at : at + _TOGETHER]
        written = _with_pieces(vocab, part, each) if request.with_pieces else _bare(part)
        parts.append(b"," + written if at else written)
    while ids:
        del ids[-_TOGETHER:]
    return [b'{"tokens":[', *parts, b"]}"]


def _bare(ids: list[int]) -> bytes:
    return msgspec.json.encode(ids)[1:-1]


def _with_pieces(vocab: Vocab, ids: list[int], each: dict[int, bytes]) -> bytes:
    """The ids with texts; each distinct token is converted once."""
    for one in set(ids) - each.keys():
        shown = {"id": one, "piece": _piece(vocab.piece(one, special=True))}
        each[one] = msgspec.json.encode(shown)
    return b",".join([each[one] for one in ids])


def _piece(raw: bytes) -> str | list[int]:
    """A token's text, or its bytes if they are not whole characters."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


async def detokenize(exchange: Exchange) -> None:
    """POST /detokenize."""
    request = await exchange.read(DetokenizeRequest)
    service = await exchange.use(request.model)
    raw = await service.in_thread(service.llm.detokenize, request.tokens, special=True)
    await exchange.send_json({"content": raw.decode(errors="replace")})


async def apply_template(exchange: Exchange) -> None:
    """POST /apply-template: renders a chat as the model's input text."""
    request = await exchange.read(ChatRequest)
    service = await exchange.use(request.model)
    text = await service.in_thread(_rendered, service, request)
    await exchange.send_json({"prompt": text})


def _rendered(service: Service, request: ChatRequest) -> str:
    """The prompt as text. With tools or separate thoughts the engine renders it."""
    service.chat_keywords(request)  # within the bounds
    llm, defaults = service.llm, service.settings.chat_defaults
    form = request.reasoning_format or defaults.get("reasoning_format") or "none"
    effort = request.reasoning_effort or defaults.get("reasoning_effort")
    is_whole = request.add_generation_prompt is False
    if request.tools or effort is not None or (form != "none" and not is_whole):
        with service.unstarted(request) as handle:
            return llm.detokenize(handle.prompt_tokens, special=True).decode(errors="replace")
    variables = template_variables(
        request.chat_template_kwargs or defaults.get("chat_template_kwargs")
    )
    if request.add_generation_prompt is not None:
        variables["add_generation_prompt"] = request.add_generation_prompt
    return llm.template.render(request.messages, tools=request.tools, **variables).text


# ---- the server's state


async def health(exchange: Exchange) -> None:
    """GET /health: 200 while the process runs, and no model needs a restart of it."""
    if failed := exchange.models.given_up:
        raise given_up(failed[0].name)
    await exchange.send_json({"status": "ok"})


async def ready(exchange: Exchange) -> None:
    """GET /ready: the server accepts requests, and all preloads have ended."""
    models = exchange.models
    if exchange.serving.is_stopping:
        raise stopping()
    if not models.is_ready:
        has_failed = models.only is not None and models.only.has_failed
        what = "the model failed and is being reopened" if has_failed else "models are being loaded"
        raise ApiError(503, what, "loading")
    # Without a key: the counts, and not the names.
    more = {} if models.only is not None else {"models": models.counts()}
    await exchange.send_json({"status": "ready", **more})


async def metrics(exchange: Exchange) -> None:
    """GET /metrics."""
    serving = exchange.serving
    if not serving.settings.has_metrics:
        raise ApiError(
            501, "this server gives no metrics: they are switched off", "unsupported",
            option="has_metrics",
        )  # fmt: skip
    for one in exchange.models.all:
        if one.service is not None:
            one.service.note_decodes()
    await exchange.send_bytes(serving.metrics.text(), CONTENT_TYPE)


async def props(exchange: Exchange) -> None:
    """GET /props?model=NAME: the model's facts without its path; it loads nothing."""
    one = exchange.models.find(exchange.request.query_params.get("model")).model
    if one.service is None or one.has_failed:
        shown = {"model_alias": one.name, "build_info": _build_info(), "total_slots": 0}
        await exchange.send_json({**shown, "state": one.state})
        return
    service = await exchange.use(exchange.request.query_params.get("model"))
    await exchange.send_json(await service.in_thread(_props, service))


def _props(service: Service) -> dict[str, Any]:
    llm = service.llm
    vocab, info = llm.model.vocab, llm.model.info
    shown: dict[str, Any] = {
        "model_alias": service.name,
        "model": {
            "arch": info.arch,
            "size": info.size,
            "type": llm.model.metadata.get("general.name"),
        },
        "build_info": _build_info(),
        "modalities": {"vision": False, "audio": False},
        "bos_token": _token(llm, vocab.bos),
        "eos_token": _token(llm, vocab.eos),
        "draft": service.draft_name,
        "max_tokens": service.settings.max_tokens,
    }
    try:
        n_ctx = llm.n_ctx()
        shown |= {
            "total_slots": llm.n_parallel,
            "default_generation_settings": {
                "n_ctx": n_ctx,
                "params": dict(service.settings.defaults),
            },
            "chat_template": llm.template.source,
        }
    except UnsupportedError:  # a model for vectors alone
        shown |= {"total_slots": 0, "default_generation_settings": {}, "chat_template": ""}
    return shown


def _build_info() -> str:
    return f"pyllama_spec, llama.cpp {engine_version()}"


def _token(llm: Llama, token: int | None) -> str:
    if token is None:
        return ""
    return llm.model.vocab.piece(token, special=True).decode(errors="replace")


async def slots(exchange: Exchange) -> None:
    """GET /slots?model=NAME: the running requests, without their texts."""
    if not exchange.serving.settings.has_slots:
        raise ApiError(
            501, "this server shows no slots: they are switched off", "unsupported",
            option="has_slots",
        )  # fmt: skip
    one = exchange.models.find(exchange.request.query_params.get("model")).model
    if one.service is None or one.has_failed:
        await exchange.send_json([])
        return
    service = await exchange.use(exchange.request.query_params.get("model"))
    begun = [answer.status() for answer in service.answers]
    computed = [one for one in begun if one["stage"] in ("reading", "generating")]
    n_idle = max(service.llm.n_parallel - len(computed), 0)
    n_ctx = service.llm.n_ctx()
    shown = [{"is_processing": True, **one} for one in computed]
    shown += [{"is_processing": False} for _ in range(n_idle)]
    await exchange.send_json([{"id": i, "n_ctx": n_ctx, **one} for i, one in enumerate(shown)])


ROUTES = (
    Route("POST", "/completion", completion),
    Route("POST", "/completions", completion),
    Route("POST", "/infill", infill),
    Route("POST", "/tokenize", tokenize),
    Route("POST", "/detokenize", detokenize),
    Route("POST", "/apply-template", apply_template),
    Route("GET", "/health", health, is_open=True),
    Route("GET", "/v1/health", health, is_open=True),
    Route("GET", "/ready", ready, is_open=True),
    Route("GET", "/metrics", metrics),
    Route("GET", "/props", props),
    Route("GET", "/slots", slots),
)
