"""Programs that fork with models open, or end badly, for test_exit.py: each function is one."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyllama_spec import Llama
from pyllama_spec.drafters import PromptLookup
from pyllama_spec.engine import Batch, Context, Model, Sampler, SamplerParams
from pyllama_spec.errors import ForkedError
from pyllama_spec.speculative import SpeculativeLoop

from .tools import PROMPT, batch_of, decoded, opened, tiny

# Globals live until the interpreter tears modules down, in no order that a program chooses.
KEPT: list[Any] = []
HANGS_S = 20.0
# A child that was refused does nothing; a thread that spins would use all of its second.
IDLE_S, MAX_IDLE_CPU_S = 1.0, 0.3


def fork(*acts: Callable[[], object]) -> None:
    """A child that acts and leaves by the interpreter's shutdown; it has to end, and well."""
    pid = os.fork()
    if pid == 0:
        for act in acts:
            act()
        gc.collect()
        sys.exit(0)
    limit = time.monotonic() + HANGS_S
    while not (found := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > limit:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.005)
    assert os.waitstatus_to_exitcode(found[1]) == 0, found[1]


def refused(act: Callable[[], object]) -> None:
    """The call must raise ForkedError."""
    try:
        act()
    except ForkedError:
        return
    raise AssertionError("a call on the parent's object was not refused")


def refuses_all(context: Context, sampler: Sampler) -> None:
    """In a child: nothing that is the parent's computes, and letting go of it is harmless."""
    model, memory = context.model, context.memory
    calls: list[Callable[[], object]] = [
        lambda: context.decode(batch_of([1], len(PROMPT))),
        lambda: context.logits(0),
        lambda: context.layer_input(1),
        lambda: memory.positions(0),
        lambda: memory.rollback(0, 1),
        lambda: memory.save(0),
        memory.clear,
        lambda: sampler.sample(context, 0),
        lambda: sampler.sample_chain(context, 0, [1]),
        lambda: sampler.accept(1),
        sampler.clone,
        lambda: Sampler(model),
        lambda: Context(model, n_ctx=64),
        lambda: Context(Model(tiny()), n_ctx=64, target=context),
        lambda: model.check_layer_inputs((1,)),
    ]
    for call in calls:
        refused(call)
    assert context.is_forked
    context.pause_threads()
    context.cancel()
    assert model.vocab.detokenize(model.vocab.tokenize("still here")) == b"still here"
    assert model.vocab.is_eog(258) and model.metadata and model.info.n_embd
    sampler.close()
    context.close()
    model.close()


def works() -> None:
    """In a child: a model of its own does."""
    context = decoded(target_layers=(1,), n_threads=1)
    sampler = Sampler(context.model, SamplerParams(temperature=0))
    for i in range(4):
        token = sampler.sample(context, 0)
        context.decode(batch_of([token], len(PROMPT) + i))
    KEPT.extend([context.logits(0), context.layer_input(1), context])


def stays_idle() -> None:
    """In a child: no thread of it is left that burns a core."""
    before = time.process_time()
    time.sleep(IDLE_S)
    assert time.process_time() - before < MAX_IDLE_CPU_S, time.process_time() - before


@contextmanager
def busy(act: Callable[[], object]) -> Iterator[None]:
    """A thread that acts over and over while the block runs."""
    is_running, is_done = threading.Event(), threading.Event()

    def work() -> None:
        while not is_done.is_set():
            act()
            is_running.set()

    thread = threading.Thread(target=work)
    thread.start()
    is_running.wait()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def while_decoding() -> None:
    """Another thread holds the context, its threads compute; and a sampler is in use."""
    context = opened(n_ctx=2048, n_batch=2048, n_ubatch=512, target_layers=(1,))
    sampler = Sampler(context.model, SamplerParams(temperature=1.0, top_k=0, seed=1))
    batch = Batch(2048)
    batch.extend([7] * 1000, 0, output_last=True)

    def act() -> None:
        context.memory.clear()
        context.decode(batch)
        sampler.accept(sampler.sample(context, batch.n_tokens - 1))

    with busy(act):
        for i in range(5):
            time.sleep(0.021 * i)
            fork(lambda: refuses_all(context, sampler), works)
        fork(lambda: refuses_all(context, sampler), stays_idle)
    act()


def with_requests_that_compute() -> None:
    """Other threads are in the middle of requests, and this one has a stream open."""
    for n_parallel in (1, 4):
        _fork_amid_requests(Llama(tiny(), n_ctx=1024, n_threads=2, n_parallel=n_parallel))


def _fork_amid_requests(llm: Llama) -> None:
    def complete(n: int = 32) -> str:
        answer = llm.create_completion("abc", max_tokens=n, temperature=0, logit_bias={258: -100})
        return str(answer["choices"][0]["text"])

    def stream() -> Iterator[Any]:
        return iter(llm.create_completion("abc", max_tokens=32, temperature=0, stream=True))

    def child() -> None:
        refused(complete)
        refused(lambda: next(stream()))
        refused(lambda: next(KEPT[0]))
        refused(llm.save_state)
        KEPT.pop().close()
        llm.cancel()
        llm.close()
        works()
        stays_idle()

    expected = complete()
    with busy(complete), busy(lambda: list(stream())):
        for i in range(4):
            time.sleep(0.002 * i)
            # A place is free for it at times: another thread's request has to end first.
            KEPT.append(stream())
            try:
                next(KEPT[0])
                fork(child)
            finally:
                KEPT.pop().close()
    assert complete() == expected
    llm.close()


# ---- programs that end without closing anything


def without_close() -> None:
    context = decoded()
    KEPT.extend([Sampler(context.model, SamplerParams(grammar="root ::= [a-z]+")), context])


def with_a_live_stream() -> None:
    model = Llama(tiny(), n_ctx=64, n_threads=2, draft="prompt-lookup")
    stream = iter(model.create_completion("a", max_tokens=40, stream=True))
    next(stream)
    KEPT.extend([model, stream])


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
