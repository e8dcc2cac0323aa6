"""Several answers in one response: to a list of prompts, or n to each.

Each is a generation of its own, with a seed of its own; they are computed side by side as far as
places allow. A prompt is decoded once where it can be: the sequence that has it goes back to its
end, or is copied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from time import perf_counter
from typing import Any, TypeVar

from pyllama_spec.errors import (
    CancelledError,
    ClosedError,
    ContextFullError,
    PyllamaSpecError,
)
from pyllama_spec.llama.open_model import SeedStream
from pyllama_spec.llama.responses import NOTHING_YET, Envelope, Reply, Response, Result
from pyllama_spec.requests.generation import Generation, GenerationRecord
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.speculative import SpeculationStats
from pyllama_spec.terminal import ProgressBar

_T = TypeVar("_T")
_U = TypeVar("_U")


def is_list_of_prompts(prompt: object) -> bool:
    """Whether a value is a list of texts or of lists of ids, not one prompt."""
    if isinstance(prompt, (str, bytes)) or not isinstance(prompt, Sequence) or not prompt:
        return False
    return isinstance(prompt[0], (str, bytes, list, tuple))


def each_prompt(prompts: Sequence[_T], make: Callable[[_T], _U]) -> list[_U]:
    """The completions of each prompt, not started yet."""
    completions = []
    for i, prompt in enumerate(prompts):
        try:
            completions.append(make(prompt))
        except PyllamaSpecError as error:  # noqa: PERF203 - the message needs the number
            raise type(error)(f"prompt {i} of the list: {error}") from None
    return completions


def check_lengths(completions: Sequence[Reply], n_ctx: int) -> None:
    """Checks the lengths of all prompts before it computes any."""
    for i, completion in enumerate(completions):
        n = len(completion.generation.record.prompt_tokens)
        if n >= n_ctx:
            raise ContextFullError(
                " of a request", n_tokens=n, n_ctx=n_ctx, param=f"prompt[{i}]",
                remedy=f"shorten prompt {i} of the list", setup="choose a larger `n_ctx`",
            )  # fmt: skip


def complete_all(replies: Sequence[Reply], envelope: Envelope, show: bool, n: int) -> Response:
    """One response with a choice for each reply, in their order; n each answer one prompt.

    A choice has its own `speculation` and `timing`; those of the response are the sums of the
    counts, and the seconds of the whole with the tokens per second of all together.
    """
    begin = perf_counter()
    bar = ProgressBar(f"{len(replies)} prompts") if show else None
    choices: list[Response | None] = [None] * len(replies)
    failed: Exception | None = None
    with contextlib.ExitStack() as stack:
        if bar is not None:
            stack.callback(bar.clear)
            bar(0.0)
        for reply in replies:
            stack.callback(reply.generation.close)
            reply.generation.start()
        try:
            for i, reply in enumerate(replies):
                try:
                    choices[i] = _choice(reply, i)
                except (CancelledError, ClosedError):  # meant for all of them
                    raise
                except Exception as error:  # noqa: BLE001 - the others are answered first
                    failed = failed or error
                if bar is not None:
                    bar((i + 1) / len(replies))
            if failed is not None:
                raise failed
        except BaseException as error:
            with contextlib.suppress(Exception):
                partial: Any = error
                partial.partial_choices = choices
            raise
    wrapped = envelope.wrap(replies[0].kind, {})
    records = [reply.generation.record for reply in replies]
    return Result({**wrapped, "choices": choices, **_sums(records, begin, n)}, records)


def _choice(reply: Reply, i: int) -> Response:
    record, choice = reply.generation.record, reply.choice()
    figures = {"speculation": record.stats.as_dict(), "timing": record.timing.as_dict()}
    return {**choice, "index": i, **figures}


def _sums(records: Sequence[GenerationRecord], begin: float, n: int = 1) -> Response:
    """The figures of a response whose prompts have n choices each: sums, and the wall time."""
    stats = SpeculationStats()
    for record in records:
        stats.add(record.stats)
    usage = usage_of(records, n)
    wall_s = perf_counter() - begin
    timing = {"wall_s": wall_s, "tps": usage["completion_tokens"] / wall_s if wall_s > 0 else 0.0}
    return {"usage": usage, "speculation": stats.as_dict(), "timing": timing}


def options_of_choices(request: RequestOptions, seeds: SeedStream) -> list[RequestOptions]:
    """The options of each answer; a request draws one seed from the model's stream."""
    if request.n == 1:
        return [request]
    seed = seeds.draw() if request.seed is None else None
    return [request.of_choice(i, seed) for i in range(request.n)]


def usage_of(records: Sequence[GenerationRecord], n: int) -> dict[str, Any]:
    """The usage of several answers. Counts the prompt once, as the first answer read it."""
    firsts = records[::n]
    n_prompt = sum(len(record.prompt_tokens) for record in firsts)
    n_text = sum(len(record.tokens) for record in records)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_text,
        "total_tokens": n_prompt + n_text,
        "prompt_tokens_details": {"cached_tokens": sum(record.n_cached for record in firsts)},
    }


def choice_chunks(
    generations: Sequence[Generation],
    chunks_of: Callable[[int], Generator[Response, None, None]],
    width: int,  # how many are read in turns: as many as are computed side by side
) -> Generator[Response, None, None]:
    """The chunks of all choices, each with its index; the last chunk has the total usage."""
    if len(generations) == 1:
        yield from chunks_of(0)
        return
    waiting = [(i, chunks_of(i)) for i in range(len(generations))]
    if width > 1:
        for one in generations:
            one.start()
    while waiting:
        is_idle = True
        for i, chunks in waiting[:width]:
            chunk = next(chunks)
            if not chunk:  # nothing could be read without waiting
                continue
            is_idle = False
            (choice,) = chunk["choices"]
            choice["index"] = i
            if choice["finish_reason"] is not None:
                waiting.remove((i, chunks))
                if not waiting:
                    records = [one.record for one in generations]
                    chunk["usage"] = usage_of(records, len(records))
            yield chunk
        if is_idle:
            yield NOTHING_YET
