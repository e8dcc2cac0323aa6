"""A Llama's parameters under llama-cpp-python's names, as the engine's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from pyllama_spec.engine import ContextParams, Model, default_n_threads
from pyllama_spec.engine.context_params import POOLING, ROPE_SCALING
from pyllama_spec.llama.open_options import KV_TYPES, SPLIT_MODES

_NUMBER_OF_TYPE = {name: number for number, name in KV_TYPES.items()}


def context_numbers(
    model: Model, params: ContextParams, values: Mapping[str, Any]
) -> SimpleNamespace:
    """The parameters of a model's context; `values` are those of Llama's keywords."""
    n_threads = params.n_threads or default_n_threads()
    n_ctx = params.n_ctx or model.info.n_ctx_train
    n_batch = min(params.n_batch, n_ctx)
    return SimpleNamespace(
        n_ctx=n_ctx, n_batch=n_batch, n_ubatch=min(params.n_ubatch, n_batch),
        n_seq_max=params.n_seq_max,
        n_threads=n_threads, n_threads_batch=params.n_threads_batch or n_threads,
        rope_scaling_type=ROPE_SCALING[params.rope_scaling],
        pooling_type=POOLING[params.pooling], rope_freq_base=params.rope_freq_base,
        rope_freq_scale=params.rope_freq_scale, yarn_ext_factor=params.yarn_ext_factor,
        yarn_attn_factor=params.yarn_attn_factor, yarn_beta_fast=params.yarn_beta_fast,
        yarn_beta_slow=params.yarn_beta_slow, yarn_orig_ctx=params.yarn_orig_ctx,
        offload_kqv=params.offload_kqv, op_offload=params.op_offload,
        swa_full=params.swa_full, embeddings=values["embedding"],
        type_k=_NUMBER_OF_TYPE[params.type_k], type_v=_NUMBER_OF_TYPE[params.type_v],
        no_perf=values["no_perf"],
    )  # fmt: skip


def model_numbers(values: Mapping[str, Any]) -> SimpleNamespace:
    """The parameters of a model, of the values of Llama's keywords."""
    names = ("n_gpu_layers", "main_gpu", "tensor_split", "vocab_only", "use_mmap", "use_mlock")
    shown = {name: values[name] for name in names}
    return SimpleNamespace(**shown, split_mode=SPLIT_MODES.index(values["split_mode"]))
