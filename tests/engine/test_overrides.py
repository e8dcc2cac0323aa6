"""kv_overrides: a value that the engine would not read, or would cut, is refused by its key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyllama_spec.engine import Model
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
    with pytest.raises(ArgumentError) as caught:
        Model(model_path("llama"), kv_overrides={key: value})
    assert caught.value.param == f"kv_overrides[{key!r}]"


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
    with pytest.raises(ArgumentError) as caught:
        Model(model_path("llama"), kv_overrides={key: value})
    assert caught.value.param.startswith("kv_overrides") and key in str(caught.value)
