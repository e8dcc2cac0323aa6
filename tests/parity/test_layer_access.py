"""Access to layer inputs: refusals, the lifetime of a view, and a drafter's rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyllama_spec.engine import Batch
from pyllama_spec.errors import ArgumentError
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests import models
from tests.oracles import (
    check_fingerprint,
    forced_rows,
    generate,
    prompt_tokens,
    run_child,
    run_once,
    sampled,
    tiny,
    tiny_context,
)
from tests.scripted import FeatureSpy, Interrupting, Pattern, Perfect

ALL_LAYERS = tuple(range(5))
PROMPT = prompt_tokens(50, seed=31)


@pytest.mark.parametrize("arch", models.DECODERS)
def test_every_layer_of_a_decoder_is_offered(arch: str) -> None:
    model = tiny(arch)
    model.check_layer_inputs(ALL_LAYERS)
    model.check_layer_inputs(())
    for layer in (-1, 5):
        with pytest.raises(ArgumentError, match=f"layer {layer} is outside 0 .. 4"):
            model.check_layer_inputs([0, layer])


def test_the_number_of_rows_is_that_of_the_last_batch() -> None:
    with tiny_context(tiny("qwen2"), target_layers=(2,)) as context:
        assert context.layer_input(2).shape == (0, 64), "nothing was decoded"
        at = 0
        for n in (3, 1, 40, 2):
            batch = Batch(n)
            batch.extend(prompt_tokens(n), at, output_last=n > 1)
            context.decode(batch)
            assert context.layer_input(2).shape == (n, 64)
            at += n
        batch = Batch(1)
        batch.add(400, at)
        with pytest.raises(ArgumentError):
            context.decode(batch)
        # The refused batch left the rows of the last good one, or none, but no others.
        assert context.layer_input(2).shape[0] in (0, 2)
        rows = context.layer_input(2)
        with pytest.raises(ValueError, match="read-only"):
            rows[...] = 0


VIEWS = """
import gc, sys
import numpy as np
from pyllama_spec.engine import Batch, Context, Model

def decode(context, n, at):
    batch = Batch(n)
    for i in range(n):
        batch.add((7 * (at + i)) % 250, at + i, output=True)
    context.decode(batch)

kept = []
for order in range(4):
    model = Model(sys.argv[1])
    context = Context(model, n_ctx=512, n_batch=256, n_ubatch=64, target_layers=(0, 2, 4))
    at = 0
    for n in (1, 2, 30, 3, 200, 250):  # each larger one grows the output buffer
        decode(context, n, at)
        at += n
        for view in (context.layer_input(2), context.layer_input(4), context.logits(n - 1)):
            if n < 250:
                kept.append((view, view[-1:]))
            else:
                kept.append((view, view.copy()))
        assert context.layer_input(0).shape == (n, 64)
    if order % 2:
        model.close(); model.close()
    if order < 3:
        context.close(); context.close()
    del context, model
    gc.collect()
    [np.empty(1 << 22) for _ in range(3)]
total = sum(float(np.abs(view).sum()) for view, _ in kept)
assert np.isfinite(total)
last = [(view, copy) for view, copy in kept if view.shape == copy.shape]
assert len(last) >= 12 and all(np.array_equal(view, copy) for view, copy in last)
assert not any(view.flags.writeable for view, _ in kept)
print("read", len(kept))
"""


def test_views_outlive_buffers_contexts_and_models(tmp_path: Path) -> None:
    """C7: NumPy arrays stay readable after every object that could free their memory is gone."""
    path = models.model_path("qwen2")
    result = run_child(VIEWS, str(path))
    assert result.stdout.split() == ["read", "72"]
    assert result.stderr == ""


@pytest.mark.parametrize("n_ubatch", [12, 17, 32])
@pytest.mark.parametrize(
    "arch", ["llama", "qwen2", "gemma3", "granite", "gpt-oss", "qwen35", "lfm2"]
)
def test_a_drafter_gets_the_rows_of_its_tokens(arch: str, n_ubatch: int) -> None:
    """O4 through the loop: prompts in several physical batches, rejections, reused prefixes."""
    model, params = tiny(arch, output_scale=3.0), sampled(5)
    with tiny_context(model, n_ubatch=n_ubatch, target_layers=(1, 4, 2)) as context:
        inner = Pattern([], [3, 0, 8, 1, 2])
        spy = FeatureSpy(inner, (1, 4, 2))
        loop, seq = SpeculativeLoop(context, spy), SequenceState()
        prompt = PROMPT
        for turn in range(4):
            with tiny_context(model) as cold:
                inner.reference = run_once(cold, None, prompt, 20, params).text
            run = generate(loop, seq, prompt, 20, params)
            assert run.text == inner.reference
            assert run.stats.reason_off is None
            assert run.stats.accepted > 0
            rows = spy.rows[0]
            # All that is decoded; the pending token has no row yet.
            assert sorted(rows) == list(range(len(run.text) - 1))
            got = np.stack([rows[i] for i in range(len(rows))], axis=1)
            check_fingerprint(got, forced_rows(model, run.text[:-1], (1, 4, 2))[1])
            cut = (len(run.text), 60, 51, 30)[turn]
            prompt = run.text[:cut] + prompt_tokens(4, seed=turn)


def test_the_loop_wants_a_context_that_keeps_the_layers() -> None:
    spy = FeatureSpy(Perfect([]), (1, 3))
    with (
        tiny_context(tiny("llama"), target_layers=(1,)) as context,
        pytest.raises(ArgumentError, match=r"layers \[3\].*target_layers=\(1, 3\)"),
    ):
        SpeculativeLoop(context, spy)


def test_rows_come_again_after_a_drafter_failed() -> None:
    model = tiny("llama")
    text = run_once(tiny_context(model), None, PROMPT, 30).text
    with tiny_context(model, target_layers=(2,)) as context:
        inner = Interrupting(text, "commit", 3, lambda: ValueError("broken"))
        spy = FeatureSpy(inner, (2,))
        loop, seq = SpeculativeLoop(context, spy, n_draft=3), SequenceState()
        assert generate(loop, seq, PROMPT, 20).stats.reason_off is not None
        run = generate(loop, seq, text[:-10], 10)
        assert (run.text, run.stats.reason_off) == (text, None)
        rows = spy.rows[0]
        assert sorted(rows) == list(range(len(text) - 1))
        got = np.stack([rows[i] for i in range(len(rows))], axis=1)
        check_fingerprint(got, forced_rows(model, text[:-1], (2,))[1])
