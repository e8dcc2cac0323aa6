"""Lifetimes: every object may be closed in any order, twice, or never."""

from __future__ import annotations

import gc
import itertools
import threading

import numpy as np
import pytest

from pyllama_spec.engine import Batch, Context, Model, Sampler, SamplerParams
from pyllama_spec.errors import ArgumentError, BusyError
from tests.models import model_path
from tests.oracles import prompt_tokens, tiny, tiny_context

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


def test_views_outlive_buffers_contexts_and_models() -> None:
    """Each larger batch grows the output buffer; the last views keep their numbers."""
    model = Model(model_path("llama"))
    context = tiny_context(model, n_ctx=512, n_batch=256, target_layers=(0, 2, 4))
    kept, n = [], 0
    for n in (1, 2, 30, 3, 200, 250):
        decode(context, prompt_tokens(n))
        kept += [context.layer_input(2), context.layer_input(4), context.logits(n - 1)]
    last = [(view, view.copy()) for view in kept[-3:]]
    model.close()
    context.close()
    del model, context
    gc.collect()
    assert [np.empty(1 << 22) for _ in range(3)]
    assert all(np.isfinite(view).all() and not view.flags.writeable for view in kept)
    assert all(np.array_equal(view, copy) for view, copy in last)
