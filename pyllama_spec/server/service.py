"""Requests begun on the Llama: from a body that was read to chunks, or to a whole answer."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import msgspec

from pyllama_spec.llama import Llama
from pyllama_spec.llama.responses import Response, Stream
from pyllama_spec.server.api_errors import ApiError
from pyllama_spec.server.settings import ServerSettings
from pyllama_spec.server.shapes import ChatRequest, CompletionRequest, Sampling, Speculation

_T = TypeVar("_T")
log = logging.getLogger("pyllama_spec.server")

# What a body calls otherwise than RequestOptions.
_RENAMED = {
    "repetition_penalty": "repeat_penalty",
    "repeat_last_n": "penalty_last_n",
    "mirostat": "mirostat_mode",
    "timeout": "timeout_s",
}
# What is translated by hand, or is nothing for the library.
_APART = frozenset((
    "model", "messages", "prompt", "suffix", "echo", "best_of", "stream", "stream_options",
    "speculation", "prediction", "json_schema", "logit_bias",
))  # fmt: skip


class Service:
    """What the endpoints share: the model, the bounds, and what runs.

    Args:
        llm: the model; it stays the caller's to close.
        settings: the bounds.

    Attributes:
        llm, settings: see above.
        name: what answers call the model.
        created: when it began, in seconds since 1970, for lists of models.
        running: tasks that answer a request now.
        is_stopping: whether nothing new is taken.

    """

    def __init__(self, llm: Llama, settings: ServerSettings) -> None:
        self.llm, self.settings = llm, settings
        self.name = settings.alias or Path(llm.model_path).name
        self.running: set[asyncio.Task[Any]] = set()
        self.is_stopping = False

    def chat(self, request: ChatRequest) -> Answer:
        """An answer to a chat, which has not begun.

        Raises:
            ApiError: the request is beyond a bound.

        """
        most = self.settings.max_messages
        if len(request.messages) > most:
            raise ApiError(
                400, f"messages has {len(request.messages)} entries, and this server takes {most}",
                "too_many_messages", "messages",
            )  # fmt: skip
        keywords = self._keywords(request)
        return Answer(self, self.llm.acreate_chat_completion, (request.messages,), keywords)

    def complete(self, request: CompletionRequest) -> Answer:
        """A text continued, or each of several; nothing of it has begun.

        Raises:
            ApiError: the request is beyond a bound.

        """
        keywords = self._keywords(request)
        most, prompt = self.settings.max_inputs, request.prompt
        is_list = isinstance(prompt, list) and any(not isinstance(one, int) for one in prompt)
        if is_list and len(prompt) > most:
            raise ApiError(
                400, f"prompt has {len(prompt)} entries, and this server takes {most}",
                "too_many_prompts", "prompt",
            )  # fmt: skip
        for name in ("suffix", "echo"):
            if (value := getattr(request, name)) is not None:
                keywords[name] = value
        if request.best_of is not None and request.best_of != (request.n or 1):
            raise ApiError(
                400, f"best_of={request.best_of} is not n: this server gives all of its answers",
                "unsupported", "best_of",
            )  # fmt: skip
        return Answer(self, self.llm.acreate_completion, (prompt,), keywords)

    def _keywords(self, request: Sampling) -> dict[str, Any]:
        """The keywords of a call of Llama's, with the server's defaults and bounds."""
        settings = self.settings
        keywords = dict(settings.defaults)
        for name, value in msgspec.structs.asdict(request).items():
            if value is not None and name not in _APART:
                keywords[_RENAMED.get(name, name)] = value
        keywords["model"] = request.model or self.name
        if request.stream_options is not None:
            keywords["stream_options"] = msgspec.structs.asdict(request.stream_options)
        if request.json_schema is not None:
            keywords["response_format"] = {"type": "json_object", "schema": request.json_schema}
        if request.logit_bias is not None:
            keywords["logit_bias"] = _bias(request.logit_bias)
        if (n := request.n) is not None and n > settings.max_choices:
            raise ApiError(
                400, f"n={n} is above the {settings.max_choices} that this server gives",
                "invalid_value", "n",
            )  # fmt: skip
        _bound(keywords, "max_tokens", settings.max_tokens)
        _bound(keywords, "timeout_s", settings.max_time_s)
        keywords.update(_drafting(request.speculation))
        return keywords

    async def in_thread(self, call: Callable[..., _T], *given: Any, **more: Any) -> _T:
        """What a call gives that may take a while and is no request."""
        return await asyncio.to_thread(call, *given, **more)

    def note_failure(self, error: BaseException) -> None:
        """Logs what nobody foresaw: its kind and place, and not its words, which may be text."""


class Answer:
    """One request: `async for` gives its chunks, whole() all of it; one of the two, once.

    Args:
        service: that it was asked of.
        create: the call of Llama's in an event loop.
        given, keywords: its arguments.

    """

    def __init__(
        self,
        service: Service,
        create: Callable[..., Any],
        given: tuple[Any, ...],
        keywords: Mapping[str, Any],
    ) -> None:
        self._service, self._create, self._given = service, create, given
        self._keywords = dict(keywords)
        self._asked_s = monotonic()

    async def whole(self) -> Response:
        """The response. The task that waits for it is the request: cancelled, so is that."""
        response: Response = await self._create(*self._given, **self._keywords)
        _count_drafted([response], response["usage"])
        return response

    def __aiter__(self) -> AsyncGenerator[Response, None]:
        return self._chunks()

    async def _chunks(self) -> AsyncGenerator[Response, None]:
        handle: Stream = await self._create(*self._given, stream=True, **self._keywords)
        ended: list[Response] = []
        async with handle:
            async for chunk in handle:
                if "speculation" in chunk:
                    ended.append(chunk)
                usage = chunk.get("usage")
                if usage is not None and (ended or not chunk["choices"]):
                    _count_drafted(ended, usage)
                    if not chunk["choices"]:  # the last of all, which is asked for apart
                        last = ended[-1]
                        chunk = {
                            **chunk, "speculation": last["speculation"], "timing": last["timing"],
                        }  # fmt: skip
                yield chunk


def _count_drafted(parts: list[Response], usage: dict[str, Any]) -> None:
    """Adds to a usage what of the drafts was accepted, under OpenAI's names."""
    drafted = sum(part["speculation"]["drafted"] for part in parts)
    accepted = sum(part["speculation"]["accepted"] for part in parts)
    usage["completion_tokens_details"] = {
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": drafted - accepted,
    }


def _drafting(wanted: Speculation | None) -> dict[str, Any]:
    if wanted is None:
        return {}
    keywords: dict[str, Any] = {"return_token_sources": wanted.show_tokens}
    if not wanted.draft:
        keywords["n_draft"] = 0
    elif wanted.n_draft is not None:
        keywords["n_draft"] = wanted.n_draft
    return keywords


def _bound(keywords: dict[str, Any], name: str, most: float | None) -> None:
    """Lets a keyword be no more than the server allows; None and 0 are as much as there is."""
    asked = keywords.get(name)
    if most is not None and (asked is None or asked <= 0 or asked > most):
        keywords[name] = most


def _bias(given: Mapping[str, float] | list[list[Any]]) -> dict[int | str, float]:
    """The biases by id. llama-server takes pairs as well, with false for never."""
    biases: dict[int | str, float] = {}
    if isinstance(given, dict):
        biases.update(given)
        return biases
    for pair in given:
        if len(pair) != 2:
            raise ApiError(400, f"logit_bias has {pair!r:.40}, which is no pair", "invalid_value")
        biases[pair[0]] = -math.inf if pair[1] is False else pair[1]
    return biases
