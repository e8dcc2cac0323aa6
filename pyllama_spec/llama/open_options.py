"""llama-cpp-python's keywords of Llama(), brought to what the engine's parts take."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pyllama_spec.engine import ContextParams, Model
from pyllama_spec.engine.checks import integer, meant, shown
from pyllama_spec.errors import ArgumentError, UnsupportedError

# The engine's numbers, which llama-cpp-python's constants are.
SPLIT_MODES = ("none", "layer", "row", "tensor")
KV_TYPES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 30: "bf16",
}  # fmt: skip
ROPE_SCALING = {-1: None, 0: "none", 1: "linear", 2: "yarn", 3: "longrope"}
POOLING = {-1: None, 0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}
ATTENTION = {-1: None, 0: "causal", 1: "non-causal"}

_FLAGS = ("logits_all", "embedding", "no_perf", "verbose", "spm_infill")
_FLAGS_OR_NONE = ("op_offload", "swa_full")
# Fields of ContextParams that take Llama's values as they are.
_ALIKE = (
    "n_batch", "n_ubatch", "flash_attn", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor",
    "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx", "offload_kqv",
)  # fmt: skip

# Keywords of older versions, which LangChain still hands on. They said what the model's file says
# today, or changed nothing.
_OF_OLD = ("n_parts", "f16_kv", "n_gqa", "rms_norm_eps", "mul_mat_q", "low_vram")


def by_number(value: object, name: str, known: Mapping[int, Any]) -> Any:
    """What a number of the engine's stands for; anything else is left as it is.

    Raises:
        ArgumentError: no such number.

    """
    if value is None or isinstance(value, (str, bool)) or not hasattr(value, "__index__"):
        return value
    number = integer(value, name)
    if number not in known:
        raise ArgumentError(f"{name}={shown(number)} is none of {', '.join(map(str, known))}")
    return known[number]


def zero_is_none(value: int | None) -> int | None:
    """Of n_ctx and n_threads 0 means what None does: the model's own, the machine's own."""
    return None if value is not None and not isinstance(value, bool) and value == 0 else value


def note_unknown(unknown: Iterable[str], init: Callable[..., None]) -> None:
    """Warns of keywords that Llama does not have, with those that look like them.

    llama-cpp-python takes any: a program that runs there is not ended here by one that never did
    anything.
    """
    known = [name for name in inspect.signature(init).parameters if name not in ("self", "unknown")]
    for keyword in unknown:
        if keyword in _OF_OLD:
            continue
        guess = meant(keyword, known)
        warnings.warn(f"there is no keyword of Llama {keyword!r}{guess}", stacklevel=3)


def check_neutral(given: Mapping[str, Any]) -> None:
    """Looks at the keywords that change nothing here, or cannot be had.

    Raises:
        ArgumentError: a wrong type.
        UnsupportedError: a tokenizer of another vocabulary.

    """
    for name in (*_FLAGS, *_FLAGS_OR_NONE):
        if not isinstance(given[name], bool) and (given[name] is not None or name in _FLAGS):
            raise ArgumentError(f"{name}={shown(given[name])} is not True or False")
    if numa := given["numa"]:
        warnings.warn(f"numa={shown(numa)} changes nothing here", stacklevel=3)
    tokenizer, handler = given["tokenizer"], given["chat_handler"]
    if tokenizer is not None and not getattr(tokenizer, "is_of_the_model", False):
        raise UnsupportedError(
            f"tokenizer={shown(tokenizer)}: tokenizers other than the model's own vocabulary are "
            "not supported by this version; leave it out"
        )
    if handler is not None and not callable(handler):
        raise ArgumentError(f"chat_handler={shown(handler)} is no function")


def context_params(given: Mapping[str, Any]) -> ContextParams:
    """How the target's context is opened.

    Raises:
        ArgumentError: a value is out of range.

    """
    return ContextParams(
        n_ctx=zero_is_none(given["n_ctx"]), n_threads=zero_is_none(given["n_threads"]),
        n_threads_batch=zero_is_none(given["n_threads_batch"]),
        op_offload=bool(given["op_offload"]), swa_full=given["swa_full"] is not False,
        type_k=by_number(given["type_k"], "type_k", KV_TYPES) or "f16",
        type_v=by_number(given["type_v"], "type_v", KV_TYPES) or "f16",
        rope_scaling=by_number(given["rope_scaling_type"], "rope_scaling_type", ROPE_SCALING),
        pooling=by_number(given["pooling_type"], "pooling_type", POOLING),
        attention_type=by_number(given["attention_type"], "attention_type", ATTENTION),
        **{name: given[name] for name in _ALIKE},
    )  # fmt: skip


def split_name(split_mode: str | int) -> Any:
    """The name of a way to split a model over several GPUs."""
    return by_number(split_mode, "split_mode", dict(enumerate(SPLIT_MODES)))


def for_model(params: ContextParams, model: Model) -> ContextParams:
    """What a model cannot have, and what would be refused, though it changes nothing there."""
    return params if model.is_on_gpu else replace(params, op_offload=False)


def warn_of_length(params: ContextParams, model: Model) -> None:
    """Of a context longer than those that the model was trained on, unless it is scaled."""
    info, n_ctx = model.info, params.n_ctx or 0
    scaled = params.rope_scaling or params.rope_freq_base or params.rope_freq_scale
    if n_ctx > info.n_ctx_train and not info.is_recurrent and not scaled:
        warnings.warn(
            f"n_ctx={n_ctx} is more than the {info.n_ctx_train} tokens that the model was trained "
            "with: what it says beyond them may make no sense",
            stacklevel=3,
        )
