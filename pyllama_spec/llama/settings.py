"""What a Llama was opened with, under the names of llama-cpp-python's attributes."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from pyllama_spec.engine import ContextParams, default_n_threads
from pyllama_spec.engine.context_params import POOLING, ROPE_SCALING
from pyllama_spec.llama.open_model import OpenModel
from pyllama_spec.llama.open_options import KV_TYPES, SPLIT_MODES

_NUMBER_OF_TYPE = {name: number for number, name in KV_TYPES.items()}


class Settings(OpenModel):
    """Attributes that programs read. Setting them changes nothing."""

    _params: ContextParams
    _settings: dict[str, Any]

    def _note_settings(self, params: ContextParams, attributes: Mapping[str, Any]) -> None:
        self._params = params
        self._settings = {
            name: value for name, value in attributes.items() if not hasattr(self, name)
        }

    def __getattr__(self, name: str) -> Any:
        # Found here and nowhere else: what Llama() was given.
        settings = self.__dict__.get("_settings", {})
        if name in settings:
            return settings[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def n_batch(self) -> int:
        """Tokens per decode; never more than a text has."""
        n_ctx = self._params.n_ctx or self._open.info.n_ctx_train
        return min(self._params.n_batch, n_ctx)

    @property
    def n_threads(self) -> int:
        """CPU threads for a token."""
        return self.context_params.n_threads  # type: ignore[no-any-return]

    @property
    def n_threads_batch(self) -> int:
        """CPU threads for a batch."""
        return self.context_params.n_threads_batch  # type: ignore[no-any-return]

    @property
    def context_params(self) -> SimpleNamespace:
        """How the context was opened, in the engine's numbers; a copy."""
        params = self._params
        n_threads = params.n_threads or default_n_threads()
        return SimpleNamespace(
            n_ctx=params.n_ctx or self._open.info.n_ctx_train, n_batch=self.n_batch,
            n_ubatch=min(params.n_ubatch, self.n_batch), n_seq_max=params.n_seq_max,
            n_threads=n_threads, n_threads_batch=params.n_threads_batch or n_threads,
            rope_scaling_type=ROPE_SCALING[params.rope_scaling],
            pooling_type=POOLING[params.pooling], rope_freq_base=params.rope_freq_base,
            rope_freq_scale=params.rope_freq_scale, yarn_ext_factor=params.yarn_ext_factor,
            yarn_attn_factor=params.yarn_attn_factor, yarn_beta_fast=params.yarn_beta_fast,
            yarn_beta_slow=params.yarn_beta_slow, yarn_orig_ctx=params.yarn_orig_ctx,
            offload_kqv=params.offload_kqv, op_offload=params.op_offload,
            swa_full=params.swa_full, embeddings=self._settings["embedding"],
            type_k=_NUMBER_OF_TYPE[params.type_k], type_v=_NUMBER_OF_TYPE[params.type_v],
            no_perf=self._settings["no_perf"],
        )  # fmt: skip

    @property
    def model_params(self) -> SimpleNamespace:
        """How the model was loaded, in the engine's numbers; a copy."""
        own = self._settings
        return SimpleNamespace(
            n_gpu_layers=own["n_gpu_layers"], main_gpu=own["main_gpu"],
            split_mode=SPLIT_MODES.index(own["split_mode"]),
            tensor_split=own["tensor_split"], vocab_only=own["vocab_only"],
            use_mmap=own["use_mmap"], use_mlock=own["use_mlock"],
        )  # fmt: skip

    def pooling_type(self) -> int:
        """The engine's number of how embeddings of tokens become one: 0 not at all, 1 mean ..."""
        named = POOLING[self._params.pooling]
        own = self.metadata.get(f"{self._open.info.arch}.pooling_type", "0")
        return named if named >= 0 else int(own)
