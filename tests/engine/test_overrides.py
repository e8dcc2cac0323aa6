"""kv_overrides: a value that the engine would not read, or would cut, is refused by its key."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.errors import ArgumentError
from tests.models import model_path

LENGTH, BASE = "llama.context_length", "llama.rope.freq_base"
BOS, PRE = "tokenizer.ggml.add_bos_token", "tokenizer.ggml.pre"
WRONG: dict[str, list[Any]] = {
    LENGTH: [None, [1], b"x", object(), 128.0, "128", True, 2**31, -(2**64)],
    BASE: [None, {}, 1j, "1.0", True, float("nan"), float("inf"), 1e39],
    BOS: [None, 0, "true", 1.0], PRE: [None, 1, True, "x" * 128, "\xe9" * 64],
    "tokenizer.ggml.eos_token_id": [2.0], "llama.rope.scaling.yarn_beta_fast": ["2"],
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in WRONG.items() for v in values])
def test_a_value_of_another_type_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"kv_overrides: {re.escape(key)}="):
        Model(model_path("llama"), kv_overrides={key: value})


@pytest.mark.parametrize("value", [0, [], "llama.context_length"])
def test_what_is_no_dict_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="kv_overrides="):
        Model(model_path("llama"), kv_overrides=value)


@pytest.mark.parametrize("key", ["tokenizer.ggml." + "\xe9" * 60, "x" * 128, 5, None])
def test_a_key_that_the_engine_cannot_hold_is_refused(key: Any) -> None:
    with pytest.raises(ArgumentError, match="kv_overrides"):
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
EOS = "tokenizer.ggml.eos_token_id"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (EOS, -1), (EOS, 320), ("tokenizer.chat_template", "x"), ("tokenizer.ggml.merges", 5),
        ("tokenizer.ggml.model", "bert"), ("general.sampling.temp", 0.5), ("llama.block_count", 1),
        ("llama.expert_gating_func", 0), ("llama.expert_gating_func", 5),
        ("llama.rope.freq_scale", 0.5), (BASE, 0), ("llama.rope.freq_base_swa", -2.0),
        ("llama.rope.scaling.factor", -2.0), (f"llama.{EPSILON}", -1.0),
        ("gemma.rope.freq_base", 5.0),
    ],
)  # fmt: skip
def test_what_the_engine_would_ignore_or_abort_at_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=re.escape(key)):
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
