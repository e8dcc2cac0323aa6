"""A Llama's options under the names of llama-cpp-python's attributes."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from pyllama_spec.engine import ContextParams, Model, default_n_threads
from pyllama_spec.engine.context_params import POOLING, ROPE_SCALING
from pyllama_spec.llama.open_options import KV_TYPES, SPLIT_MODES

_NUMBER_OF_TYPE = {name: number for number, name in KV_TYPES.items()}


class Settings:
    """Attributes for programs that read them. Setting them has no effect."""

    def __init__(self, model: Model, params: ContextParams, values: Mapping[str, Any]) -> None:
        self._model, self.params, self.values = model, params, values

    @property
    def n_ctx(self) -> int:
        """The maximum number of tokens of a request."""
        return self.params.n_ctx or self._model.info.n_ctx_train

    @property
    def n_batch(self) -> int:
        """Tokens per decode; at most the context length."""
        return min(self.params.n_batch, self.n_ctx)

    def context_params(self, n_batch: int) -> SimpleNamespace:
        """The context's parameters, as the engine's numbers."""
        params = self.params
        n_threads = params.n_threads or default_n_threads()
        return SimpleNamespace(
            n_ctx=self.n_ctx, n_batch=n_batch, n_ubatch=min(params.n_ubatch, n_batch),
            n_seq_max=params.n_seq_max,
            n_threads=n_threads, n_threads_batch=params.n_threads_batch or n_threads,
            rope_scaling_type=ROPE_SCALING[params.rope_scaling],
            pooling_type=POOLING[params.pooling], rope_freq_base=params.rope_freq_base,
            rope_freq_scale=params.rope_freq_scale, yarn_ext_factor=params.yarn_ext_factor,
            yarn_attn_factor=params.yarn_attn_factor, yarn_beta_fast=params.yarn_beta_fast,
            yarn_beta_slow=params.yarn_beta_slow, yarn_orig_ctx=params.yarn_orig_ctx,
            offload_kqv=params.offload_kqv, op_offload=params.op_offload,
            swa_full=params.swa_full, embeddings=self.values["embedding"],
            type_k=_NUMBER_OF_TYPE[params.type_k], type_v=_NUMBER_OF_TYPE[params.type_v],
            no_perf=self.values["no_perf"],
        )  # fmt: skip

    def model_params(self) -> SimpleNamespace:
        """The model's parameters, as the engine's numbers."""
        values = self.values
        return SimpleNamespace(
            n_gpu_layers=values["n_gpu_layers"], main_gpu=values["main_gpu"],
            split_mode=SPLIT_MODES.index(values["split_mode"]),
            tensor_split=values["tensor_split"], vocab_only=values["vocab_only"],
            use_mmap=values["use_mmap"], use_mlock=values["use_mlock"],
        )  # fmt: skip

    def pooling_type(self, metadata: Mapping[str, str]) -> int:
        """The engine's number of the pooling type."""
        own = metadata.get(f"{self._model.info.arch}.pooling_type", "0")
        named = POOLING[self.params.pooling]
        return named if named >= 0 else int(own)
