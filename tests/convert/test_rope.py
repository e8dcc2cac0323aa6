"""RoPE in each notation, against frequencies from an independent computation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyllama_spec.convert.config import Fields
from pyllama_spec.convert.rope import read_rope
from pyllama_spec.errors import ConversionError

LOG4 = math.log(4)
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


def keys_of(head_size: int = 8, **config: Any) -> dict[str, Any]:
    """Keys and tensors of a config with these values."""
    rope = read_rope(Fields({"max_position_embeddings": 2048, **config}), head_size)
    return {**rope.keys, **rope.tensors}


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_theta": 500000, "rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 1}},
    ],
)  # fmt: skip
def test_plain(config: dict[str, Any]) -> None:
    assert keys_of(**config) == {"rope.dimension_count": 8, "rope.freq_base": 5e5}


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("type_key", ["type", "rope_type"])
def test_linear(name: str, type_key: str) -> None:
    config: dict[str, Any] = {name: {type_key: "linear", "factor": 2.5}}
    keys = keys_of(**config)
    assert keys["rope.scaling.type"] == "linear"
    assert keys["rope.scaling.factor"] == 2.5
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("more", "scale"),
    [
        ({}, 0.1 * LOG4 + 1),
        ({"attention_factor": 1.25}, 1.25),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 2.0, "mscale_all_dim": 0.5}, (0.2 * LOG4 + 1) / (0.05 * LOG4 + 1)),

    ],
)  # fmt: skip
def test_yarn(more: dict[str, Any], scale: float) -> None:
    keys = keys_of(rope_scaling=YARN | more)
    assert keys["rope.scaling.type"] == "yarn"
    assert keys["rope.scaling.factor"] == 4.0
    assert keys["rope.scaling.original_context_length"] == 512
    # The engine scales cos and sin by 0.1 ln(factor) + 1, and by this key.
    own = 0.1 * LOG4 + 1
    assert own * keys.get("rope.scaling.attn_factor", 1.0) == pytest.approx(scale)


def llama3_by_loop(base: float, head_size: int, scaling: dict[str, Any]) -> NDArray[np.float64]:
    """Each new frequency by the three cases of the Llama 3.1 release."""
    out = []
    old = scaling["original_max_position_embeddings"]
    for i in range(0, head_size, 2):
        frequency = base ** (-i / head_size)
        wavelength = 2 * math.pi / frequency
        if wavelength < old / scaling["high_freq_factor"]:
            out.append(frequency)
        elif wavelength > old / scaling["low_freq_factor"]:
            out.append(frequency / scaling["factor"])
        else:
            mix = (old / wavelength - scaling["low_freq_factor"]) / (
                scaling["high_freq_factor"] - scaling["low_freq_factor"]
            )
            out.append((1 - mix) * frequency / scaling["factor"] + mix * frequency)
    return np.array(out)


@pytest.mark.parametrize("base", [1e4, 5e5])
@pytest.mark.parametrize("original", [256, 8192])
def test_llama3(base: float, original: int) -> None:
    scaling = LLAMA3 | {"original_max_position_embeddings": original}
    keys = keys_of(128, rope_theta=base, rope_scaling=scaling)
    factors = keys["rope_freqs.weight"]
    frequencies = base ** (-np.arange(0, 128, 2) / 128) / factors
    assert frequencies == pytest.approx(llama3_by_loop(base, 128, scaling), rel=1e-6)
    assert factors.dtype == np.float32
    assert 1 < len(set(factors.tolist())) < 64
    assert not any(key.startswith("rope.scaling") for key in keys)


def without(scaling: dict[str, Any], key: str) -> dict[str, Any]:
    """The same without a key."""
    return {k: v for k, v in scaling.items() if k != key}


NEEDED = [(scaling, key) for scaling in (LLAMA3, YARN) for key in scaling if key != "rope_type"]


@pytest.mark.parametrize(("scaling", "key"), NEEDED)
def test_numbers_are_never_guessed(scaling: dict[str, Any], key: str) -> None:
    with pytest.raises(ConversionError, match=f"no .*{key}"):
        keys_of(rope_scaling=without(scaling, key))
    values: list[Any] = ["8", True, -1, [], math.nan]
    for value in values:
        with pytest.raises(ConversionError, match=key):
            keys_of(rope_scaling=scaling | {key: value})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"rope_scaling": LLAMA3 | {"mscale": 2.0}}, "mscale is 2.0: .*llama3"),
        ({"rope_scaling": YARN | {"truncate": False}}, "truncate is False"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor is 1.0"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope' is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "rope_theta is 500000.0 and"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
            "gives each kind of layer its own RoPE",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        keys_of(**config)
