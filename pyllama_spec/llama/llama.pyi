# Type checkers read this in place of llama.py: it has the keywords of Llama() one by one, and what
# requests give with and without stream=True. tests/unit/test_llama_stub.py compares the two.
import contextlib
import os
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import Unpack

from pyllama_spec.chat.template import ChatTemplate, Message
from pyllama_spec.drafters import Drafter
from pyllama_spec.engine import Adapter, Context, Model
from pyllama_spec.engine.closeable import Closeable
from pyllama_spec.engine.model import SplitMode
from pyllama_spec.engine.overrides import Override
from pyllama_spec.llama.caches import BaseLlamaCache
from pyllama_spec.llama.chat_completion import ChatCompletions
from pyllama_spec.llama.completion import MoreOptions, Prompts
from pyllama_spec.llama.open_model import LlamaState
from pyllama_spec.llama.open_options import (
    ChatHandler,
)
from pyllama_spec.llama.overridable import Logits
from pyllama_spec.llama.responses import Response, Stream
from pyllama_spec.llama.tokenizer import LlamaTokenizer
from pyllama_spec.requests.generation import Generation, Runtime
from pyllama_spec.requests.options import LogitsProcessor, RequestOptions, StoppingCriterion
from pyllama_spec.speculative import ControllerChoice

__all__ = ["Llama", "LlamaState"]

class Llama(Closeable):
    cache: BaseLlamaCache | None
    chat_handler: ChatHandler | None
    last_n_tokens_size: int
    model_path: str
    spm_infill: bool
    verbose: bool
    _chats: ChatCompletions

    # fmt: off
    def __init__(
        self, model_path: str | os.PathLike[str], *, n_gpu_layers: int = 0,
        split_mode: SplitMode | int = "layer", main_gpu: int = 0,
        tensor_split: Sequence[float] | None = None, vocab_only: bool = False,
        use_mmap: bool = True, use_mlock: bool = False,
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
    @property
    def _runtime(self) -> Runtime: ...
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
    def tokenize(
        self, text: str | bytes, add_bos: bool = True, special: bool = False
    ) -> list[int]: ...
    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes: ...
    def n_ctx(self) -> int: ...
    def n_vocab(self) -> int: ...
    def n_embd(self) -> int: ...
    def token_bos(self) -> int: ...
    def token_eos(self) -> int: ...
    def token_nl(self) -> int: ...
    def tokenizer(self) -> LlamaTokenizer: ...
    @property
    def tokenizer_(self) -> LlamaTokenizer: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def model(self) -> Model: ...
    @property
    def context(self) -> Context: ...
    @property
    def _is_recurrent(self) -> bool: ...
    @property
    def _is_hybrid(self) -> bool: ...
    @property
    def _ctx(self) -> SimpleNamespace: ...
    @property
    def drafter_name(self) -> str: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def n_parallel(self) -> int: ...
    def set_seed(self, seed: int | None) -> None: ...
    def reset(self) -> None: ...
    def save_state(self) -> LlamaState: ...
    def load_state(self, state: LlamaState) -> None: ...
    @property
    def n_tokens(self) -> int: ...
    @n_tokens.setter
    def n_tokens(self, n: int) -> None: ...
    @property
    def input_ids(self) -> npt.NDArray[np.intc]: ...
    @property
    def _input_ids(self) -> npt.NDArray[np.intc]: ...
    @property
    def scores(self) -> Logits: ...
    @property
    def _scores(self) -> Logits: ...
    @property
    def eval_tokens(self) -> deque[int]: ...
    @property
    def eval_logits(self) -> deque[list[float]]: ...
    @property
    def _logits_all(self) -> bool: ...
    def eval(self, tokens: Sequence[int]) -> None: ...
    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.8,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: Any = None,
        grammar: Any = None,
        idx: int | None = None,
    ) -> int: ...
    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.8,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None = None,
        stopping_criteria: StoppingCriterion | Sequence[StoppingCriterion] | None = None,
        grammar: Any = None,
    ) -> Generator[int, Sequence[int] | None, None]: ...  # noqa: UP043 - as in llama.py
    @staticmethod
    def logits_to_logprobs(logits: npt.ArrayLike, axis: int = -1) -> Logits: ...
    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int: ...
    @property
    def n_batch(self) -> int: ...
    @property
    def n_threads(self) -> int: ...
    @property
    def n_threads_batch(self) -> int: ...
    @property
    def context_params(self) -> SimpleNamespace: ...
    @property
    def model_params(self) -> SimpleNamespace: ...
    def pooling_type(self) -> int: ...
    def set_cache(self, cache: BaseLlamaCache | None) -> None: ...
    def set_adapters(
        self, adapters: Sequence[tuple[str | os.PathLike[str] | Adapter, float]]
    ) -> None: ...
    def with_adapters(
        self, adapters: Sequence[tuple[Adapter, float]]
    ) -> contextlib.AbstractContextManager[None]: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...
