"""Lifetimes: every object may be closed in any order, twice, or never."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable

import numpy as np
import pytest

from pyllama_spec.engine import Batch, Context, Model, Sampler, SamplerParams
from pyllama_spec.engine.binding import lib
from pyllama_spec.errors import ArgumentError, BusyError, ClosedError
from tests.models import model_path
from tests.oracles import forced_rows, prompt_tokens, rss_slope, run_child, tiny, tiny_context

TEXT = prompt_tokens(10)


def decode(context: Context, tokens: list[int] = TEXT) -> np.ndarray:
    """From nothing; the logits of the last token."""
    context.memory.clear()
    batch = Batch(len(tokens))
    batch.extend(tokens, 0, output_last=True)
    context.decode(batch)
    return context.logits(len(tokens) - 1)


@pytest.mark.parametrize("order", list(itertools.permutations(range(5))))
def test_any_order_of_closing(order: tuple[int, ...]) -> None:
    """Model, target, draft model, draft context and sampler; a view is read at the end."""
    model, draft_model = Model(model_path("llama")), Model(model_path("qwen2"))
    context = tiny_context(model)
    draft = tiny_context(draft_model, target=context)
    sampler = Sampler(model, SamplerParams(temperature=0))
    view = decode(context)
    decode(draft)
    expected = view.copy()
    things = (model, draft_model, context, draft, sampler)
    for i in order:
        things[i].close()
        things[i].close()
    del model, draft_model, context, draft, sampler, things
    gc.collect()
    np.testing.assert_array_equal(view, expected)


def test_a_context_outlives_its_model() -> None:
    model = Model(model_path("llama"))
    context, sampler = tiny_context(model), Sampler(model, SamplerParams(temperature=0))
    expected = decode(context).copy()
    model.close()
    assert model.is_closed
    np.testing.assert_array_equal(decode(context), expected)
    assert sampler.sample(context, len(TEXT) - 1) == int(expected.argmax())
    context.close()
    assert context.is_closed


def test_a_draft_outlives_its_target() -> None:
    target = tiny_context(tiny("llama"))
    draft = tiny_context(tiny("qwen2"), target=target)
    np.testing.assert_array_equal(decode(draft), forced_rows(tiny("qwen2"), TEXT)[0][-1])
    target.close()
    del target
    gc.collect()
    np.testing.assert_array_equal(decode(draft), forced_rows(tiny("qwen2"), TEXT)[0][-1])


def test_a_draft_shares_its_targets_threads() -> None:
    target = tiny_context(tiny("llama"), n_threads=1)
    with pytest.raises(ArgumentError, match="more threads than its target"):
        tiny_context(tiny("qwen2"), target=target, n_threads=2)
    target.close()
    with pytest.raises(ClosedError):
        tiny_context(tiny("qwen2"), target=target)


def test_use_after_close() -> None:
    model = Model(model_path("llama"))
    context = tiny_context(model, target_layers=(1,))
    batch = Batch(1)
    batch.add(1, 0, output=True)
    context.close()
    calls: list[Callable[[], object]] = [
        lambda: context.decode(batch),
        lambda: context.logits(0),
        lambda: context.layer_input(1),
        lambda: context.embeddings(0),
        lambda: context.memory.positions(0),
        context.memory.clear,
        lambda: context.memory.rollback(0, 0),
        lambda: context.memory.save(0),
        lambda: Sampler(model).sample(context, 0),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="the context is closed"):
            call()
    model.close()
    for call in (lambda: Context(model), lambda: Sampler(model), lambda: model.description):
        with pytest.raises(ClosedError, match="is closed; load it again"):
            call()


def test_two_threads_on_one_context() -> None:
    """One of them computes, the other gets BusyError; nothing else happens."""
    context = tiny_context(tiny("llama"), n_ctx=2048, n_batch=1024, n_ubatch=512)
    tokens = prompt_tokens(900)
    expected = decode(context, tokens).copy()
    outcomes: list[str] = []
    lock = threading.Lock()

    def work() -> None:
        for _ in range(8):
            batch = Batch(len(tokens))
            batch.extend(tokens, 0, output_last=True)
            try:
                context.memory.clear()
                context.decode(batch)
                outcome = "done"
            except BusyError:
                outcome = "busy"
            except ArgumentError:
                outcome = "positions"  # the other one decoded between our two calls
            with lock:
                outcomes.append(outcome)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(outcomes) <= {"done", "busy", "positions"}
    assert {"done", "busy"} <= set(outcomes)
    np.testing.assert_array_equal(decode(context, tokens), expected)


VIEWS = """
import sys, threading
import numpy as np
from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.engine.binding import lib

# Rows of 192 KiB: what is freed under a view is not a memory of the process any more.
model = Model(sys.argv[1])
tokens = list(range(1, 30))

for i in range(50):
    context = Context(model, n_ctx=64, n_batch=32, n_threads=1)
    batch = Batch(32)
    batch.extend(tokens[:2], 0, output_last=True)
    context.decode(batch)
    lib.llama_spec_add_views(context.handle, 1)
    go = threading.Barrier(2)
    def drop():
        go.wait()
        lib.llama_spec_add_views(context.handle, -1)
    thread = threading.Thread(target=drop)
    thread.start()
    go.wait()
    view = context.logits(1)
    thread.join()
    expected = view.copy()
    batch.clear()
    batch.extend(tokens, 2, output_all=True)
    context.decode(batch)
    np.testing.assert_array_equal(view, expected)
    del view
    context.close()
"""


def test_a_view_that_comes_while_another_thread_drops_the_last_one() -> None:
    run_child(VIEWS, str(model_path("llama", n_vocab=49152, n_layer=1)))


def test_views_of_many_threads_are_counted() -> None:
    with tiny_context(tiny("llama")) as context:
        decode(context)
        add, handle = lib.llama_spec_add_views, context.handle

        def work() -> None:
            for _ in range(20000):
                add(handle, 1)
                add(handle, -1)
            add(handle, 3)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert add(handle, 0) == 12
        assert add(handle, -12) == 0


def test_opening_and_closing_keeps_no_memory() -> None:
    """O8: nothing that is dropped waits for Python to look for cycles.

    Every second context is closed, and no model is; one leaked context is more than 2 MB.
    """

    def once(i: int) -> None:
        model = Model(model_path("llama"))
        context = tiny_context(model, n_ctx=2048, target_layers=(2,))
        view = decode(context)
        sampler = Sampler(model, SamplerParams(seed=i)).clone()
        sampler.sample(context, len(TEXT) - 1)
        if i % 2:
            context.close()
        assert view.size == 320

    gc.disable()
    try:
        assert rss_slope(once, 40, warmup=10) < 200_000
    finally:
        gc.enable()
