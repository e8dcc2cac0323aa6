"""The optional fields of a response: ids, stop reason, usage."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama.responses import Response
from pyllama_spec.requests.generation import Generation, GenerationRecord
from pyllama_spec.requests.options import RequestOptions


class Report:
    """The fields that a request wants in its response."""

    def __init__(self, request: RequestOptions, *, stream: bool) -> None:
        if request.stream_options is not None and not stream:
            raise ArgumentError(
                "stream_options", request.stream_options, problem="is for `stream=True`",
                remedy="leave it out: a whole answer has its usage anyway",
            )  # fmt: skip
        self._wanted = request

    def of_whole(
        self, whole: Callable[[], Response], generations: Sequence[Generation]
    ) -> Callable[[], Response]:
        """A function that adds the fields to a whole response."""
        return lambda: self.whole(whole(), [generation.record for generation in generations])

    def whole(self, response: Response, records: Sequence[GenerationRecord]) -> Response:
        """Adds the fields to each choice of a whole response."""
        for choice, record in zip(response["choices"], records, strict=True):
            self._end(choice, record)
            if self._wanted.return_token_ids:
                choice["token_ids"] = list(record.tokens)
                choice["prompt_token_ids"] = list(record.prompt_tokens)
            if self._wanted.return_token_sources:
                choice["token_sources"] = _sources(record.token_sources)
        if records and records[0].note:
            response["note"] = records[0].note
        return response

    def chunks(
        self, chunks: Generator[Response, None, None], record: GenerationRecord
    ) -> Generator[Response, None, None]:
        """Adds the fields to the chunks of one choice; its last chunk has the usage."""
        n_told, n_sources, is_first = 0, 0, True
        for chunk in chunks:
            if not chunk.get("choices"):  # nothing of an answer yet
                yield chunk
                continue
            (choice,) = chunk["choices"]
            if self._wanted.return_token_ids:
                choice["token_ids"] = list(record.tokens[n_told:])
                n_told = len(record.tokens)
                if is_first:
                    choice["prompt_token_ids"] = list(record.prompt_tokens)
            # The chunk that says whose turn it is comes when a text has begun, and has none of it.
            if self._wanted.return_token_sources and choice.get("delta") != {"role": "assistant"}:
                choice["token_sources"] = _sources(record.token_sources[n_sources:])
                n_sources = len(record.token_sources)
            if choice["finish_reason"] is not None:
                self._end(choice, record)
                if record.note:
                    chunk["note"] = record.note
            elif self._wanted.usage_apart:
                chunk["usage"] = record.usage if self._wanted.usage_in_each else None
            is_first = False
            yield chunk

    def with_usage(
        self, chunks: Generator[Response, None, None], n: int = 1
    ) -> Generator[Response, None, None]:
        """Adds the usage to the chunks of a response, if requested."""
        n_left = n
        for chunk in chunks:
            choices = chunk.get("choices")
            if not choices or choices[0]["finish_reason"] is None:
                yield chunk
                continue
            n_left -= 1
            if not self._wanted.usage_apart:
                if n_left:
                    del chunk["usage"]
                yield chunk
                continue
            usage: Any = chunk["usage"]
            yield {**chunk, "usage": usage if self._wanted.usage_in_each else None}
            if not n_left:
                head = {key: chunk[key] for key in ("id", "object", "created", "model")}
                yield {**head, "choices": [], "usage": usage}

    def _end(self, choice: Response, record: GenerationRecord) -> None:
        choice["stop_reason"] = record.stop_reason
        if self._wanted.context_shift:
            choice["context_shifts"] = record.n_shifts


def _sources(pieces: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"text": text, "source": source} for text, source in pieces]
