"""The adapters and settings that a context's memory depends on besides its model.

Two memories are compatible if the model, the adapters and all settings are equal. Devices and
numbers of threads do not count: they round differently, but the text is still the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyllama_spec.engine.adapter import Adapter
from pyllama_spec.engine.context_params import ContextParams
from pyllama_spec.engine.model import Model

# Fields of ContextParams that change what is computed. Sizes and memory layout do not.
_SETTINGS = (
    "type_k", "type_v", "rope_scaling", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor",
    "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx", "attention_type",
)  # fmt: skip
# The engine rounds a context's length up to a multiple of this.
_CONTEXT_STEP = 256

Settings = tuple[tuple[str, str], ...]


def adapters_key(adapters: Sequence[tuple[Adapter, float]]) -> tuple[tuple[str, float], ...]:
    """A key of adapters, by content and scale. Leaves out those of scale 0."""
    return tuple((adapter.identity, float(scale)) for adapter, scale in adapters if scale != 0.0)


def settings_of(model: Model, params: ContextParams, n_ctx_seq: int, flash_attn: int) -> Settings:
    """The settings, beside model and adapters, that the memory of a context depends on."""
    values: dict[str, Any] = {name: getattr(params, name) for name in _SETTINGS}
    # A quantised V cache exists only with it, whether it was asked for or not.
    needs_it = params.type_v not in ("f32", "f16", "bf16")
    values["flash_attn"] = {-1: True if needs_it else None, 0: False}.get(flash_attn, True)
    # Some models rotate positions differently in contexts that are longer than those of their
    # training.
    padded = -(-n_ctx_seq // _CONTEXT_STEP) * _CONTEXT_STEP
    is_long = padded > _n_ctx_original(model, params)
    values["n_ctx"] = f"{'beyond' if is_long else 'within'} the length of training"
    return tuple((name, repr(value)) for name, value in values.items())


def _n_ctx_original(model: Model, params: ContextParams) -> int:
    info = model.info
    named = model.metadata.get(f"{info.arch}.rope.scaling.original_context_length", "")
    own = int(named) if named.isdigit() else info.n_ctx_train
    return params.yarn_orig_ctx or own


def first_difference(theirs: Settings, ours: Settings) -> str | None:
    """The first differing setting, in words; None if all are equal."""
    known = dict(theirs)
    for name, value in ours:
        if known.get(name, value) != value:
            if name == "adapters":
                return "other adapters, or other scales of them"
            return f"{name}={known[name]}, and here it is {value}"
    return None if len(theirs) == len(ours) else "other settings"
