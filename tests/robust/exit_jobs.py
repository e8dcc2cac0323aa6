"""Programs that end badly, for test_exit.py: each function is one, run in a process of its own."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

from pyllama_spec import Llama
from pyllama_spec.drafters import PromptLookup
from pyllama_spec.engine import Batch, Sampler, SamplerParams
from pyllama_spec.speculative import SpeculativeLoop

from .tools import batch_of, decoded, opened, tiny

# Globals live until the interpreter tears modules down, in no order that a program chooses.
KEPT: list[Any] = []


def without_close() -> None:
    context = decoded()
    KEPT.extend([Sampler(context.model, SamplerParams(grammar="root ::= [a-z]+")), context])


def with_a_live_stream() -> None:
    model = Llama(tiny(), n_ctx=64, n_threads=2, draft="prompt-lookup")
    stream = iter(model.create_completion("a", max_tokens=40, stream=True))
    next(stream)
    KEPT.extend([model, stream])


def with_a_request_that_nobody_reads() -> None:
    generation = _many().generate_steps("a", max_tokens=2000)
    generation.start()
    KEPT.append(generation)


def _many() -> Llama:
    return Llama(tiny(), n_ctx=2048, n_threads=2, draft="prompt-lookup", n_parallel=3)


def streams_dropped_in_cycles() -> None:
    """The collector finalizes a stream and its context in an order of its own."""
    gc.disable()
    for is_cancelled in (False, True):
        model = Llama(tiny(), n_ctx=64, n_threads=2, draft="prompt-lookup")
        stream = iter(model.create_completion("a", max_tokens=40, stream=True))
        next(stream)
        if is_cancelled:
            model.cancel()
        ring: list[Any] = [model, stream]
        ring.append(ring)
        model.context.__dict__["ring"] = ring
        del model, stream, ring
        assert gc.collect() > 0


def in_an_exception() -> None:
    context = decoded()
    try:
        context.decode(batch_of([1], 2_000_000))
    except Exception:  # noqa: BLE001 - the exit inside of it is what this is about
        KEPT.append(sys.exc_info())
        raise SystemExit(0) from None


def in_a_cycle() -> None:
    for _ in range(3):
        context = decoded()
        loop = SpeculativeLoop(context, PromptLookup())
        ring: list[Any] = [context, context.model, loop, Sampler(context.model)]
        ring.append(ring)
        context.__dict__["ring"] = ring
        del context, loop, ring
    gc.collect()
    last = decoded()
    last.__dict__["me"] = last


def with_a_thread_in_a_decode() -> None:
    context = opened(n_ctx=4096, n_batch=4096)
    batch = Batch(4096)
    batch.extend([7] * 4000, 0)
    is_running = threading.Event()

    def work() -> None:
        is_running.set()
        while True:
            context.memory.clear()
            context.decode(batch)

    threading.Thread(target=work, daemon=True).start()
    is_running.wait()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
