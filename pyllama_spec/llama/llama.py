"""Llama: a model to generate with, under the names that users of llama-cpp-python know."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from pyllama_spec.drafters import Drafter
from pyllama_spec.engine import Adapter
from pyllama_spec.engine.checks import count, real, shown
from pyllama_spec.engine.log import thread_log_level
from pyllama_spec.engine.model import SplitMode
from pyllama_spec.engine.overrides import Override
from pyllama_spec.errors import ArgumentError, ClosedError, UnsupportedError
from pyllama_spec.llama import open_options as keywords, pretrained
from pyllama_spec.llama.chat_completion import Chats
from pyllama_spec.llama.embedding import Embedder, response, texts_of
from pyllama_spec.llama.llama_cpp_drafts import drafter_of
from pyllama_spec.llama.loading import (
    check_parallel,
    open_drafter,
    open_model,
    open_runtime,
    why_not_generating,
)
from pyllama_spec.llama.open_model import LlamaState
from pyllama_spec.llama.responses import Response, Stream
from pyllama_spec.llama.settings import ChatHandler, Settings
from pyllama_spec.speculative import ControllerChoice, make_controller

__all__ = ["Llama", "LlamaState"]

# What is looked at together, or handed out again as it was given.
_GIVEN = frozenset(
    ("n_gpu_layers", "split_mode", "main_gpu", "tensor_split", "vocab_only", "use_mmap",
     "devices", "draft_gpu_layers", "rpc_servers", "rpc_timeout", "use_mlock", "kv_overrides",
     "n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch",
     "rope_scaling_type", "pooling_type", "attention_type", "rope_freq_base", "rope_freq_scale",
     "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx",
     "logits_all", "embedding", "offload_kqv", "flash_attn", "op_offload", "swa_full", "no_perf",
     "lora_base", "lora_scale", "lora_path", "numa", "chat_handler", "draft_model", "tokenizer",
     "type_k", "type_v", "spm_infill", "verbose", "seed")
)  # fmt: skip

# Of what __init__() sees, no keyword of its own.
_NO_KEYWORDS = frozenset(("self", "unknown", "__class__"))


class Llama(Chats, Settings):
    """A model with a context and a drafter.

    With n_parallel=1 one request at a time: other threads wait for their turn, and a stream that is
    not read to its end has to be closed before the same thread makes the next request. With more,
    that many requests and open streams are computed side by side, by a thread of their own; each
    gets the text that it would get alone.

    Numbers of llama-cpp-python's constants are taken where names are. What changes nothing here
    (logits_all without eval(), numa, no_perf, lora_base ...) passes; a keyword that there is not
    warns.

    Defaults are those of llama-cpp-python, so that programs keep theirs: n_ctx=512, max_tokens=16
    and temperature=0.8 for a text, no bound and 0.2 for a chat. The command line has others: 4096,
    128, 0.

    Args:
        model_path: the target's GGUF file; of a split model the first part.
        n_gpu_layers: layers on the GPU; -1 for all. What lies where in the end is in
            `model.placement`, and a warning says where it is less.
        devices: names of the devices that take layers, as `doctor` lists them; None for all.
        draft_gpu_layers: the same for a draft that is given as a file; None for n_gpu_layers, and
            for 0 with rpc_servers.
        rpc_servers: "host:port" of servers that take layers of the target, see docs/rpc.md; with
            n_gpu_layers. A server that is lost is a RemoteError.
        rpc_timeout: seconds that one answer of theirs may take, in this process, on connections
            that are opened from now on; None leaves it [300].
        split_mode, main_gpu, tensor_split: several GPUs, see engine.Model.
        vocab_only: the vocabulary alone: tokenize() and what else needs no weights.
        use_mmap, use_mlock: how the file is held.
        kv_overrides: keys of the file with other values, see engine/overrides.py.
        seed: where the stream of seeds begins that requests without one draw from: equal requests
            give different texts, set_seed() starts again. None, -1 for anywhere.
        n_ctx: positions for prompt and text of a request; None or 0 for as many as the model was
            trained with.
        n_batch, n_ubatch: tokens per decode, and per step inside of it.
        n_threads: CPU threads; None or 0 for the physical cores.
        n_threads_batch: the same for prompts and verify batches; None or 0 for n_threads.
        rope_scaling_type, rope_freq_base, rope_freq_scale: None, 0, 0 for the model's own.
        pooling_type, attention_type: of embeddings; None for the model's own.
        yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow, yarn_orig_ctx: of YaRN;
            below 0, and 0 for the last, for the model's own.
        logits_all: keep the logits of every token that eval() reads, in `scores`.
        embedding: give embeddings, by embed() and create_embedding(), in a context beside.
        offload_kqv: keep the KV cache on the GPU.
        flash_attn: None for off on the CPU, and the engine's choice on a GPU.
        op_offload: let a GPU compute wide batches of layers in the host's memory; None for no.
        swa_full: keep sliding-window layers whole, so that any prefix can be reused; None for yes.
        last_n_tokens_size: how many past tokens penalties see.
        lora_path, lora_scale: an adapter, and how much of it; set_adapters() takes several.
        lora_base: nothing, as in llama-cpp-python.
        numa, no_perf: nothing.
        chat_format: "chatml", "llama-3" and the other names of llama_cpp.llama_chat_format, or the
            name of a template in the file; None for the file's default one.
        chat_handler: a function that answers chats instead.
        draft_model: llama-cpp-python's drafts: a LlamaPromptLookupDecoding or a LlamaDraftModel.
        tokenizer: a LlamaTokenizer, which changes nothing; no other.
        type_k, type_v: types of the KV cache, such as "f16" or "q8_0".
        spm_infill: put the suffix first where a gap is filled.
        verbose: progress bars, what the engine says while it loads, and a line for each request,
            on stderr.
        draft: who proposes tokens: None or "none" for plain decoding, "prompt-lookup", "grammar"
            for no more than what a grammar or schema forces (every other one drafts that as well),
            the path of a draft's GGUF, or a Drafter. It changes how fast the text comes, never the
            text.
        n_draft: the most tokens to draft per round; None for the drafter's own number.
        p_min: end a draft before a token that it is less sure of, for drafts from a file, and
            nowhere else: the controller is off then. 0 drafts n_draft tokens in every round, which
            is most accepted tokens but not always most speed.
        lookup: where the last so many tokens stood in the text before, propose what followed there
            instead of asking the draft of a file: None for 5. 0 for never, and no n-grams beside
            it either: the head of the file alone.
        controller: how much is drafted. None or "profit": as much as makes the text come soonest
            here, nothing at all where plain decoding is faster; "fixed": n_draft tokens in every
            round; "off": nothing; or a speculative.Controller.
        n_parallel: how many requests are computed side by side. The KV cache is that many times
            as large.
        chat_template: Jinja text instead of the file's.

    Raises:
        ModelLoadError: a file is missing, unreadable, or not a model.
        ArgumentError: a value is out of range.
        UnsupportedError: the model cannot generate, or the draft cannot be used with it.
        OutOfMemoryError: there is not enough memory.
        RemoteError: a server cannot be reached.

    """

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
        rope_freq_scale: float = 0.0, yarn_ext_factor: float = -1.0, yarn_attn_factor: float = -1.0,
        yarn_beta_fast: float = -1.0, yarn_beta_slow: float = -1.0, yarn_orig_ctx: int = 0,
        logits_all: bool = False, embedding: bool = False, offload_kqv: bool = True,
        flash_attn: bool | None = None, op_offload: bool | None = None,
        swa_full: bool | None = None, no_perf: bool = False, last_n_tokens_size: int = 64,
        lora_base: str | None = None, lora_scale: float = 1.0,
        lora_path: str | os.PathLike[str] | None = None, numa: bool | int = False,
        chat_format: str | None = None, chat_handler: ChatHandler | None = None,
        draft_model: Any = None, tokenizer: Any = None, type_k: str | int | None = None,
        type_v: str | int | None = None, spm_infill: bool = False, verbose: bool = False,
        draft: str | os.PathLike[str] | Drafter | None = None, n_draft: int | None = None,
        p_min: float | None = None, lookup: int | None = None, controller: ControllerChoice = None,
        n_parallel: int = 1, chat_template: str | None = None, devices: Sequence[str] | None = None,
        draft_gpu_layers: int | None = None, rpc_servers: Sequence[str] | None = None,
        rpc_timeout: float | None = None, **unknown: Any,
    ) -> None:
        # fmt: on
        opening, start = dict(locals()), perf_counter()
        self._opening = {key: opening[key] for key in opening.keys() - _NO_KEYWORDS}
        given = {name: value for name, value in opening.items() if name in _GIVEN}
        keywords.note_unknown(unknown, Llama.__init__)
        keywords.check_neutral(given)
        draft = draft if draft_model is None else drafter_of(draft_model, draft)
        params = keywords.context_params(given)
        check_parallel(n_parallel, params)
        given["split_mode"] = keywords.split_name(split_mode)
        last_n = count(last_n_tokens_size, "last_n_tokens_size", -1)
        adapters = [] if lora_path is None else [(lora_path, real(lora_scale, "lora_scale"))]
        with thread_log_level("info") if verbose else contextlib.nullcontext():
            chosen = make_controller(controller, p_min)
            drafter = open_drafter(draft, n_draft, p_min, lookup, given, chosen)
            model = open_model(model_path, given)
            params = keywords.for_model(params, model)
            why_not = why_not_generating(model, vocab_only, embedding)
            runtime = None if why_not else open_runtime(
                model, params, drafter, n_draft, n_parallel, chosen, wants_rows=logits_all
            )  # fmt: skip
        own = None if drafter is draft and draft_model is None else drafter  # closed with this
        super().__init__(model, runtime, why_not, own, seed)
        self.model_path, self.verbose, self.spm_infill = os.fspath(model_path), verbose, spm_infill
        self.last_n_tokens_size, self._logits_all, self._embeds = last_n, logits_all, embedding
        self.chat_handler = chat_handler
        self._note_settings(params, given)
        self._choose_template(chat_format, chat_template)
        if adapters:
            self.set_adapters(adapters)
        if runtime is not None:
            keywords.warn_of_length(params, model)
            runtime.runner.load_s = perf_counter() - start

    _embedder: Embedder | None = None

    def __reduce__(self) -> Any:
        """A pickle holds what it was opened with, and opens it again; it has no memory of texts."""
        return _opened_again, (type(self), self._opening)

    def set_adapters(
        self, adapters: Sequence[tuple[str | os.PathLike[str] | Adapter, float]]
    ) -> None:
        """Lets these LoRA adapters count from here on, each with its scale; () for none.

        What the memory holds was computed without them, and is forgotten.

        Raises:
            ArgumentError: these are no pairs of a file or an Adapter and a scale.
            ModelLoadError: a file is missing, or made for another model.
            BusyError: a request is running.

        """
        try:
            pairs = [(one, scale) for one, scale in adapters]
        except (TypeError, ValueError):
            raise ArgumentError(
                f"adapters={shown(adapters)} are no pairs of a file or an Adapter and its scale"
            ) from None
        loaded = [
            (one if isinstance(one, Adapter) else Adapter(self._open, one), scale)
            for one, scale in pairs
        ]
        with self._runtime.runner.exclusive():
            self._runtime.context.set_adapters(loaded)
        self.reset()

    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """Texts as vectors.

        Args:
            input: a text, or several.
            normalize: to a length of 1.
            truncate: cut texts longer than n_batch tokens; else refuse them.
            return_count: give the number of tokens too.

        Returns:
            For each text a list of n_embd floats; where the model does not pool, such a list for
            each of its tokens. Of a single text its own, and with return_count a pair.

        Raises:
            UnsupportedError: the model was opened without embedding=True.
            ClosedError: it is closed.
            ContextFullError: a text is too long, and truncate is False.
            CancelledError: cancel() was called meanwhile.

        """
        if self._open.is_closed:
            raise ClosedError(f"the model {self.model_path} is closed; load it again")
        if not self._embeds:
            raise UnsupportedError(
                "embeddings are for a Llama that was opened with embedding=True; open it so"
            )
        texts, embedder = texts_of(input), self._embedder
        if embedder is None:
            mine = Embedder(self._open, self._params)
            # Two threads may come here at once: one context serves both.
            embedder = self.__dict__.setdefault("_embedder", mine)
            if embedder is not mine:
                mine.close()
        found, n_tokens = embedder.embed(texts, normalize=normalize, truncate=truncate)
        out = found[0] if isinstance(input, str) else found
        return (out, n_tokens) if return_count else out

    def create_embedding(
        self, input: str | Sequence[str], model: str | None = None
    ) -> dict[str, Any]:
        """The same in the form of OpenAI's API; see embed()."""
        found, n_tokens = self.embed(texts_of(input), return_count=True)
        return response(found, n_tokens, self.model_path if model is None else model)

    def create_chat_completion_openai_v1(self, *args: Any, **keywords: Any) -> Any:
        """create_chat_completion() as objects of the package openai.

        Returns:
            A ChatCompletion, or with stream=True an iterator of ChatCompletionChunk.

        Raises:
            ImportError: the package openai is not installed.

        """
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        found: Response | Stream = self.create_chat_completion(*args, **keywords)
        if isinstance(found, Mapping):
            return ChatCompletion(**found)
        return (ChatCompletionChunk(**chunk) for chunk in found)

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
    ) -> Llama:
        """A Llama of a file on the Hugging Face hub, by the package huggingface_hub.

        Args:
            repo_id: "owner/name".
            filename: the file, or a pattern such as "*Q4_0.gguf" that one file has.
            additional_files: further ones to fetch, such as the parts of a split model.
            local_dir: where to put them; None for the hub's cache.
            local_dir_use_symlinks: nothing: huggingface_hub has given it up.
            cache_dir: the hub's cache.
            keywords: of Llama().

        Raises:
            UnsupportedError: huggingface_hub is not installed.
            ArgumentError: no file has that name, or several.

        """
        del local_dir_use_symlinks
        path = pretrained.fetch(repo_id, filename, additional_files or (), local_dir, cache_dir)
        return cls(path, **keywords)

    def cancel(self) -> None:
        """Ends what runs, embed() too, from any thread: it raises CancelledError within one decode.

        Requests that wait for a place are not touched; with none running nothing happens.
        """
        super().cancel()
        if self._embedder is not None:
            self._embedder.cancel()

    def close(self) -> None:
        """Frees the model. Requests in other threads are cancelled first. May be called twice.

        Raises:
            BusyError: called by a callback of a running generation.

        """
        super().close()
        if self._embedder is not None:
            self._embedder.close()
        if self._tools is not None:
            self._tools.close()


def _opened_again(kind: type[Llama], opening: dict[str, Any]) -> Llama:
    return kind(**opening)
