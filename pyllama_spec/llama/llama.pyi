# Type checkers read this in place of llama.py: it has the keywords of Llama() one by one, and what
# requests give with and without stream=True. tests/unit/test_llama_stub.py compares the two. The
# calls of Llama's bases have one form each: type checkers read those in the bases.
import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

from typing_extensions import Unpack

from pyllama_spec.chat.template import ChatTemplate, Message
from pyllama_spec.drafters import Drafter
from pyllama_spec.engine import Adapter
from pyllama_spec.engine.closeable import Closeable
from pyllama_spec.engine.model import SplitMode
from pyllama_spec.engine.overrides import Override
from pyllama_spec.llama.caches import BaseLlamaCache
from pyllama_spec.llama.chat_completion import ChatCompletions
from pyllama_spec.llama.completion import MoreOptions, Prompts
from pyllama_spec.llama.llama_token_calls import LlamaTokenCalls
from pyllama_spec.llama.open_model import LlamaState
from pyllama_spec.llama.open_options import (
    ChatHandler,
)
from pyllama_spec.llama.responses import Response, Stream
from pyllama_spec.requests.generation import Generation
from pyllama_spec.requests.options import Acceptance, RequestOptions
from pyllama_spec.speculative import ControllerChoice

__all__ = ["Llama", "LlamaState"]

class Llama(LlamaTokenCalls, Closeable):
    cache: BaseLlamaCache | None
    chat_handler: ChatHandler | None
    model_path: str
    spm_infill: bool
    verbose: bool
    _chats: ChatCompletions

    # fmt: off
    def __init__(
        self, model_path: str | os.PathLike[str], *, n_gpu_layers: int = 0,
        split_mode: SplitMode | int = "layer", main_gpu: int = 0,
        tensor_split: Sequence[float] | None = None, vocab_only: bool = False,
        use_mmap: bool = True, use_mlock: bool = False, repack: bool = True,
        kv_overrides: Mapping[str, Override] | None = None, seed: int | None = None,
        n_ctx: int | None = 512, n_batch: int = 512, n_ubatch: int = 512,
        n_threads: int | None = None, n_threads_batch: int | None = None,
        rope_scaling_type: str | int | None = None, pooling_type: str | int | None = None,
        attention_type: str | int | None = None, rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0, yarn_ext_factor: float = -1.0,
        yarn_attn_factor: float = -1.0, yarn_beta_fast: float = -1.0, yarn_beta_slow: float = -1.0,
        yarn_orig_ctx: int = 0, logits_all: bool = False, embedding: bool = False,
        offload_kqv: bool = True, flash_attn: bool | None = None, op_offload: bool | None = None,
        swa_full: bool | None = None, no_perf: bool = False, last_n_tokens_size: int = 64,
        lora_base: str | None = None, lora_scale: float = 1.0,
        lora_path: str | os.PathLike[str] | None = None, numa: bool | int = False,
        chat_format: str | None = None, chat_handler: ChatHandler | None = None,
        draft_model: Any = None, tokenizer: Any = None, type_k: str | int | None = None,
        type_v: str | int | None = None, spm_infill: bool = False, verbose: bool = False,
        draft: str | os.PathLike[str] | Drafter | None = None, n_draft: int | None = None,
        p_min: float | None = None, lookup: int | None = None, controller: ControllerChoice = None,
        acceptance: Acceptance = "exact",
        n_parallel: int = 1, max_waiting: int | None = None, chat_template: str | None = None,
        devices: Sequence[str] | None = None, draft_gpu_layers: int | None = None,
        draft_n_ctx: int | None = None,
        rpc_servers: Sequence[str] | None = None, rpc_timeout: float | None = None,
        prefix_cache_bytes: int | None = None,
        draft_memory: str | os.PathLike[str] | None = None, **unknown: Any,
    ) -> None: ...
    # fmt: on
    def __reduce__(self) -> Any: ...
    def __repr__(self) -> str: ...
    def __getattr__(self, name: str) -> Any: ...
    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None,
        additional_files: Sequence[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        **keywords: Any,
    ) -> Llama: ...
    # fmt: off
    @overload
    def create_completion(
        self, prompt: Prompts, suffix: str | None = ..., max_tokens: int | None = ...,
        temperature: float | None = ...,
        top_p: float = ..., min_p: float = ..., typical_p: float = ...,
        logprobs: int | None = ..., echo: bool = ..., stop: str | Sequence[str] | None = ...,
        frequency_penalty: float = ..., presence_penalty: float = ..., repeat_penalty: float = ...,
        top_k: int = ..., stream: Literal[False] = ..., seed: int | None = ..., tfs_z: float = ...,
        mirostat_mode: int = ..., mirostat_tau: float = ..., mirostat_eta: float = ...,
        model: str | None = ..., stopping_criteria: Any = ..., logits_processor: Any = ...,
        grammar: Any = ..., logit_bias: Mapping[Any, float] | None = ..., *,
        response_format: Mapping[str, Any] | None = ..., progress: bool | None = ...,
        **more: Unpack[MoreOptions],
    ) -> Response: ...
    @overload
    def create_completion(
        self, prompt: Prompts, suffix: str | None = ..., max_tokens: int | None = ...,
        temperature: float | None = ...,
        top_p: float = ..., min_p: float = ..., typical_p: float = ...,
        logprobs: int | None = ..., echo: bool = ..., stop: str | Sequence[str] | None = ...,
        frequency_penalty: float = ..., presence_penalty: float = ..., repeat_penalty: float = ...,
        top_k: int = ..., *, stream: Literal[True], seed: int | None = ..., tfs_z: float = ...,
        mirostat_mode: int = ..., mirostat_tau: float = ..., mirostat_eta: float = ...,
        model: str | None = ..., stopping_criteria: Any = ..., logits_processor: Any = ...,
        grammar: Any = ..., logit_bias: Mapping[Any, float] | None = ...,
        response_format: Mapping[str, Any] | None = ..., progress: bool | None = ...,
        **more: Unpack[MoreOptions],
    ) -> Stream: ...
    @overload
    def create_completion(
        self, prompt: Prompts, *options: Any, **more: Any,
    ) -> Response | Stream: ...
    # fmt: on
    __call__ = create_completion
    # fmt: off
    @overload
    def create_chat_completion(
        self, messages: Sequence[Message], functions: Any = ..., function_call: Any = ...,
        tools: Any = ..., tool_choice: Any = ..., temperature: float | None = ...,
        top_p: float = ...,
        top_k: int = ..., min_p: float = ..., typical_p: float = ..., stream: Literal[False] = ...,
        stop: str | Sequence[str] | None = ..., seed: int | None = ...,
        response_format: Mapping[str, Any] | None = ..., max_tokens: int | None = ...,
        presence_penalty: float = ..., frequency_penalty: float = ..., repeat_penalty: float = ...,
        tfs_z: float = ..., mirostat_mode: int = ..., mirostat_tau: float = ...,
        mirostat_eta: float = ..., model: str | None = ..., logits_processor: Any = ...,
        grammar: Any = ..., logit_bias: Mapping[Any, float] | None = ...,
        logprobs: bool | None = ..., top_logprobs: int | None = ..., *,
        stopping_criteria: Any = ..., parallel_tool_calls: bool | None = ...,
        reasoning_format: str | None = ..., chat_template_kwargs: Mapping[str, Any] | None = ...,
        **more: Unpack[MoreOptions],
    ) -> Response: ...
    @overload
    def create_chat_completion(
        self, messages: Sequence[Message], functions: Any = ..., function_call: Any = ...,
        tools: Any = ..., tool_choice: Any = ..., temperature: float | None = ...,
        top_p: float = ...,
        top_k: int = ..., min_p: float = ..., typical_p: float = ..., *, stream: Literal[True],
        stop: str | Sequence[str] | None = ..., seed: int | None = ...,
        response_format: Mapping[str, Any] | None = ..., max_tokens: int | None = ...,
        presence_penalty: float = ..., frequency_penalty: float = ..., repeat_penalty: float = ...,
        tfs_z: float = ..., mirostat_mode: int = ..., mirostat_tau: float = ...,
        mirostat_eta: float = ..., model: str | None = ..., logits_processor: Any = ...,
        grammar: Any = ..., logit_bias: Mapping[Any, float] | None = ...,
        logprobs: bool | None = ..., top_logprobs: int | None = ..., stopping_criteria: Any = ...,
        parallel_tool_calls: bool | None = ..., reasoning_format: str | None = ...,
        chat_template_kwargs: Mapping[str, Any] | None = ..., **more: Unpack[MoreOptions],
    ) -> Stream: ...
    @overload
    def create_chat_completion(
        self, messages: Sequence[Message], *options: Any, **more: Any,
    ) -> Response | Stream: ...
    # fmt: on
    @overload
    async def acreate_completion(
        self, *options: Any, stream: Literal[False] = ..., **more: Any
    ) -> Response: ...
    @overload
    async def acreate_completion(
        self, *options: Any, stream: Literal[True], **more: Any
    ) -> Stream: ...
    @overload
    async def acreate_completion(
        self, *options: Any, stream: bool, **more: Any
    ) -> Response | Stream: ...
    @overload
    async def acreate_chat_completion(
        self, *options: Any, stream: Literal[False] = ..., **more: Any
    ) -> Response: ...
    @overload
    async def acreate_chat_completion(
        self, *options: Any, stream: Literal[True], **more: Any
    ) -> Stream: ...
    @overload
    async def acreate_chat_completion(
        self, *options: Any, stream: bool, **more: Any
    ) -> Response | Stream: ...
    def generate_steps(
        self, prompt: str | Sequence[int], options: RequestOptions | None = None, **keywords: Any
    ) -> Generation: ...
    def generate_chat_steps(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> Generation: ...
    @property
    def chat_format(self) -> str | None: ...
    @chat_format.setter
    def chat_format(self, name: str | None) -> None: ...
    @property
    def template(self) -> ChatTemplate: ...
    def embed(
        self,
        input: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any: ...
    def create_embedding(
        self,
        input: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        model: str | None = None,
    ) -> dict[str, Any]: ...
    def rank(
        self, query: str, documents: Sequence[str], *, truncate: bool = True
    ) -> list[float]: ...
    def create_chat_completion_openai_v1(self, *args: Any, **keywords: Any) -> Any: ...
    def set_cache(self, cache: BaseLlamaCache | None) -> None: ...
    def set_adapters(
        self, adapters: Sequence[tuple[str | os.PathLike[str] | Adapter, float]]
    ) -> None: ...
    def with_adapters(
        self, adapters: Sequence[tuple[Adapter, float]]
    ) -> contextlib.AbstractContextManager[None]: ...
    def reopen(self) -> None: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...
