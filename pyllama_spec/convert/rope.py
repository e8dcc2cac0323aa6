"""Converts the RoPE scaling of config.json to GGUF keys and factor tensors.

The formulas are those of Hugging Face transformers' modeling_rope_utils.py, and what they become is
what the engine computes from the keys (src/llama-context.cpp, ggml's rope_yarn):

    kind       keys and tensors
    none       rope.freq_base
    linear     rope.scaling.type, .factor
    yarn       rope.scaling.type, .factor, .original_context_length; .attn_factor where the scale of
               cos and sin is not yarn's own 0.1 ln(factor) + 1, by which it is multiplied
    llama3     rope_freqs.weight: what each frequency is divided by
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pyllama_spec.convert.config import Fields
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.tensors import Floats, PlannedTensor

# The default of transformers' LlamaConfig and of the EAGLE reference.
_DEFAULT_THETA = 10000.0
_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"}
_ORIGINAL = "original_max_position_embeddings"
# Keys that a kind may have; another one would mean something that is not written to the file.
_KNOWN = {
    "none": set[str](),
    "linear": {"factor"},
    "yarn": {
        "factor", _ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate",
    },
    "llama3": {"factor", _ORIGINAL, "low_freq_factor", "high_freq_factor"},
}  # fmt: skip
_NAMES = {"default": "none", "none": "none"}
_REFUSED = {
    "dynamic": "its frequencies change with the length of the text",
    "mrope": "it gives each token three positions",
}


@dataclass(frozen=True, slots=True)
class Rope:
    """The keys and tensors of RoPE."""

    # the keys without the architecture's prefix: a str, int or float each
    keys: Mapping[str, str | int | float]
    tensors: Mapping[str, Floats]  # the tensors by their GGUF names, float32 [head size / 2]
    notes: tuple[str, ...] = ()  # remarks for the user

    @property
    def planned(self) -> list[PlannedTensor]:
        """The tensors to write."""
        return [PlannedTensor(name, v.shape, values=v) for name, v in self.tensors.items()]


def read_rope(
    config: Fields, head_size: int, *, ignored: frozenset[str] = frozenset(), partial: bool = False
) -> Rope:
    """Reads RoPE of a flat config from rope_theta, rope_scaling and rope_parameters."""
    scaling = _scaling(config, ignored)
    beside = scaling.beside(config)
    n_rot = _rotated(beside, head_size, partial)
    base = beside.number("rope_theta", _DEFAULT_THETA)
    notes: tuple[str, ...] = ()
    if not beside.has("rope_theta"):
        notes = (f"no rope_theta in config.json: {base:g}, its default",)
    kind = _kind(scaling)
    for place in (scaling, *scaling.others):
        odd = sorted(place.values.keys() - _KNOWN[kind] - _COMMON)
        if odd:
            raise place.refuse(odd[0], f"it means nothing to RoPE of kind {kind!r}")
    keys: dict[str, str | int | float] = {
        "rope.dimension_count": n_rot,
        "rope.freq_base": base,
    }
    tensors: dict[str, Floats] = {}
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": scaling.number("factor")}
    if kind == "yarn":
        keys |= _yarn(scaling)
    elif kind == "llama3":
        tensors["rope_freqs.weight"] = _llama3(scaling, base, n_rot)
    return Rope(keys, tensors, notes)


def _rotated(options: Fields, head_size: int, is_allowed: bool) -> int:
    """The number of rotated dimensions of each head."""
    key = "partial_rotary_factor"
    if options.get(key) in (None, 1):
        return head_size
    if not is_allowed:
        raise options.refuse(key, "RoPE that turns a part of each head is not supported")
    n_rot = int(head_size * options.number(key))
    if n_rot % 2 or not 0 < n_rot <= head_size:
        raise options.fail(key, f"a share of {head_size} that is an even number")
    return n_rot


def _scaling(config: Fields, ignored: frozenset[str]) -> Fields:
    """The options in rope_scaling and rope_parameters; newer files have both, with equal values."""
    places: list[Fields] = []
    for name in ("rope_scaling", "rope_parameters"):
        inner = config.inner(name)
        values = {k: v for k, v in inner.values.items() if v is not None and k not in ignored}
        if any(isinstance(value, dict) for value in values.values()):
            raise config.refuse(
                name, "it gives each kind of layer its own RoPE, which is not supported"
            )
        kind = values.pop("type", None)
        if kind is not None:
            values.setdefault("rope_type", kind)
        if values:
            places.append(Fields(values, inner.where))
    first, *others = places or [Fields({}, "rope_scaling.")]
    return first.beside(*others)


def _kind(scaling: Fields) -> str:
    name = "mrope" if scaling.has("mrope_section") else scaling.get("rope_type")
    if name is None:
        if any(place.values.keys() - _COMMON for place in (scaling, *scaling.others)):
            raise scaling.fail("rope_type", "which kind of scaling it is")
        return "none"
    kind = _NAMES.get(str(name), str(name))
    if kind not in _KNOWN:
        why = _REFUSED.get(kind, f"this converter knows {', '.join(_KNOWN)}")
        raise ConversionError(f"RoPE scaling of kind {kind!r} is not supported: {why}")
    return kind


def _yarn(scaling: Fields) -> dict[str, str | int | float]:
    """The YaRN keys beside type and factor."""
    for key, value in (("beta_fast", 32.0), ("beta_slow", 1.0)):
        if scaling.number(key, value) != value:
            raise scaling.refuse(key, f"the engine computes yarn of a draft with {value:g}")
    if not scaling.flag("truncate", default=True):
        raise scaling.refuse("truncate", "the engine rounds yarn's range")
    keys: dict[str, str | int | float] = {
        "rope.scaling.original_context_length": scaling.size(_ORIGINAL)
    }
    factor = scaling.number("factor")
    own = _yarn_scale(factor, 1.0)
    if scaling.has("attention_factor"):
        scale = scaling.number("attention_factor")
    elif scaling.has("mscale") and scaling.has("mscale_all_dim"):
        scale = _yarn_scale(factor, scaling.number("mscale"))
        scale /= _yarn_scale(factor, scaling.number("mscale_all_dim"))
    else:
        scale = own
    if not math.isclose(scale, own, rel_tol=1e-6):
        keys["rope.scaling.attn_factor"] = scale / own
    return keys


def _yarn_scale(factor: float, mscale: float) -> float:
    """The scale of cos and sin; arXiv 2309.00071, equation 22, with DeepSeek's multiplier."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _llama3(scaling: Fields, base: float, head_size: int) -> Floats:
    """The divisors of Llama 3.1 for each frequency, `[head_size / 2]`.

    Long waves are stretched by `factor`, short ones stay, and between them the frequencies are
    mixed: f' = (1 - s) f / factor + s f, s = (original / wavelength - low) / (high - low).
    """
    factor = scaling.number("factor")
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    original = scaling.size(_ORIGINAL)
    if high <= low:
        raise scaling.fail("high_freq_factor", f"above low_freq_factor, {low:g}")
    wavelengths = 2 * np.pi * base ** (np.arange(0, head_size, 2) / head_size)
    s = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    result: Floats = (1.0 / ((1.0 - s) / factor + s)).astype(np.float32)
    return result
