"""Llama: a model to generate with, under the names that users of llama-cpp-python know.

Its calls are signatures, defaults and documentation, and hand the work to the objects behind it.
Those call back through the Llama they are given; overridable.py lists what of a subclass they heed.
The calls token by token are in its base.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path, PurePosixPath
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pyllama_spec.chat.template import ChatTemplate, Message
from pyllama_spec.engine import Adapter, Context, Model
from pyllama_spec.engine.checks import instance
from pyllama_spec.engine.closeable import Closeable, closed_on_failure
from pyllama_spec.engine.context_params import POOLING
from pyllama_spec.engine.log import thread_log_level
from pyllama_spec.errors import (
    ArgumentError,
    ForkedError,
    PyllamaSpecError,
    UnsupportedError,
)
from pyllama_spec.llama.caches import BaseLlamaCache
from pyllama_spec.llama.calls import (
    CHAT,
    TEXT,
    ChatCall,
    Prompts,
    TextCall,
    async_call_of,
    call_of,
)
from pyllama_spec.llama.chat_completion import ChatCompletions, registered_handler
from pyllama_spec.llama.completion import Completions
from pyllama_spec.llama.embedding import Embeddings, is_one_text, response, texts_of
from pyllama_spec.llama.event_loop import answered
from pyllama_spec.llama.llama_cpp_drafts import drafter_of
from pyllama_spec.llama.loading import (
    check_options,
    open_pair,
    open_runtime,
    why_not_generating,
)
from pyllama_spec.llama.open_model import LlamaState, OpenModel
from pyllama_spec.llama.open_options import (
    ChatHandler,
    OpenOptions,
    context_numbers,
    for_model,
    keywords_of,
    model_numbers,
    warn_of_length,
    warn_of_unknown,
    with_arguments,
)
from pyllama_spec.llama.responses import Response, Stream, answering_model
from pyllama_spec.llama.token_calls import ScoreTable, TokenCalls
from pyllama_spec.llama.tokenizer import LlamaTokenizer, VocabTexts
from pyllama_spec.options import options_of
from pyllama_spec.requests.generation import Generation, Runtime
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.speculative import make_controller
from pyllama_spec.speculative.prefixes import PrefixStore
from pyllama_spec.speculative.target_batch import DecodeCounts

__all__ = ["Llama", "LlamaState"]


class Llama(TokenCalls, Closeable):
    """A model with a context and a drafter.

    With n_parallel=1 one request at a time is computed, by the thread that reads it. With more,
    that many requests and open streams are computed at once, by a thread of their own. Each gets
    the text that it would get alone. Further requests are queued; a stream that nobody reads is set
    aside for them, and resumes once it is read. In an event loop acreate_completion() and
    acreate_chat_completion() never block.

    Numbers of llama-cpp-python's constants are accepted instead of names. Keywords without effect
    here (logits_all without eval(), numa, no_perf, lora_base ...) are accepted; an unknown keyword
    warns.

    The defaults are llama-cpp-python's: n_ctx=512; max_tokens=16 and temperature=0.8 for a text; no
    limit and 0.2 for a chat. The command line has others: 4096, 128, 0.

    Raises:
        ModelLoadError: a file is missing, unreadable, or not a model.
        ArgumentError: a value is out of range.
        UnsupportedError: the model cannot generate, or the draft cannot be used with it.
        OutOfMemoryError: there is not enough memory.
        RemoteError: a server cannot be reached.

    """

    cache: BaseLlamaCache | None = None
    chat_handler: ChatHandler | None = None
    spm_infill = False
    verbose = False
    _chats: ChatCompletions

    # ---- opening

    @keywords_of(OpenOptions)
    def __init__(self, model_path: str | os.PathLike[str], **keywords: Any) -> None:
        start = perf_counter()
        options, unknown = OpenOptions.from_keywords(model_path, keywords)
        self._opened_with = options
        self._reopening: _Reopening = vars(self).get("_reopening") or _Reopening()
        warn_of_unknown(unknown)
        check_options(options)
        draft, draft_model = options.draft, options.draft_model
        draft = draft if draft_model is None else drafter_of(draft_model, draft)
        params = options.context_params()
        attributes = options.attributes()
        last_n, adapters = options.last_n_tokens_size, options.adapters()
        store = PrefixStore(options.store_bytes())
        with thread_log_level("info") if options.verbose else contextlib.nullcontext():
            controller = make_controller(options.controller, options.p_min)
            model, drafter, draft_s = open_pair(draft, options, controller)
            own = None if drafter is draft and draft_model is None else drafter  # closed with this
            with closed_on_failure(own, model):
                params = for_model(params, model)
                why_not = why_not_generating(model, options.vocab_only, options.embedding)
                runtime = None if why_not else open_runtime(
                    model, params, drafter, options.n_draft, options.n_parallel, controller,
                    wants_rows=options.logits_all, max_waiting=options.max_waiting, store=store,
                    acceptance=options.acceptance,
                )  # fmt: skip
        opened = OpenModel(model, runtime, why_not, own, options.seed)
        self.model_path, self.verbose = os.fspath(model_path), options.verbose
        self.spm_infill, self.last_n_tokens_size = options.spm_infill, last_n
        form = (options.chat_format, options.chat_template)
        self._opened, self._texts = opened, VocabTexts(model.vocab)
        self._params, self._values = params, attributes
        self._embeddings = Embeddings(model, params, options.embedding)
        self._logits_all, self._score_table = options.logits_all, ScoreTable()
        self._completions = Completions(opened)
        with closed_on_failure(opened):
            self._chats = ChatCompletions(opened, self._completions, *form)
        self.chat_handler = options.chat_handler or registered_handler(*form)
        if adapters:
            with closed_on_failure(self._chats, opened):
                self.set_adapters(adapters)
        if runtime is not None:
            warn_of_length(params, model)
            runtime.runner.note_loaded(perf_counter() - start, draft_s)

    def __reduce__(self) -> Any:
        """Pickles the keywords, which open the model again; texts are not kept.

        A subclass comes back with its own attributes; its `__init__` is not called.
        """
        own = {name: value for name, value in vars(self).items() if name not in _OWN_ATTRIBUTES}
        return _opened_again, (type(self), self._opened_with.keywords(), own)

    def __repr__(self) -> str:
        return self._opened.describe(type(self).__name__)

    def __getattr__(self, name: str) -> Any:
        # Found here and nowhere else: what Llama() was given.
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

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
        """Opens a Llama from a file of the Hugging Face hub, by the package huggingface_hub.

        Args:
            repo_id: "owner/name".
            filename: the file, or a pattern such as "*Q4_0.gguf" that one file has.
            additional_files: further ones to fetch, such as the parts of a split model.
            local_dir: where to put them; None for the hub's cache.
            local_dir_use_symlinks: nothing: huggingface_hub has given it up.
            cache_dir: the hub's cache.
            keywords: the keywords of Llama().

        Raises:
            UnsupportedError: huggingface_hub is not installed.
            ArgumentError: no file has that name, or several.

        """
        del local_dir_use_symlinks
        path = _downloaded(repo_id, (filename, *(additional_files or ())), local_dir, cache_dir)
        return cls(path, **keywords)

    @property
    def file_keywords(self) -> dict[str, object]:
        """The keywords that may name a file, each with its value."""
        known = options_of(OpenOptions).values()
        return {one.name: getattr(self._opened_with, one.name) for one in known if one.is_path}

    # ---- the vocabulary

    def tokenize(self, text: str | bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            text: the text in UTF-8.
            add_bos: whether to add what the model expects around a text, such as its BOS token.
            special: whether names of control tokens are read as those tokens.

        """
        return self._texts.tokenize(text, add_bos, special)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """The bytes of a run of tokens; control tokens are empty unless `special`.

        At the beginning of a text, which a BOS token says, the space is left out that vocabularies
        of SentencePiece put before a first word.

        Raises:
            ArgumentError: an id is outside the vocabulary.

        """
        return self._texts.detokenize(tokens, prev_tokens, special)

    # ---- the model

    def n_embd(self) -> int:
        """The width of the model's rows, and of its embeddings."""
        return self._opened.model.info.n_embd

    def token_bos(self) -> int:
        """The id of the BOS token; -1 if the model has none."""
        return _or_minus_1(self._opened.model.vocab.bos)

    def token_eos(self) -> int:
        """The id of the EOS token; -1 if the model has none."""
        return _or_minus_1(self._opened.model.vocab.eos)

    def token_nl(self) -> int:
        """The id of the newline token; -1 if the model has none."""
        return _or_minus_1(self._opened.model.vocab.special("nl"))

    def tokenizer(self) -> LlamaTokenizer:
        """The vocabulary as an object."""
        return LlamaTokenizer(self)

    @property
    def tokenizer_(self) -> LlamaTokenizer:
        """The vocabulary under llama-cpp-python's attribute name."""
        return self.tokenizer()

    @property
    def metadata(self) -> dict[str, str]:
        """The file's keys and values as text."""
        return self._opened.model.metadata

    @property
    def model(self) -> Model:
        """The engine's model, for direct access."""
        return self._opened.model

    @property
    def context(self) -> Context:
        """The engine's context. Do not use it while a generation runs."""
        return self._runtime.context

    @property
    def _is_recurrent(self) -> bool:  # read by llama-cpp-python's own tests
        return self.model.info.is_recurrent

    @property
    def _is_hybrid(self) -> bool:
        return self.model.info.is_hybrid

    @property
    def _ctx(self) -> SimpleNamespace:
        is_open_without = self._opened.generating is None
        return SimpleNamespace(ctx=self.model if is_open_without else self.context)

    @property
    def drafter_name(self) -> str:
        """The drafter's name in the statistics."""
        return self._opened.drafter_name

    @property
    def memory_bytes(self) -> int:
        """Bytes of weights and KV caches on all devices.

        Those of a draft count that was opened with the model, and those of the context for
        embeddings from the first text on. Buffers of a decode, and copies that prefix_cache_bytes
        bounds, come on top.
        """
        return self._opened.memory_bytes + self._embeddings.memory_bytes

    @property
    def is_usable(self) -> bool:
        """Whether requests can be computed: False once the model is closed or has failed.

        The loss of an RPC server makes it unusable. So does an engine failure in the middle of a
        decode, as without memory: it leaves the context in an unknown state. Then reopen() helps.
        Embeddings have a context of their own: eight that failed are replaced, and not the ninth.
        """
        runtime = self._opened.generating
        if self._embeddings.failure is not None:
            return False
        if runtime is None:
            return not self._opened.model.is_closed
        return runtime.runner.is_usable()

    @property
    def decode_counts(self) -> DecodeCounts:
        """Counts of the model's decodes; they grow while requests run."""
        return self._runtime.round.decode_counts

    @property
    def n_parallel(self) -> int:
        """The maximum number of requests computed together."""
        return self._runtime.context.n_seq_max

    # ---- how it was opened

    @property
    def n_batch(self) -> int:
        """Tokens per decode; at most the context length."""
        return self.context_params.n_batch  # type: ignore[no-any-return]

    @property
    def n_threads(self) -> int:
        """The number of CPU threads for a single token."""
        return self.context_params.n_threads  # type: ignore[no-any-return]

    @property
    def n_threads_batch(self) -> int:
        """The number of CPU threads for a batch."""
        return self.context_params.n_threads_batch  # type: ignore[no-any-return]

    @property
    def context_params(self) -> SimpleNamespace:
        """A copy of the context's parameters, as the engine's numbers."""
        return context_numbers(self.model, self._params, self._values)

    @property
    def model_params(self) -> SimpleNamespace:
        """A copy of the model's parameters, as the engine's numbers."""
        return model_numbers(self._values)

    def pooling_type(self) -> int:
        """The engine's number of the pooling type: 0 none, 1 mean ..."""
        named = POOLING[self._params.pooling]
        own = self.metadata.get(f"{self.model.info.arch}.pooling_type", "0")
        return named if named >= 0 else int(own)

    @property
    def _runtime(self) -> Runtime:
        return self._opened.runtime

    # ---- completions

    # fmt: off
    @call_of(TextCall, TEXT)
    def create_completion(
        self, prompt: Prompts, *, suffix: str | None, echo: bool, stream: bool, model: str | None,
        progress: bool | None = None, **options: Any,
    ) -> Response | Stream:
        # fmt: on
        """Continues a text, or each text of a list.

        Args:
            prompt: text or token ids. In text, names of control tokens are those tokens. Of a list
                of prompts as many are computed side by side as n_parallel says; the result has a
                choice for each, in their order, and the options, `seed` too, are those of each.
                Where one fails the others are answered all the same; the error has them in its
                `partial_choices`, and None in the place of what failed.
            suffix: text that comes after what is generated, for models with fill-in-the-middle.
            echo: begin the text with the prompt; with logprobs, those of the prompt are there too.
            stream: give chunks as they come instead of one result; for one prompt.
            progress: show a bar while a list is answered; None for what verbose says.
            model: the name in the result; the path by default.
            options: those of RequestOptions.

        Returns:
            A dict as OpenAI's text completion, with `speculation` and `timing`; or a Stream of
            such dicts, the last one with finish_reason, `usage`, `speculation` and `timing`.

        Raises:
            ArgumentError: an option does not exist or is out of range.
            UnsupportedError: the model has no fill-in-the-middle tokens, and suffix is given.
            PyllamaSpecError: whatever Generation raises.

        """
        return self._completions.create(
            self, prompt, suffix, options, model=model, echo=echo, stream=stream, progress=progress
        )

    if TYPE_CHECKING:
        __call__ = create_completion
    else:

        @wraps(create_completion)
        def __call__(self, *options: Any, **more: Any) -> Any:
            """Calls create_completion(), also if a subclass overrides it."""
            return self.create_completion(*options, **more)

    # fmt: off
    @call_of(ChatCall, CHAT)
    def create_chat_completion(  # noqa: D417 - the like share a line
        self, messages: Sequence[Message], *, tools: Any, tool_choice: Any, functions: Any,
        function_call: Any, stream: bool, model: str | None, logprobs: bool | None,
        top_logprobs: int | None, parallel_tool_calls: bool | None = None,
        reasoning_format: str | None = None, chat_template_kwargs: Any = None, **options: Any,
    ) -> Response | Stream:
        # fmt: on
        """Answers a chat: a dict in OpenAI's format, or with stream=True a Stream.

        Args:
            messages: dicts with role and content; content is text or a list of text parts.
            tools, functions: descriptions of functions, in OpenAI's newer or older form.
            tool_choice, function_call: None or "auto" to let the model choose, "none", "required",
                or a function: {"type": "function", "function": {"name": ...}}, {"name": ...}.
            parallel_tool_calls: whether several calls may come at once; None for if it can be.
            reasoning_format: "auto" for what the model thinks before its answer apart, in
                `reasoning_content`; "none" for it in the content; None for "auto" with tools alone.
            logprobs, top_logprobs: report the tokens' log-probabilities, and so many alternatives;
                top_logprobs alone has no effect.
            chat_template_kwargs: variables for the template, such as {"enable_thinking": False}.
            model: the name in the result; the path by default.
            options: those of RequestOptions; max_tokens is None, and temperature 0.2, by default.

        Raises:
            ArgumentError: the messages, or an option, are malformed.
            UnsupportedError: the template cannot be run, or a message is more than text.
            PyllamaSpecError: whatever Generation raises.

        """
        theirs = {name: options.pop(name) for name in CHAT if name in options}
        return self._chats.create(
            self, messages, (tools, tool_choice, functions, function_call), theirs, options,
            stream=stream, model=model, logprobs=logprobs, top_logprobs=top_logprobs,
            parallel_tool_calls=parallel_tool_calls, reasoning_format=reasoning_format,
            chat_template_kwargs=chat_template_kwargs,
        )  # fmt: skip

    @async_call_of(TextCall, TEXT)
    async def acreate_completion(
        self, *options: Any, stream: bool = False, **more: Any
    ) -> Response | Stream:
        """create_completion() in an event loop, which it never blocks, even with n_parallel=1.

        Returns:
            The whole response, or with stream=True a Stream that is in line, for `async for`. A
            task that is cancelled meanwhile aborts the request.

        Raises:
            PyllamaSpecError: whatever create_completion() and Generation raise.

        """
        create = self.create_completion
        answer: Response | Stream = await answered(
            create, self._opened, options, more, stream=stream
        )
        return answer

    @async_call_of(ChatCall, CHAT)
    async def acreate_chat_completion(
        self, *options: Any, stream: bool = False, **more: Any
    ) -> Response | Stream:
        """create_chat_completion() in an event loop; see acreate_completion()."""
        create = self.create_chat_completion
        answer: Response | Stream = await answered(
            create, self._opened, options, more, stream=stream
        )
        return answer

    def generate_steps(
        self,
        prompt: str | Sequence[int],
        options: RequestOptions | None = None,
        **keywords: Any,
    ) -> Generation:
        """Generates in pieces that tell which tokens were drafted.

        Args:
            prompt: text or token ids, as for create_completion.
            options: the options of the request; or
            keywords: its fields. max_tokens is 16 by default.

        Returns:
            An iterator of Piece. Its `record` holds the text, ids, finish_reason, stats
            and timing so far. Close it if it is not read to its end.

        Raises:
            ArgumentError: an option does not exist or is out of range.

        """
        return self._completions.generate_steps(self, prompt, options, keywords)

    def generate_chat_steps(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> Generation:
        """Answers a chat in pieces, as generate_steps() does.

        max_tokens is None by default, and the temperature 0.2.
        """
        return self._chats.generate_chat_steps(
            self, messages, tools, chat_template_kwargs, keywords
        )

    @property
    def chat_format(self) -> str | None:
        """The name of the chat format. Setting it changes later requests.

        Raises:
            ArgumentError: there is no such form; the one before stays.

        """
        return self._chats.form.name

    @chat_format.setter
    def chat_format(self, name: str | None) -> None:
        self._chats.set_format(self, name)

    @property
    def template(self) -> ChatTemplate:
        """The chat template. Warns once if the model has none and ChatML replaces it.

        Raises:
            UnsupportedError: the template in the file cannot be compiled.

        """
        return self._chats.template()

    # ---- embeddings

    def embed(
        self,
        input: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """Embeds texts as vectors.

        Args:
            input: a text, or several; each as text, or as token ids, which are taken as they are.
                On the CPU each is, to the bit, what it is alone; on a GPU they are computed
                together, and differ in the last bits.
            normalize: to a length of 1.
            truncate: cut texts longer than n_batch tokens; else refuse them.
            return_count: give the number of tokens too.

        Returns:
            For each text a list of n_embd floats; where the model does not pool, as a chat model,
            such a list for each of its tokens, with a UserWarning unless Llama(pooling_type=) says
            so: "mean" or "last" give one for the text. Of a single text its own, and with
            return_count a pair.

        Raises:
            UnsupportedError: the model was opened without embedding=True.
            ClosedError: it is closed.
            ContextFullError: a text is too long, and truncate is False.
            CancelledError: cancel() was called meanwhile.

        """
        vectors, n_tokens = self._embeddings.embed(
            input, self.model_path, normalize=normalize, truncate=truncate
        )
        embedded = vectors[0] if is_one_text(input) else vectors
        return (embedded, n_tokens) if return_count else embedded

    def create_embedding(
        self,
        input: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        model: str | None = None,
    ) -> dict[str, Any]:
        """Embeds texts as embed() does; returns OpenAI's format."""
        listed: Any = texts_of(input)
        vectors, n_tokens = self.embed(listed, return_count=True)
        return response(vectors, n_tokens, answering_model(self.model_path, model))

    def rank(self, query: str, documents: Sequence[str], *, truncate: bool = True) -> list[float]:
        """The scores of a reranker for each document and a query, higher for a better match.

        The model is one with pooling type "rank", opened with embedding=True. A pair is written as
        the file's template "rerank" says, else with the vocabulary's BOS, EOS and separator.

        Args:
            query: what is looked for.
            documents: what may answer it.
            truncate: cut documents that do not fit; else refuse them.

        Returns:
            A score for each document, in their order, as the model gives it: any number.

        Raises:
            ArgumentError: these are not texts.
            UnsupportedError: the model gives no such scores, or was opened without embedding=True.
            ContextFullError: the query alone is too long, or a document is, and truncate is False.
            ClosedError: it is closed.

        """
        return self._embeddings.rank(query, documents, self.model_path, truncate=truncate)

    def create_chat_completion_openai_v1(self, *args: Any, **keywords: Any) -> Any:
        """create_chat_completion() with an object of the package openai as its result.

        Returns:
            A ChatCompletion, or with stream=True an iterator of ChatCompletionChunk.

        Raises:
            ImportError: the package openai is not installed.

        """
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        answer: Response | Stream = self.create_chat_completion(*args, **keywords)
        if isinstance(answer, Mapping):
            return ChatCompletion(**answer)
        return (ChatCompletionChunk(**chunk) for chunk in answer)

    # ---- what counts for later requests

    def set_cache(self, cache: BaseLlamaCache | None) -> None:
        """Sets a cache of past requests' states. The last state is always kept.

        A state is a copy of the memory: large, and worth it where long beginnings take turns.
        """
        if cache is not None:
            instance(cache, BaseLlamaCache, "the cache")
        self.cache = cache

    def set_adapters(
        self, adapters: Sequence[tuple[str | os.PathLike[str] | Adapter, float]]
    ) -> None:
        """Sets the LoRA adapters of later requests, each with its scale; () for none.

        They are those of the requests that are made from here on. Requests that were made before
        keep theirs to their end, whether they run or wait: those with other adapters are computed
        apart. What was read with other adapters counts again when they do.

        Raises:
            ArgumentError: these are not pairs of a file or an Adapter and a scale.
            ModelLoadError: a file is missing, or made for another model.
            BusyError: called by a callback of a running request.

        """
        self._opened.set_adapters(adapters)

    def with_adapters(
        self, adapters: Sequence[tuple[Adapter, float]]
    ) -> contextlib.AbstractContextManager[None]:
        """Sets the LoRA adapters of the requests in the block, whatever set_adapters() says.

        Those that are made within it, in this thread or asyncio task alone, keep them to their
        end. It changes nothing for others and waits for nothing, so that each request of a server
        may have its own.

        Args:
            adapters: each with its scale; () for none. Load one once: Adapter(llm.model, path).

        Raises:
            ArgumentError: these are not pairs of an Adapter and a scale. One of another model is
                an error of the request.

        """
        return self._opened.with_adapters(adapters)

    # ---- the end

    def reopen(self) -> None:
        """Opens the model again in place after a failure left it unusable; see is_usable.

        Does nothing to a usable model, so that several threads may call it. Requests end, and the
        KV cache is empty. The keywords are the same, and so are chat format, chat handler, cache
        and seeds; adapters are those of lora_path. After an error the model is closed, and
        reopen() may be called again; until then requests raise an error of the same class. A model
        that the program closed is opened too.

        Raises:
            ForkedError: the model belongs to the parent of this forked process.
            PyllamaSpecError: whatever Llama() and close() raise.

        """
        self._reopening.run(self, Llama.__init__, self._close)

    def cancel(self) -> None:
        """Cancels all calls, from any thread: they raise CancelledError within one decode.

        Requests that wait for a place are not touched; with none running nothing happens.
        """
        self._opened.cancel()
        self._embeddings.cancel()

    def close(self) -> None:
        """Frees the model. Cancels requests of other threads first. May be called twice.

        Raises:
            BusyError: called by a callback of a running generation.

        """
        self._reopening.note_close(self)
        self._close()

    def _close(self) -> None:
        self._opened.close(self._embeddings.close)
        self._embeddings.close()  # one that was opened meanwhile
        self._chats.close()


# What Llama itself keeps in an instance; all else is a subclass's, and travels in its pickle.
_OWN_ATTRIBUTES = frozenset((
    "model_path", "verbose", "spm_infill", "last_n_tokens_size", "chat_handler", "cache",
    "_opened_with", "_opened", "_texts", "_params", "_values", "_embeddings", "_logits_all",
    "_score_table", "_completions", "_chats", "_reopening",
))  # fmt: skip


def _or_minus_1(token: int | None) -> int:
    return -1 if token is None else token


def _opened_again(kind: type[Llama], keywords: dict[str, Any], own: dict[str, Any]) -> Llama:
    llm = kind.__new__(kind)
    vars(llm).update(own)
    Llama.__init__(llm, **keywords)
    return llm


# So many names of files a message shows.
_MAX_SHOWN = 20


def _downloaded(
    repo_id: str,
    patterns: Sequence[Any],
    local_dir: str | os.PathLike[str] | None,
    cache_dir: str | os.PathLike[str] | None,
) -> Path:
    """The path of the first of some files of the Hugging Face hub, downloaded with the others."""
    try:
        import huggingface_hub as hub
    except ImportError:
        raise UnsupportedError(
            "from_pretrained needs the package huggingface_hub: pip install pyllama_spec[hub]"
        ) from None
    if not isinstance(patterns[0], str):
        raise ArgumentError("filename", patterns[0], f"the name or pattern of a file in {repo_id}")
    entries = hub.HfFileSystem().ls(repo_id, recursive=True)
    listed = [entry["name"] if isinstance(entry, dict) else str(entry) for entry in entries]
    names = [str(PurePosixPath(path).relative_to(repo_id)) for path in listed]
    wanted = [_one_of(names, pattern, repo_id) for pattern in patterns]
    folders: dict[str, Any] = {"local_dir": local_dir, "cache_dir": cache_dir}
    paths = [hub.hf_hub_download(repo_id=repo_id, filename=name, **folders) for name in wanted]
    return Path(paths[0])


def _one_of(names: Sequence[str], pattern: str, repo_id: str) -> str:
    fitting = [name for name in names if fnmatch.fnmatch(name, pattern)]
    if len(fitting) == 1:
        return fitting[0]
    shown = fitting or list(names)
    more = f" and {len(shown) - _MAX_SHOWN} more" if len(shown) > _MAX_SHOWN else ""
    which = "several files fit" if fitting else "there is no file"
    raise ArgumentError(
        "filename", pattern, f"one of {', '.join(shown[:_MAX_SHOWN])}{more}",
        problem=f"{which} in {repo_id}",
    )  # fmt: skip


# What a program may have set since the model was opened, beside the chat format and the seeds.
_ATTRIBUTES = ("chat_handler", "verbose", "spm_infill", "last_n_tokens_size")


class _Reopening:
    """The reopening of one Llama: by one thread at a time, and not after its close()."""

    def __init__(self) -> None:
        self._lock, self._n_closes = threading.Lock(), 0
        # What a program has set: the chat format, the place in the seeds, attributes.
        self._kept: tuple[str | None, int | None, dict[str, Any]] | None = None

    def note_close(self, llm: Any) -> None:
        """Called by close(), from any thread: a model that is being opened is closed then."""
        self._n_closes += 1
        llm._opened.model.refusal = None

    def run(self, llm: Any, begin: Callable[..., None], close: Callable[[], None]) -> None:
        """See Llama.reopen()."""
        if llm._opened.model.is_forked:  # the lock's holder may not exist here
            raise ForkedError("the model belongs to the parent process; open it in the child")
        n_closes = self._n_closes
        with self._lock:
            if llm.is_usable or self._n_closes != n_closes:
                return
            if self._kept is None:  # else a failed call before this one has it
                attributes = {name: getattr(llm, name) for name in _ATTRIBUTES}
                self._kept = llm.chat_format, llm._opened.seeds.state, attributes
            before = llm._embeddings.failure or llm._opened.failure
            llm._opened.model.refusal = before  # of requests that wait
            close()
            try:
                begin(llm, **llm._opened_with.keywords())
                chat_format, seed, attributes = self._kept
                vars(llm).update(attributes)
                llm._opened.seeds.state = seed
                if llm.chat_format != chat_format:
                    llm.chat_format = chat_format
            except BaseException as error:
                close()
                cause = error if isinstance(error, PyllamaSpecError) else before
                if cause is not None:
                    llm._opened.model.refusal = cause.copied(
                        param="", expected="", remedy="call it again", setup="",
                        problem="the model is not usable, since reopen() failed: "
                        f"{str(error) or type(error).__name__}",
                    )  # fmt: skip
                if self._n_closes != n_closes:
                    llm._opened.model.refusal = None
                raise
            self._kept = None
            if self._n_closes != n_closes:
                close()


Llama.__doc__ = with_arguments(Llama.__doc__)
