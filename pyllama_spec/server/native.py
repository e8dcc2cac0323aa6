"""llama-server's own endpoints: completions, tokens, templates, and the server's state."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from typing import Any

import msgspec

from pyllama_spec.chat.pictures import replaced_media
from pyllama_spec.chat.template import template_variables
from pyllama_spec.engine import Vocab, engine_version
from pyllama_spec.errors import UnsupportedError
from pyllama_spec.llama import Llama
from pyllama_spec.server.api_errors import ApiError
from pyllama_spec.server.exchange import Content, Exchange, Route
from pyllama_spec.server.metrics import CONTENT_TYPE
from pyllama_spec.server.models import ServedModel, stopping
from pyllama_spec.server.service import (
    Event,
    RequestInfo,
    Service,
    Shape,
    entries_of,
    text_or_ids,
    timings,
)
from pyllama_spec.server.shapes import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    InfillRequest,
    Json,
    NativeRequest,
    NativeSampling,
    Sampling,
    TokenizeRequest,
)

# The default of llama-server's texts: up to the context's end.
_NO_LIMIT = -1
# Where pictures and sounds are in a prompt that is shown as text; llama-server's variable sets it.
MEDIA_MARKER = os.environ.get("LLAMA_MEDIA_MARKER") or f"<__media_{secrets.token_hex(16)}__>"
# Of a request what its answer does not repeat.
_NO_SETTINGS = ("prompt", "input_prefix", "input_suffix", "input_extra", "user")
_STOPS = {"length": "limit", "stop": "eos"}


# ---- texts in llama-server's form


async def completion(exchange: Exchange, request: NativeRequest | InfillRequest) -> Any:
    """POST /completion, and /infill, which fills the text between two texts."""
    shape = NativeShape(request)
    return await exchange.generate(request, shape, shape.asked)


def _prompt_of(request: NativeRequest | InfillRequest, vocab: Vocab, n_ctx: int) -> Any:
    if isinstance(request, InfillRequest):
        beside = (
            f"--- {one.filename or 'snippet'} ---\n\n{one.text}\n" for one in request.input_extra
        )
        return "".join((*beside, request.input_prefix, request.prompt))
    prompts = [text_or_ids(one, vocab, n_ctx) for one in entries_of(request.prompt)]
    return prompts[0] if len(prompts) == 1 else prompts


class NativeShape(Shape):
    """The form of llama-server's texts."""

    def __init__(self, request: NativeSampling) -> None:
        self._has_tokens, self._n_ctx = request.return_tokens, 0
        given = msgspec.structs.asdict(request)
        self._settings = {
            name: one for name, one in given.items() if one is not None and name not in _NO_SETTINGS
        }

    def asked(self, request: NativeRequest | InfillRequest, service: Service) -> CompletionRequest:
        """The equivalent completion request."""
        self._n_ctx = service.llm.n_ctx()
        shared = {name: getattr(request, name) for name in Sampling.__struct_fields__}
        prompt = _prompt_of(request, service.llm.model.vocab, self._n_ctx)
        asked = CompletionRequest(prompt=prompt, **shared)
        asked.suffix = request.input_suffix if isinstance(request, InfillRequest) else None
        n = request.n_predict if request.n_predict is not None else request.max_tokens
        # 0 only reads the prompt; one token is the least here.
        asked.max_tokens = _NO_LIMIT if n is None else 1 if n == 0 else n
        asked.logprobs = request.n_probs or None
        asked.return_token_ids = True
        asked.stream_options = None
        return asked

    def shown_id(self, answer_id: str) -> str | None:
        """Its answers have no id."""
        return None

    def whole(self, answer: Json) -> Any:
        """See Shape."""
        shown = [self._ended(answer, choice) for choice in answer["choices"]]
        return shown[0] if len(shown) == 1 else shown

    def of(self, chunk: Json) -> Iterator[Event]:
        """See Shape."""
        (choice,) = chunk["choices"]
        if choice["finish_reason"] is not None:
            yield None, self._ended(chunk, choice)
            return
        yield None, {
            "index": choice["index"], "content": choice["text"], "tokens": choice["token_ids"],
            "stop": False, **self._details(choice),
        }  # fmt: skip

    def end(self) -> Iterator[Event]:
        """Its last chunk says that it is the last."""
        return iter(())

    def _ended(self, answer: Json, choice: Json) -> Json:
        """A whole choice, or its last chunk."""
        usage = answer["usage"]
        reason, word = choice["stop_reason"], ""
        stop_type = _STOPS.get(choice["finish_reason"], "none")
        if isinstance(reason, str):
            stop_type, word = "word", reason
        n_prompt, n_text = usage["prompt_tokens"], usage["completion_tokens"]
        return {
            "index": choice["index"],
            "content": choice["text"],
            "tokens": choice["token_ids"] if self._has_tokens else [],
            "stop": True,
            "model": answer["model"],
            "tokens_predicted": n_text,
            "tokens_evaluated": n_prompt,
            "tokens_cached": n_prompt + n_text,
            # By the end of the context; the usage of several texts is their sum.
            "truncated": len(answer["choices"]) == 1 and n_prompt + n_text >= self._n_ctx,
            "stop_type": stop_type,
            "stopping_word": word,
            "has_new_line": "\n" in choice["text"],
            "generation_settings": self._settings,
            "timings": timings(usage, answer["timing"], answer["speculation"]),
            "speculation": answer["speculation"],
            **self._details(choice),
        }

    def _details(self, choice: Json) -> Json:
        shown = {}
        if choice.get("logprobs"):
            shown["completion_probabilities"] = choice["logprobs"]["content"]
        if "token_sources" in choice:
            shown["token_sources"] = choice["token_sources"]
        return shown


# ---- tokens and templates


async def tokenize(exchange: Exchange, request: TokenizeRequest) -> Any:
    """POST /tokenize."""
    async with exchange.model(request.model) as service:
        return Content(await asyncio.to_thread(_tokenized, service.llm.model.vocab, request))


def _tokenized(vocab: Vocab, request: TokenizeRequest) -> bytes:
    """The answer as JSON, which is written in a thread: it may have millions of ids."""
    ids = vocab.tokenize(
        request.content, add_special=request.add_special, parse_special=request.parse_special
    )
    if not request.with_pieces:
        return msgspec.json.encode({"tokens": ids})
    each = {one: {"id": one, "piece": _piece(vocab.piece(one, special=True))} for one in set(ids)}
    return msgspec.json.encode({"tokens": [each[one] for one in ids]})


def _piece(raw: bytes) -> str | list[int]:
    """A token's text, or its bytes if they are not whole characters."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


async def detokenize(exchange: Exchange, request: DetokenizeRequest) -> Any:
    """POST /detokenize."""
    async with exchange.model(request.model) as service:
        raw = await asyncio.to_thread(service.llm.detokenize, request.tokens, special=True)
    return {"content": raw.decode(errors="replace")}


async def apply_template(exchange: Exchange, request: ChatRequest) -> Any:
    """POST /apply-template: renders a chat as the model's input text."""
    async with exchange.model(request.model) as service:
        return {"prompt": await asyncio.to_thread(_rendered, service, request, exchange.info)}


def _rendered(service: Service, request: ChatRequest, info: RequestInfo) -> str:
    """The prompt as text. With tools or separate thoughts the engine renders it."""
    service.keywords(request, info)  # within the bounds
    llm, defaults = service.llm, service.settings.chat_defaults
    if llm.mmproj_path is not None:
        marker = {"type": "text", "text": MEDIA_MARKER}
        request.messages = replaced_media(request.messages, lambda part, _: marker)
    form = request.reasoning_format or defaults.get("reasoning_format") or "none"
    effort = request.reasoning_effort or defaults.get("reasoning_effort")
    is_whole = request.add_generation_prompt is False
    if request.tools or effort is not None or (form != "none" and not is_whole):
        with service.unstarted(request, info) as handle:
            return llm.detokenize(handle.prompt_tokens, special=True).decode(errors="replace")
    variables = template_variables(
        request.chat_template_kwargs or defaults.get("chat_template_kwargs")
    )
    if request.add_generation_prompt is not None:
        variables["add_generation_prompt"] = request.add_generation_prompt
    return llm.template.render(request.messages, tools=request.tools, **variables).text


# ---- the server's state


async def health(exchange: Exchange, _: None) -> Any:
    """GET /health and /ready: the server accepts requests, and all preloads have ended."""
    if exchange.serving.is_stopping:
        raise stopping()
    if not exchange.models.is_ready:
        raise ApiError(503, "models are being loaded", "loading")
    return {"status": "ok"}


async def metrics(exchange: Exchange, _: None) -> Any:
    """GET /metrics."""
    serving = exchange.serving
    if not serving.settings.has_metrics:
        raise ApiError(
            501, "this server gives no metrics: they are switched off", "unsupported",
            option="has_metrics",
        )  # fmt: skip
    began = {"Process-Start-Time-Unix": str(serving.began_at)}
    return Content(serving.metrics.text(), CONTENT_TYPE, 200, began)


async def props(exchange: Exchange, _: None) -> Any:
    """GET /props?model=NAME: the model's facts without its path; it loads nothing."""
    one = _named(exchange)
    if not one.takes_requests:
        shown = {"model_alias": one.name, "build_info": _build_info(), "total_slots": 0}
        return {**shown, "state": one.state}
    async with exchange.model(one.name) as service:
        return await asyncio.to_thread(_props, service)


def _named(exchange: Exchange) -> ServedModel:
    """The model that ?model=NAME names."""
    return exchange.models.find(exchange.request.query_params.get("model")).model


def _props(service: Service) -> dict[str, Any]:
    llm = service.llm
    vocab, info = llm.model.vocab, llm.model.info
    shown: dict[str, Any] = {
        "model_alias": service.name,
        "model_path": llm.model.path.name,
        "model": {
            "arch": info.arch,
            "size": info.size,
            "type": llm.model.metadata.get("general.name"),
        },
        "build_info": _build_info(),
        "modalities": llm.modalities,
        "media_marker": MEDIA_MARKER,
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


async def slots(exchange: Exchange, _: None) -> Any:
    """GET /slots?model=NAME: the running requests, without their texts."""
    if not exchange.serving.settings.has_slots:
        raise ApiError(
            501, "this server shows no slots: they are switched off", "unsupported",
            option="has_slots",
        )  # fmt: skip
    one = _named(exchange)
    if not one.takes_requests:
        return []
    async with exchange.model(one.name) as service:
        begun = [answer.status() for answer in service.answers]
        n_parallel, n_ctx = service.llm.n_parallel, service.llm.n_ctx()
    computed = [one for one in begun if one["stage"] in ("reading", "generating")]
    shown = [{"is_processing": True, **one} for one in computed]
    shown += [{"is_processing": False}] * (n_parallel - len(computed))
    return [{"id": i, "n_ctx": n_ctx, **one} for i, one in enumerate(shown)]


ROUTES = (
    Route("POST", "/completion", completion, NativeRequest),
    Route("POST", "/completions", completion, NativeRequest),
    Route("POST", "/infill", completion, InfillRequest),
    Route("POST", "/tokenize", tokenize, TokenizeRequest),
    Route("POST", "/detokenize", detokenize, DetokenizeRequest),
    Route("POST", "/apply-template", apply_template, ChatRequest),
    Route("GET", "/health", health, is_open=True),
    Route("GET", "/v1/health", health, is_open=True),
    Route("GET", "/ready", health, is_open=True),
    Route("GET", "/metrics", metrics),
    Route("GET", "/props", props),
    Route("GET", "/slots", slots),
)
