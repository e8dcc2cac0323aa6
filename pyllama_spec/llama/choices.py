"""Several answers to one prompt: the option n of a request.

Each is a generation of its own, with a seed of its own. The prompt is decoded once where it can be:
the sequence that has it goes back to its end, or is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from pyllama_spec.llama.open_model import SeedStream
from pyllama_spec.llama.responses import NOTHING_YET, Response
from pyllama_spec.requests.generation import Generation, GenerationRecord
from pyllama_spec.requests.options import RequestOptions


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
