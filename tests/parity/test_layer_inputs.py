"""Layer inputs on every tiny architecture are of the right rows, tokens and layers.

Rows over several physical batches, permuted between sequences, or of a neighbouring layer leave the
text right but make a draft useless, so they are compared here one by one. On a CPU rows equal those
of a single-token decode bit by bit, for all architectures and layers. One case has a tolerance
instead, 1e-5 of the largest number: sequences that share a KV buffer (kv_unified) without flash
attention, where a row's sums include the others' masked cells and round differently.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests import models
from tests.oracles import (
    Rows,
    check_fingerprint,
    forced_rows,
    generate,
    prompt_tokens,
    run_once,
    sampled,
    tiny,
    tiny_context,
)
from tests.parity.numpy_model import TensorFile, forward
from tests.scripted import FeatureSpy, Pattern
from tests.tiers import release_except

# Upstream taps llama, qwen3, qwen3moe, qwen35 and gpt-oss; the others are ours alone.
# RWKV normalizes the embedding before layer 0: that input is not where other graphs have it.
ARCHS = tuple(arch for arch in models.DECODERS if arch != "rwkv7")
# The engine opens a context of Kimi Linear only if n_ubatch is a multiple of n_seq_max.
STEP = {"kimi-linear": 4}
N_LAYER = 4
LAYERS = tuple(range(N_LAYER + 1))
LENGTHS = (13, 5, 9, 1)
TEXTS = [prompt_tokens(n, seed=20 + n) for n in LENGTHS]
# The engine reads its GELU from a table of F16 numbers, where a last bit can become 1e-3.
GELU_ARCHS = ("starcoder2", "gemma2", "gemma3")
# Ways to keep several sequences, and the limit. F16 caches would enlarge the last one's rounding.
MODES: dict[str, tuple[dict[str, Any], float]] = {
    "apart": ({}, 0.0),
    "shared-flash": ({"kv_unified": True, "flash_attn": True}, 0.0),
    "shared": ({"kv_unified": True, "type_k": "f32", "type_v": "f32"}, 1e-5),
}

Place = tuple[int, int]  # sequence, position


@cache
def single_rows(arch: str, seq: int, mode: str = "apart") -> tuple[Rows, Rows]:
    """Logits and layer inputs of one text, token by token: [n, n_vocab], [n_layers, n, n_embd]."""
    return forced_rows(tiny(arch), TEXTS[seq], LAYERS, **MODES[mode][0])


def interleaved(seed: int) -> list[Place]:
    """All tokens of all texts, in a random order that keeps each text's own."""
    places = [(seq, 0) for seq, n in enumerate(LENGTHS) for _ in range(n)]
    random.Random(seed).shuffle(places)
    n_seen = [0] * len(LENGTHS)
    for i, (seq, _) in enumerate(places):
        places[i] = (seq, n_seen[seq])
        n_seen[seq] += 1
    return places


def wants_output(outputs: str, i: int, n: int) -> bool:
    """Which tokens of a batch have logits."""
    return {"all": True, "some": i % 3 == 1, "last": i == n - 1, "none": False}[outputs]


def decode_places(context: Context, places: Sequence[Place], outputs: str) -> dict[int, Rows]:
    """Decodes them as one batch; returns the logits by index."""
    batch = Batch(len(places))
    wanted = [wants_output(outputs, i, len(places)) for i in range(len(places))]
    for (seq, position), output in zip(places, wanted, strict=True):
        batch.add(TEXTS[seq][position], position, seq, output=output)
    context.decode(batch)
    return {i: context.logits(i).copy() for i, output in enumerate(wanted) if output}


def rtol_of(arch: str, mode: str) -> float:
    """The limit of a mode, for an architecture."""
    return MODES[mode][1] * (20 if arch in GELU_ARCHS else 1)


def check_rows(arch: str, context: Context, places: Sequence[Place], mode: str = "apart") -> None:
    """O4 for the last batch, over all layers."""
    single = [single_rows(arch, seq, mode)[1][:, position] for seq, position in places]
    got = np.stack([context.layer_input(layer) for layer in LAYERS])
    check_fingerprint(got, np.stack(single, axis=1), rtol=rtol_of(arch, mode))


@pytest.mark.parametrize("outputs", release_except(("all", "some", "last", "none"), ("some",)))
@pytest.mark.parametrize("arch", release_except(ARCHS, ("llama", "gemma3", "qwen3moe", "qwen35")))
def test_rows_are_those_of_single_tokens(arch: str, outputs: str) -> None:
    """Physical batches of 1, 3, 7 and 32 tokens, four sequences mixed, two batches.

    The engine's own graph drops rows without an output in the last layer; the hook keeps them.
    """
    places = interleaved(seed=len(arch))
    for width, (mode, (options, _)) in itertools.product((1, 3, 7, 32), MODES.items()):
        step = STEP.get(arch, 1)
        n_ubatch = -(-width // step) * step
        options = {"n_ubatch": n_ubatch, "n_seq_max": 4, "n_rs_seq": 0, **options}
        with (
            tiny_context(tiny(arch), target_layers=LAYERS, **options) as context,
            tiny_context(tiny(arch), **options) as untapped,
        ):
            for part in (places[:11], places[11:]):
                logits = decode_places(context, part, outputs)
                check_rows(arch, context, part, mode)
                plain = decode_places(untapped, part, outputs)
                assert logits.keys() == plain.keys()
                for i, row in plain.items():
                    if mode == "shared":  # sums of another order where cells of several interleave
                        check_fingerprint(logits[i], row, rtol=rtol_of(arch, mode))
                    else:
                        np.testing.assert_array_equal(logits[i], row, "taps change no logits")
                    seq, position = part[i]
                    expected = single_rows(arch, seq, mode)[0][position]
                    check_fingerprint(row, expected, rtol=rtol_of(arch, mode))


@pytest.mark.parametrize("layers", [(0,), (2,), (N_LAYER,), (3, 1), (0, N_LAYER), ()])
@pytest.mark.parametrize("arch", ARCHS)
def test_any_choice_of_layers(arch: str, layers: tuple[int, ...]) -> None:
    places = [(0, position) for position in range(LENGTHS[0])]
    with tiny_context(tiny(arch), target_layers=layers) as context:
        logits = decode_places(context, places, "some")
        for layer in layers:
            check_fingerprint(context.layer_input(layer), single_rows(arch, 0)[1][layer])
        for i, row in logits.items():
            np.testing.assert_array_equal(row, single_rows(arch, 0)[0][i])


def relative(got: Rows, expected: npt.NDArray[np.float64]) -> float:
    """The largest difference, over the largest number."""
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"type_k": "f32", "type_v": "f32", "flash_attn": False}, 1e-5),
        # As contexts are opened by default: F16 caches, and an attention kernel that rounds to F16.
        ({}, 1e-2),
    ],
)
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_rows_agree_with_an_independent_forward_pass(
    arch: str, options: dict[str, Any], limit: float
) -> None:
    """They equal a float64 pass written from the published equations, independent of the engine."""
    tokens = prompt_tokens(24, seed=8)
    layer_inputs, expected = forward(models.model_path(arch), tokens)
    logits, rows = forced_rows(tiny(arch), tokens, LAYERS, **options)
    for layer in LAYERS:
        assert relative(rows[layer], layer_inputs[layer]) < limit, f"layer {layer}"
    assert relative(logits, expected) < limit
    # The limits tell neighbouring layers and neighbouring tokens apart.
    assert relative(rows[:-1], layer_inputs[1:]) > 0.1
    assert relative(rows, np.roll(layer_inputs, 1, axis=1)) > 0.1


@pytest.mark.parametrize("arch", ARCHS)
def test_a_marker_in_a_layer_shows_behind_it(arch: str) -> None:
    """Changed weights in layer k change the inputs of layers k + 1 on, in every row."""
    _, plain = single_rows(arch, 0)
    for k in range(N_LAYER):
        _, marked = forced_rows(tiny(arch, perturb_layer=k), TEXTS[0], LAYERS)
        np.testing.assert_array_equal(marked[: k + 1], plain[: k + 1])
        changed = (marked[k + 1 :] != plain[k + 1 :]).any(axis=-1)
        assert changed.all(), f"layer {k}: {np.argwhere(~changed).tolist()} are unchanged"


@pytest.mark.parametrize("arch", ARCHS)
def test_the_input_of_layer_0_is_the_scaled_embedding(arch: str) -> None:
    table = TensorFile(models.model_path(arch)).tensors["token_embd.weight"]
    scale = {"granite": 6.0, "gemma2": 8.0, "gemma3": 8.0}.get(arch, 1.0)
    np.testing.assert_array_equal(
        single_rows(arch, 0)[1][0], (table[TEXTS[0]] * scale).astype(np.float32)
    )


# ---- the rows that a drafter gets from the loop


PROMPT = prompt_tokens(50, seed=31)


def check_spy(spy: FeatureSpy, model: Model, text: Sequence[int], layers: Sequence[int]) -> None:
    """All that is decoded has its row; the pending token has none yet."""
    rows = spy.rows[0]
    assert sorted(rows) == list(range(len(text) - 1))
    got = np.stack([rows[i] for i in range(len(rows))], axis=1)
    check_fingerprint(got, forced_rows(model, text[:-1], layers)[1])


@pytest.mark.parametrize("n_ubatch", [12, 17, 32])
@pytest.mark.parametrize("arch", ["llama", "gemma3", "granite", "qwen35", "lfm2"])
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
            check_spy(spy, model, run.text, (1, 4, 2))
            cut = (len(run.text), 60, 51, 30)[turn]
            prompt = run.text[:cut] + prompt_tokens(4, seed=turn)
