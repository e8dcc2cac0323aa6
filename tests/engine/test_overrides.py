"""kv_overrides: a value that the engine would not read, or would cut, is refused by its key."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.errors import ArgumentError
from tests.models import model_path

INT, REAL = "an int of 32 bits", "a finite float"
BOOL, TEXT = "True or False", "a str of at most 127 bytes"
ANY = f"{INT}, {REAL}, {BOOL}, or {TEXT}"
LENGTH, BASE = "llama.context_length", "llama.rope.freq_base"
BOS, PRE, OTHER = "tokenizer.ggml.add_bos_token", "tokenizer.ggml.pre", "tokenizer.ggml.other"
NO_VALUE: list[Any] = [None, [1], {}, b"x", object(), 1j]


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        *((key, value, wanted) for value in NO_VALUE for key, wanted in (
            (LENGTH, INT), (BASE, REAL), (BOS, BOOL), (PRE, TEXT), (OTHER, ANY),
        )),
        *((LENGTH, value, INT) for value in (128.0, "128", True, 2**31, 2**64, -(2**64))),
        *((OTHER, value, ANY) for value in (2**64, float("nan"), "x" * 128, "\xe9" * 64)),
        *((BASE, value, REAL) for value in ("1.0", True, float("nan"), float("inf"), 1e39)),
        *((BOS, value, BOOL) for value in (0, 1, "true", 1.0)),
        *((PRE, value, TEXT) for value in (1, 1.5, True, "x" * 128)),
        ("tokenizer.ggml.eos_token_id", 2.0, INT), ("llama.pooling_type", "mean", INT),
        ("llama.attention.causal", 0, BOOL), ("llama.rope.scaling.type", 1, TEXT),
        ("llama.rope.scaling.yarn_beta_fast", "2", REAL), ("llama.logit_scale", "2", REAL),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(key: str, value: Any, wanted: str) -> None:
    said = re.escape(f"kv_overrides: {key}=") + ".* is not " + re.escape(wanted) + "$"
    with pytest.raises(ArgumentError, match=said):
        Model(model_path("llama"), kv_overrides={key: value})


@pytest.mark.parametrize("value", [0, "", [], False, (), 1, "llama.context_length"])
def test_what_is_no_dict_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"kv_overrides=.* is not a dict"):
        Model(model_path("llama"), kv_overrides=value)


@pytest.mark.parametrize("key", ["tokenizer.ggml." + "\xe9" * 60, "x" * 128, 5, None])
def test_a_key_that_the_engine_cannot_hold_is_refused(key: Any) -> None:
    with pytest.raises(ArgumentError, match="may not be overridden"):
        Model(model_path("llama"), kv_overrides={key: 1})


@pytest.mark.parametrize("value", [128, np.int64(128), np.uint8(128)])
def test_an_int_arrives(value: Any) -> None:
    with Model(model_path("llama"), kv_overrides={LENGTH: value}) as model:
        assert model.info.n_ctx_train == 128


@pytest.mark.parametrize("value", [False, np.False_])
def test_a_bool_arrives(value: Any) -> None:
    with Model(model_path("llama"), kv_overrides={BOS: value}) as model:
        assert not model.vocab.adds_bos


EPSILON = "attention.layer_norm_rms_epsilon"
EOS, LIST = "tokenizer.ggml.eos_token_id", "may not be overridden: its value is a list"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (EOS, -1, f"{EOS}=-1 is not the id of a token"),
        (EOS, 320, f"{EOS}=320 is not the id of a token: the last one is 319"),
        ("tokenizer.chat_template", "x", "from the file alone; give Llama's chat_template"),
        ("tokenizer.ggml.suppress_tokens", 5, LIST),
        ("tokenizer.ggml.token_type", 5, LIST),
        ("tokenizer.ggml.merges", 5, LIST),
        ("tokenizer.ggml.model", "bert", "it says how the vocabulary in the file is read"),
        ("general.sampling.temp", 0.5, "nothing reads it here; give temperature"),
        ("llama.block_count", 1, "none of the keys that this package takes, such as tok"),
        ("llama.expert_gating_func", 0, "llama.expert_gating_func=0 is not from 1 to 4"),
        ("llama.expert_gating_func", 5, "llama.expert_gating_func=5 is not from 1 to 4"),
        ("llama.rope.freq_scale", 0.5, "no such key; give rope.scale_linear, or Llama's rope_freq"),
        ("llama.rope.freq_base", 0, "llama.rope.freq_base=0.0 is not above 0"),
        ("llama.rope.freq_base_swa", -2.0, "llama.rope.freq_base_swa=-2.0 is not above 0"),
        ("llama.rope.scaling.factor", -2.0, "llama.rope.scaling.factor=-2.0 is not at least 0"),
        (f"llama.{EPSILON}", -1.0, f"llama.{EPSILON}=-1.0 is not at least 0"),
        ("gemma.rope.freq_base", 5.0, "of this one is 'llama'; give llama.rope.freq_base"),
    ],
)
def test_what_the_engine_would_ignore_is_refused(key: str, value: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(words)):
        Model(model_path("llama"), kv_overrides={key: value})


@pytest.mark.parametrize("key", ["scale_linear", "freq_base_swa"])
def test_keys_of_rope_are_taken(key: str) -> None:
    Model(model_path("llama"), kv_overrides={f"llama.rope.{key}": 2}).close()


def test_experts_are_weighted_otherwise() -> None:
    """The engine reads both keys as scalars, and computes with each value of them."""
    kept: list[dict[str, Any]] = [{"deepseek2.expert_gating_func": n} for n in (1, 2, 3, 4)]
    rows = []
    for overrides in (*kept, {"deepseek2.expert_weights_norm": True}):
        with (
            Model(model_path("deepseek2"), kv_overrides=overrides) as model,
            Context(model, n_ctx=64, n_threads=1) as context,
        ):
            batch = Batch(8)
            batch.extend([5, 6], 0, output_last=True)
            context.decode(batch)
            rows.append(context.logits(1).tobytes())
    assert len(set(rows)) == 5


def test_the_last_token_may_end_a_text() -> None:
    with Model(model_path("llama"), kv_overrides={EOS: 319}) as model:
        assert model.vocab.eos == 319
