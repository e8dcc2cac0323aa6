"""Llama: a model to generate with, under the names that users of llama-cpp-python know.

Its calls read their options, make prompts and runs of them, and give a Stream, or its result. They
call each other through `self`: what a subclass overrides counts.
"""

from __future__ import annotations

import contextlib
import fnmatch
import inspect
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial, wraps
from itertools import islice
from pathlib import Path, PurePosixPath
from time import monotonic, perf_counter
from types import SimpleNamespace
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

import numpy as np
import numpy.typing as npt

from pyllama_spec.chat.media_urls import MediaReader
from pyllama_spec.chat.pictures import Picture, has_media, take_pictures
from pyllama_spec.chat.template import (
    ChatTemplate,
    Message,
    RenderedChat,
    chat_top_logprobs,
    check_fits,
    fim_tokens,
    prompt_tokens,
    template_variables,
)
from pyllama_spec.chat.tools import ToolRequest
from pyllama_spec.engine import Adapter, Context, Model, Sampler
from pyllama_spec.engine.checks import boolean, instance, integer
from pyllama_spec.engine.closeable import Closeable, closed_on_failure
from pyllama_spec.engine.context_params import POOLING
from pyllama_spec.engine.log import thread_log_level
from pyllama_spec.engine.media import PlacedRows
from pyllama_spec.errors import (
    ArgumentError,
    BusyError,
    ContextFullError,
    DeadlineError,
    ForkedError,
    UnsupportedError,
)
from pyllama_spec.llama.caches import BaseLlamaCache, cached
from pyllama_spec.llama.chat_completion import (
    Chats,
    registered_handler,
)
from pyllama_spec.llama.embedding import Embeddings, is_one_text, response, texts_of
from pyllama_spec.llama.eyes import ASKING, Asking, Eyes
from pyllama_spec.llama.open_model import (
    LlamaState,
    Logits,
    OpenModel,
    SeedStream,
    check_options,
    drafter_of,
    open_pair,
    open_runtime,
    why_not_generating,
)
from pyllama_spec.llama.open_options import (
    SPLIT_MODES,
    ChatHandler,
    OpenOptions,
    context_numbers,
    keywords_of,
    warn_of_length,
    warn_of_unknown,
    with_arguments,
)
from pyllama_spec.llama.responses import (
    ChatChoice,
    Choice,
    Deferred,
    ParsedChoice,
    Response,
    ResponseShape,
    TextChoice,
    answering_model,
    check_stream,
)
from pyllama_spec.requests.options import (
    MAX_LOGPROBS,
    LogitsProcessor,
    RequestOptions,
    StoppingCriterion,
)
from pyllama_spec.requests.run import GenerationRecord, Piece, Run
from pyllama_spec.requests.runner import Runtime
from pyllama_spec.requests.stream import Stream, new_id
from pyllama_spec.speculative import SequenceState, make_controller
from pyllama_spec.speculative.sequence import Adapters, n_common

if TYPE_CHECKING:
    from asyncio import Future
    from concurrent.futures import ThreadPoolExecutor


# Threads in which templates, grammars and tokens are made: the loop's own are the program's.
_N_THREADS, THREADS = 8, "pyllama_spec-requests"

_P = ParamSpec("_P")
_Whole = TypeVar("_Whole", covariant=True)
_Chunks = TypeVar("_Chunks", covariant=True)
# One prompt, as text or as ids; or a list of them.
Prompts = str | bytes | Sequence[int] | Sequence[str | bytes] | Sequence[Sequence[int]]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TEXT = _words(
    "prompt suffix max_tokens temperature top_p min_p typical_p logprobs echo stop "
    "frequency_penalty presence_penalty repeat_penalty top_k stream seed tfs_z mirostat_mode "
    "mirostat_tau mirostat_eta model stopping_criteria logits_processor grammar logit_bias"
)
CHAT = _words(
    "messages functions function_call tools tool_choice temperature top_p top_k min_p typical_p "
    "stream stop seed response_format max_tokens presence_penalty frequency_penalty "
    "repeat_penalty tfs_z mirostat_mode mirostat_tau mirostat_eta model logits_processor grammar "
    "logit_bias logprobs top_logprobs"
)


@dataclass(frozen=True, kw_only=True)
class TextCall(RequestOptions):
    """The keywords of create_completion()."""

    prompt: Prompts = field(kw_only=False)
    suffix: str | None = field(default=None, kw_only=False)
    echo: bool = False
    stream: Literal[False] = False
    model: str | None = None


@dataclass(frozen=True, kw_only=True)
class ChatCall(RequestOptions):
    """The keywords of create_chat_completion()."""

    messages: Sequence[Message] = field(kw_only=False)
    functions: Any = field(default=None, kw_only=False)
    function_call: Any = field(default=None, kw_only=False)
    tools: Any = field(default=None, kw_only=False)
    tool_choice: Any = field(default=None, kw_only=False)
    temperature: float = 0.2
    max_tokens: int | None = None
    stream: Literal[False] = False
    model: str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None
    reasoning_format: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None


class Call(Protocol[_P, _Whole, _Chunks]):
    """A call of Llama: with stream=True it gives chunks."""

    # fmt: off
    @overload
    def __call__(self, *args: _P.args, **keywords: _P.kwargs) -> _Whole: ...
    @overload
    def __call__(self, *args: Any, stream: Literal[True], **keywords: Any) -> _Chunks: ...
    @overload
    def __call__(self, *args: Any, **keywords: Any) -> _Whole | _Chunks: ...
    # fmt: on


_Call: TypeAlias = Call[_P, Response, Stream[Response]]
_AsyncCall: TypeAlias = Call[
    _P, Coroutine[Any, Any, Response], Coroutine[Any, Any, Stream[Response]]
]


def call_of(
    keywords: Callable[_P, object], order: Sequence[str]
) -> Callable[[Callable[..., Any]], _Call[_P]]:
    """A decorator: gives a call its keywords, their order and their defaults."""
    signature, n_needed = _signature(keywords, order), 1
    defaults = {name: signature.parameters[name].default for name in order[n_needed:]}

    def decorate(function: Callable[..., Any]) -> Any:
        @wraps(function)
        def call(self: Any, *args: Any, **given: Any) -> Any:
            by_place = dict(zip(order, args, strict=False))
            if len(args) > len(order) or by_place.keys() & given.keys():
                signature.bind(self, *args, **given)  # raises Python's TypeError
            return function(self, **{**defaults, **by_place, **given})

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate


def async_call_of(
    keywords: Callable[_P, object], order: Sequence[str]
) -> Callable[[Callable[..., Any]], _AsyncCall[_P]]:
    """A decorator for a call in an event loop, which passes all on."""

    def decorate(function: Callable[..., Any]) -> Any:
        function.__signature__ = _signature(keywords, order)  # type: ignore[attr-defined]
        return function

    return decorate


def _signature(keywords: Any, order: Sequence[str]) -> inspect.Signature:
    by_name = {one.name: one for one in fields(keywords)}
    kinds = inspect.Parameter
    found = [kinds("self", kinds.POSITIONAL_OR_KEYWORD)]
    for name in [*order, *(one for one in by_name if one not in order)]:
        one = by_name[name]
        default = kinds.empty if name == order[0] else one.default
        kind = kinds.POSITIONAL_OR_KEYWORD if name in order else kinds.KEYWORD_ONLY
        found.append(kinds(name, kind, default=default, annotation=one.type))
    return inspect.Signature(found)


@lru_cache(maxsize=2)
def _executor(pid: int, reads_media: bool) -> ThreadPoolExecutor:
    """An executor of a process: a forked child has none of its parent's threads.

    Pictures wait for hosts and for each other, and no text waits for them.
    """
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(_N_THREADS, THREADS)


async def called(call: Callable[[], Any], *, reads_media: bool, timeout_s: object = None) -> Any:
    """The result of a call in a thread, which reads no pictures when nobody waits for it."""
    import asyncio  # not needed to open a model

    asking, context = Asking(), copy_context()
    context.run(ASKING.set, asking)
    executor = _executor(os.getpid(), reads_media)
    made = asyncio.get_running_loop().run_in_executor(executor, partial(context.run, call))
    limit = timeout_s if isinstance(timeout_s, (int, float)) and timeout_s > 0 else None
    try:
        await asyncio.wait([made], timeout=limit)
        if not made.done():
            raise DeadlineError(
                f"the request did not start within `timeout_s={timeout_s}`",
                remedy="give it more time",
            )
        return made.result()
    finally:
        if not made.done():
            asking.give_up()
            made.add_done_callback(_give_up)
        # An error knows this frame, which would know it: a prompt of megabytes stayed with it.
        del made


async def answered(
    create: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], stream: object
) -> Any:
    """The result of a Llama.create_... call in an event loop.

    A Deferred gives the handle: Deferred.WHOLE that of a response which is computed as a whole.
    """
    is_stream = check_stream(stream)
    deferred = Deferred.CHUNKS if is_stream else Deferred.WHOLE
    handle: Any = await called(
        partial(create, *args, stream=deferred, **keywords),
        reads_media=has_media(args[0] if args else keywords.get("messages")),
        timeout_s=keywords.get("timeout_s"),
    )
    if not isinstance(handle, Stream):  # of a chat handler
        return handle
    try:
        handle.start(is_whole=not is_stream)
    except BaseException:  # of several answers the first ones may be in line
        handle.abort()
        raise
    return handle if is_stream or isinstance(stream, Deferred) else await handle


def _give_up(made: Future[Any]) -> None:
    """Cancels a request that nobody waits for, once it exists."""
    if not made.cancelled() and made.exception() is None and isinstance(made.result(), Stream):
        made.result().abort()


__all__ = ["Llama", "LlamaState"]
# What a program may have set since the model was opened, beside the chat format and the seeds.
_KEPT_ATTRIBUTES = ("chat_handler", "verbose", "spm_infill", "last_n_tokens_size")


class Llama(Closeable):
    """A model with a context and a drafter.

    With n_parallel=1 one request at a time is computed, by the thread that reads it. With more,
    that many requests and open streams are computed at once, by a thread of their own. Each gets
    the text that it would get alone. Further requests are queued. In an event loop
    acreate_completion() and acreate_chat_completion() never block.

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
    _chats: Chats
    _eyes: Eyes | None = None

    # ---- opening

    @keywords_of(OpenOptions)
    def __init__(self, model_path: str | os.PathLike[str], **keywords: Any) -> None:
        start = perf_counter()
        options, unknown = OpenOptions.from_keywords(model_path, keywords)
        self._opened_with = options
        # One thread at a time reopens or closes it.
        self._closing: threading.RLock = vars(self).get("_closing") or threading.RLock()
        warn_of_unknown(unknown)
        check_options(options)
        draft, draft_model = options.draft, options.draft_model
        draft = draft if draft_model is None else drafter_of(draft_model, draft)
        params = options.context_params()
        attributes = options.attributes()
        last_n, adapters = options.last_n_tokens_size, options.adapters()
        store_bytes = options.store_bytes()
        with thread_log_level("info") if options.verbose else contextlib.nullcontext():
            controller = make_controller(options.controller, options.p_min)
            model, drafter, draft_s = open_pair(draft, options, controller)
            own = None if drafter is draft and draft_model is None else drafter  # closed with this
            with closed_on_failure(own, model):
                if not model.is_on_gpu:
                    params = replace(params, op_offload=False)
                why_not = why_not_generating(model, options.vocab_only, options.embedding)
                runtime = None if why_not else open_runtime(
                    model, params, drafter, options.n_draft, options.n_parallel, controller,
                    wants_rows=options.logits_all, max_waiting=options.max_waiting,
                    store_bytes=store_bytes, acceptance=options.acceptance,
                )  # fmt: skip
        opened = OpenModel(model, runtime, why_not, own, options.seed)
        self.model_path, self.verbose = os.fspath(model_path), options.verbose
        self.spm_infill, self.last_n_tokens_size = options.spm_infill, last_n
        form = (options.chat_format, options.chat_template)
        self._opened, self._params, self._values = opened, params, attributes
        self._embeddings = Embeddings(model, params, opened.runner, options.embedding)
        self._logits_all, self._score_rows = options.logits_all, ScoreRows()
        n_ctx = None if runtime is None else runtime.context.n_ctx_seq
        with closed_on_failure(opened):
            self._chats = Chats(model, n_ctx, *form)
            path = options.mmproj_path
            self._eyes = None if path is None else Eyes.open(
                model, path, n_threads=options.n_threads or None, **options.arguments("projector")
            )  # fmt: skip
        self.mmproj_path = None if self._eyes is None else self._eyes.projector.path
        self.chat_handler = options.chat_handler or registered_handler(*form)
        if adapters:
            with closed_on_failure(self._chats, opened):
                self.set_adapters(adapters)
        if runtime is not None:
            warn_of_length(params, model)
            runtime.runner.note_loaded(perf_counter() - start, draft_s)

    def __reduce__(self) -> Any:
        """Pickles the keywords, which open the model again; texts and attributes are not kept."""
        return _opened_again, (type(self), self._opened_with.keywords())

    def __repr__(self) -> str:
        name, runtime = f"{type(self).__name__} of {self.model!r}", self._opened.generating
        if self.model.is_closed or runtime is None:
            return f"<{name}>"
        drafter, n_ctx = runtime.round.drafter, runtime.context.n_ctx_seq
        draft = "no draft" if drafter.name == "none" else f"draft {drafter!r}"
        if drafter.name != "none" and not runtime.round.max_draft:
            draft += f" disabled by {runtime.round.max_draft_reason}"
        return f"<{name}, n_ctx={n_ctx}, n_parallel={self.n_parallel}, {draft}>"

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
        path = downloaded(repo_id, (filename, *(additional_files or ())), local_dir, cache_dir)
        return cls(path, **keywords)

    # ---- the vocabulary

    def tokenize(self, text: str | bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            text: the text in UTF-8.
            add_bos: whether to add what the model expects around a text, such as its BOS token.
            special: whether names of control tokens are read as those tokens.
        """
        return self.model.vocab.tokenize(text, add_special=add_bos, parse_special=special)

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
        vocab = self.model.vocab
        data = vocab.detokenize(tokens, special=special)
        begins = len(tokens) > 0 and tokens[0] == vocab.bos and not prev_tokens
        return data[1:] if begins and data[:1] == b" " else data

    # ---- the model

    def n_ctx(self) -> int:
        """The maximum number of tokens of prompt and text together."""
        return self._opened.runtime.context.n_ctx_seq

    def n_vocab(self) -> int:
        """The size of the vocabulary."""
        return self._opened.model.info.n_vocab

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
        return self._runtime.round.drafter.name

    @property
    def memory_bytes(self) -> int:
        """Bytes of weights and KV caches on all devices, a projector's too.

        Those of a draft count that was opened with the model, and those of the context for
        embeddings from the first text on. Buffers of a decode, and copies that prefix_cache_bytes
        bounds, come on top.
        """
        of_eyes = 0 if self._eyes is None else self._eyes.projector.memory_bytes
        return self._opened.memory_bytes + self._embeddings.memory_bytes + of_eyes

    @property
    def is_usable(self) -> bool:
        """Whether requests can be computed: False once the model is closed or has failed.

        The loss of an RPC server makes it unusable. So does an engine failure in the middle of a
        decode, as without memory: it leaves the context in an unknown state. Then reopen() helps.
        """
        runtime = self._opened.generating
        if self._embeddings.failure is not None:
            return False
        if runtime is None:
            return not self._opened.model.is_closed
        return runtime.runner.is_usable()

    @property
    def n_parallel(self) -> int:
        """The maximum number of requests computed together."""
        return self._runtime.context.n_seq_max

    @property
    def modalities(self) -> dict[str, bool]:
        """What chats may have beside texts, by llama-server's names: "vision", "audio"."""
        eyes = None if self._eyes is None else self._eyes.projector
        return {
            "vision": eyes is not None and eyes.sees,
            "audio": eyes is not None and eyes.sample_rate > 0,
        }

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
        names = ("n_gpu_layers", "main_gpu", "tensor_split", "vocab_only", "use_mmap", "use_mlock")
        values = {name: self._values[name] for name in names}
        return SimpleNamespace(**values, split_mode=SPLIT_MODES.index(self._values["split_mode"]))

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
        **options: Any,
    ) -> Response | Stream[Response]:
        # fmt: on
        """Continues a text, or each text of a list.

        Args:
            prompt: text or token ids. In text, names of control tokens are those tokens. Of a list
                of prompts as many are computed side by side as n_parallel says; the result has a
                choice for each, in their order, and the options, `seed` too, are those of each.
            suffix: text that comes after what is generated, for models with fill-in-the-middle.
            echo: begin the text with the prompt; with logprobs, those of the prompt are there too.
            stream: give chunks as they come instead of one result; for one prompt.
            model: the name in the result; the path by default.
            options: those of RequestOptions.

        Returns:
            A dict as OpenAI's text completion, with `speculation` and `timing`; or a Stream of
            such dicts, the last one with finish_reason, `usage`, `speculation` and `timing`.

        Raises:
            ArgumentError: an option does not exist or is out of range.
            UnsupportedError: the model has no fill-in-the-middle tokens, and suffix is given.
            PyllamaSpecError: whatever Stream raises.
        """
        return self._complete(prompt, suffix, options, model=model, echo=echo, stream=stream)

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
    ) -> Response | Stream[Response]:
        # fmt: on
        """Answers a chat: a dict in OpenAI's format, or with stream=True a Stream.

        Args:
            messages: dicts with role and content; content is text or a list of parts: text, and
                pictures if the Llama has an mmproj_path.
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
            PyllamaSpecError: whatever Stream raises.
        """
        if self.chat_handler is not None:
            # What theirs do not have is given only if the caller does.
            theirs = {name: options[name] for name in options if name in CHAT or options[name]}
            # Handlers add to it what ends an answer in their form.
            if isinstance(theirs["stop"], tuple):
                theirs["stop"] = list(theirs["stop"])
            if (limit := theirs.pop("max_completion_tokens", None)) is not None:
                theirs["max_tokens"] = limit
            answer: Response | Stream[Response] = self.chat_handler(
                llama=self, messages=messages, functions=functions, function_call=function_call,
                tools=tools, tool_choice=tool_choice, stream=check_stream(stream), model=model,
                logprobs=logprobs, top_logprobs=top_logprobs, **theirs,
            )  # fmt: skip
            return answer
        asked = ToolRequest.read(
            tools, tool_choice, functions, function_call, parallel_tool_calls, reasoning_format
        )
        options["logprobs"] = chat_top_logprobs(logprobs, top_logprobs, MAX_LOGPROBS)
        return self._chat(
            messages, asked, template_variables(chat_template_kwargs), options,
            stream=stream, model=model, has_logprobs=bool(logprobs),
        )  # fmt: skip

    @async_call_of(TextCall, TEXT)
    async def acreate_completion(
        self, *options: Any, stream: bool = False, **more: Any
    ) -> Response | Stream[Response]:
        """create_completion() in an event loop, which it never blocks, even with n_parallel=1.

        Returns:
            The whole response, or with stream=True a Stream that is in line, for `async for`. A
            task that is cancelled meanwhile aborts the request.
        """
        create = self.create_completion
        answer: Response | Stream[Response] = await answered(create, options, more, stream)
        return answer

    @async_call_of(ChatCall, CHAT)
    async def acreate_chat_completion(
        self, *options: Any, stream: bool = False, **more: Any
    ) -> Response | Stream[Response]:
        """create_chat_completion() in an event loop; see acreate_completion()."""
        create = self.create_chat_completion
        answer: Response | Stream[Response] = await answered(create, options, more, stream)
        return answer

    def generate_steps(
        self,
        prompt: str | Sequence[int],
        options: RequestOptions | None = None,
        **keywords: Any,
    ) -> Stream[Piece]:
        """Generates in pieces that say which tokens were drafted.

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
        if options is not None and keywords:
            raise ArgumentError(
                "options", problem="and keywords exclude each other", remedy="give one of them"
            )
        instance(options, (RequestOptions, type(None)), "options")
        request = options if options is not None else RequestOptions.from_keywords(keywords)
        check_one_answer(request)
        return Stream(self._runtime.runner, [self._text_run(self._prompt_tokens(prompt), request)])

    def generate_chat_steps(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> Stream[Piece]:
        """Answers a chat in pieces, as generate_steps() does.

        max_tokens is None by default, and the temperature 0.2.
        """
        if self.chat_handler is not None:
            raise UnsupportedError(
                "generate_chat_steps() does not support the chat_handler of this Llama; call "
                "create_chat_completion()"
            )
        messages, pictures = self._pictures_of(messages)
        rendered, request = self._chats.plain(messages, tools, chat_template_kwargs, keywords)
        check_one_answer(request)
        return Stream(self._runtime.runner, self._chat_runs(rendered, request, pictures))

    # ---- from options to streams

    def _prompt_tokens(self, prompt: object, suffix: str | None = None) -> list[int]:
        """The ids of a prompt, or of the gap between it and a suffix."""
        vocab, n_ctx = self.model.vocab, self._runtime.context.n_ctx_seq
        check_fits(vocab, prompt, n_ctx)
        if suffix is None:
            return prompt_tokens(vocab, prompt)
        check_fits(vocab, suffix, n_ctx)
        return fim_tokens(vocab, prompt, suffix, is_spm=self.spm_infill)

    def _text_run(self, tokens: Sequence[int], request: RequestOptions) -> Run:
        request = self._chats.of_text(tokens, request)
        return self._opened.run(tokens, request, last_n=self.last_n_tokens_size)

    def _pictures_of(self, messages: Any) -> tuple[Any, dict[str, Picture]]:
        """Messages with a mark in the place of each picture, and the pictures."""
        if self._eyes is None:
            return messages, {}
        return take_pictures(messages, MediaReader(self.media_hosts, self.media_path))

    def _chat_runs(
        self, rendered: RenderedChat, request: RequestOptions, pictures: Mapping[str, Picture]
    ) -> list[Run]:
        """The runs of the n answers to a chat."""
        media: tuple[PlacedRows, ...] = ()
        called_s = perf_counter()
        if self._eyes is None or not pictures:
            tokens: Sequence[int] = rendered.tokenize(self.model.vocab)
        else:
            begin, n_ctx = monotonic(), self._runtime.context.n_ctx_seq
            timeout_s = request.timeout_s
            tokens, media = self._eyes.prompt(
                rendered, pictures, n_ctx, request.user or "", timeout_s
            )  # fmt: skip
            if timeout_s is not None:
                left_s = timeout_s - (monotonic() - begin)
                request = replace(request, timeout_s=max(left_s, 1e-3))
        last_n, runs = self.last_n_tokens_size, list[Run]()
        for one in options_of_choices(request, self._opened.seeds):
            runs.append(self._opened.run(tokens, one, last_n=last_n, media=media))
            runs[-1].record.note, runs[-1].called_s = rendered.note, called_s
        return runs

    def _complete(
        self,
        prompt: Any,
        suffix: str | None,
        options: Mapping[str, Any],
        *,
        model: str | None,
        echo: bool,
        stream: bool | Deferred,
    ) -> Response | Stream[Response]:
        """See create_completion(); `options` are those of RequestOptions."""
        is_stream, echo = check_stream(stream), boolean(echo, "echo")
        request = RequestOptions.from_keywords(options)
        check_usage_options(request, is_stream=is_stream)
        is_list = is_list_of_prompts(prompt)
        if is_list and is_stream:
            raise UnsupportedError("stream=True is for one prompt; make a stream for each")
        runs: list[Run] = []
        choices: list[Choice] = []
        for one in prompt if is_list else (prompt,):
            self._add_answers(one, suffix, request, echo, runs, choices)
            if is_list and (n := len(runs[-1].request.prompt)) >= self.n_ctx():
                raise ContextFullError.of_prompt(n, self.n_ctx())  # before any is computed
        model = answering_model(self.model_path, model)
        shape = ResponseShape(new_id("cmpl"), model, choices, request, request.n)
        return self._answered(runs, shape, stream, is_list=is_list)

    def _add_answers(
        self,
        prompt: object,
        suffix: str | None,
        request: RequestOptions,
        echo: bool,
        runs: list[Run],
        choices: list[Choice],
    ) -> None:
        """Prepares the n answers to a prompt."""
        tokens = self._prompt_tokens(prompt, suffix)
        vocab, n_top, head = self.model.vocab, request.logprobs, ""
        if echo or n_top is not None:
            is_text = isinstance(prompt, str)
            head = str(prompt) if is_text else vocab.detokenize(tokens).decode(errors="replace")
        made: list[TextChoice] = []
        for one in options_of_choices(request, self._opened.seeds):
            runs.append(self._text_run(tokens, one))
            ids = request.return_token_ids
            made.append(
                TextChoice(vocab, head if echo else "", n_top is not None, len(head), ids)
            )
        if echo and n_top is not None:
            of_prompt = self._opened.prompt_logprobs(tokens, n_top)
            for choice in made:
                choice.prompt_logprobs = of_prompt
        choices += made

    def _chat(
        self,
        messages: Sequence[Message],
        asked: ToolRequest,
        variables: Mapping[str, Any],
        options: dict[str, Any],
        *,
        stream: bool | Deferred,
        model: str | None,
        has_logprobs: bool,
    ) -> Response | Stream[Response]:
        """See create_chat_completion(); `options` are those of RequestOptions."""
        messages, pictures = self._pictures_of(messages)
        rendered, request, reader = self._chats.begin(messages, asked, variables, options)
        check_usage_options(request, is_stream=check_stream(stream))
        answer_id, runs = new_id("chatcmpl"), self._chat_runs(rendered, request, pictures)
        choices: list[ChatChoice] = []
        for _ in runs:
            if reader is None:
                choices.append(ChatChoice(self.model.vocab, has_logprobs))
            else:
                choices.append(
                    ParsedChoice(self.model.vocab, has_logprobs, reader, asked, answer_id)
                )
        model = answering_model(self.model_path, model)
        shape = ResponseShape(answer_id, model, choices, request, request.n)
        return self._answered(runs, shape, stream)

    def _answered(
        self,
        runs: Sequence[Run],
        shape: ResponseShape,
        stream: bool | Deferred,
        *,
        is_list: bool = False,
    ) -> Response | Stream[Response]:
        """The handle of prepared runs, with their cache and log lines; or its result."""
        records = [run.record for run in runs]
        store = None
        if self.cache is not None and not is_list:
            is_own = "load_state" in vars(self) or type(self).load_state is not Llama.load_state
            load = self.load_state if is_own else None  # replaced by the program: it is called
            store = cached(self._opened, self.cache, runs, load)

        def end() -> None:
            if store is not None:
                store(records)
            if self.verbose and not is_list and sys.stderr is not None:  # a service has none
                for record in records:
                    sys.stderr.write(_log_line(record))

        handle = Stream(
            self._runtime.runner, runs, shape, width=self.n_parallel, on_end=end
        )
        is_read_later = check_stream(stream) or isinstance(stream, Deferred)
        return handle if is_read_later else handle.result()

    @property
    def chat_format(self) -> str | None:
        """The name of the chat format. Setting it changes later requests.

        Raises:
            ArgumentError: there is no such form; the one before stays.
        """
        return self._chats.name

    @chat_format.setter
    def chat_format(self, name: str | None) -> None:
        from pyllama_spec.llama.chat_formats import HANDLERS

        self._chats = self._chats.of_format(name)
        if any(self.chat_handler is one for one in HANDLERS.values()):
            self.chat_handler = None  # of the form before; a program's own still answers
        self.chat_handler = self.chat_handler or registered_handler(name, None)

    @property
    def template(self) -> ChatTemplate:
        """The chat template. Warns once if the model has none and ChatML replaces it.

        Raises:
            UnsupportedError: the template in the file cannot be compiled.
        """
        return self._chats.template()

    @property
    def thought_tags(self) -> tuple[str, ...]:
        """The tags by which the chat template marks thoughts; () if it marks none. Slow at first.

        Raises:
            ArgumentError: the engine does not read answers in its form.
        """
        return self._chats.thought_tags()

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
        vectors, n_tokens = self._embeddings.embed(input, normalize=normalize, truncate=truncate)
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
        return self._embeddings.rank(query, documents, truncate=truncate)

    def create_chat_completion_openai_v1(self, *args: Any, **keywords: Any) -> Any:
        """create_chat_completion() with an object of the package openai as its result.

        Returns:
            A ChatCompletion, or with stream=True an iterator of ChatCompletionChunk.
        """
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        answer: Response | Stream[Response] = self.create_chat_completion(*args, **keywords)
        if isinstance(answer, Mapping):
            return ChatCompletion(**answer)
        return (ChatCompletionChunk(**chunk) for chunk in answer)

    # ---- what counts for later requests

    def set_seed(self, seed: int | None) -> None:
        """Restarts the seed stream, from which requests without a seed draw."""
        self._opened.seeds.begin(seed)

    def reset(self) -> None:
        """Forgets the text. Never necessary: texts do not depend on it."""
        self._opened.reset()

    def save_state(self) -> LlamaState:
        """Saves the last request's text for load_state() of this or an equal Llama.

        Waits in line for a place without a request.

        Raises:
            BusyError: called by a callback of a running request.
        """
        with self._runtime.runner.visit() as sequence:
            return self._opened.state_of(sequence)

    def load_state(self, state: LlamaState) -> None:
        """Restores a saved state; the next request with its prefix does not read that again.

        Raises:
            ArgumentError: the state is damaged or of another model or settings. What the model
                held before may be forgotten then.
            ContextFullError: the state has more tokens than n_ctx.
            BusyError: called by a callback of a running request.
        """
        self._opened.load_state(state)

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

    # ---- token by token

    def _latest(self) -> SequenceState:
        """The sequence of the last text."""
        return self._runtime.runner.latest()

    @property
    def n_tokens(self) -> int:
        """The number of tokens in memory of the last text. Set it lower to go back."""
        n, n_back = self._latest().n_held, self._opened.n_back
        return n if n_back is None else min(n_back, n)

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        n_held = self._latest().n_held
        n = integer(n, "n_tokens")
        if not 0 <= n <= n_held:
            raise ArgumentError("n_tokens", n, f"0 to {n_held}, the tokens that are held")
        self._opened.n_back = n

    @property
    def input_ids(self) -> npt.NDArray[np.intc]:
        """A copy of [n_ctx] ids, of which the first n_tokens are valid."""
        ids = np.zeros(self.n_ctx(), dtype=np.intc)
        tokens = self._latest().tokens[: self.n_tokens]
        ids[: len(tokens)] = tokens
        return ids

    @property
    def _input_ids(self) -> npt.NDArray[np.intc]:
        return self.input_ids[: self.n_tokens]

    @property
    def scores(self) -> Logits:
        """Logits: [n_ctx, n_vocab] with logits_all, else [n_batch, n_vocab].

        Row i is that of token i; the first n_tokens rows count. Without logits_all only that of the
        last token is sure to be there, and only if n_batch is large enough. After a request or
        load_state() the rows are missing: reading this evaluates those tokens once more.

        Raises:
            BusyError: rows are missing, and a callback of a running request asks for them.
        """
        n, kept = self.n_tokens, self._kept_rows()
        first = 0 if self._logits_all else max(n - 1, 0)
        again = next((at for at in range(first, n) if at not in kept), None)
        if again is not None:
            self._read_again(again)
            kept = self._kept_rows()
        n_rows = self.n_ctx() if self._logits_all else self._runtime.context.params.n_batch
        table = np.zeros((n_rows, self.n_vocab()), dtype=np.float32)
        for at, row in kept.items():
            if first <= at < len(table):
                table[at] = row
        return table

    def _kept_rows(self) -> dict[int, Logits]:
        state = self._latest()
        self._score_rows.keep(state.tokens[: state.n_decoded], state.adapters)
        return self._score_rows.rows

    def _read_again(self, first: int) -> None:
        """Evaluates the tokens in memory once more from one on, for their rows."""
        before, tokens = self._opened.n_back, self._latest().tokens[first : self.n_tokens]
        self.n_tokens = first
        try:
            Llama.eval(self, tokens)
        except BaseException:
            self._opened.n_back = before  # as in a request's callback, which may not evaluate
            raise

    @property
    def _scores(self) -> Logits:
        return self.scores[: self.n_tokens, :]

    @property
    def eval_tokens(self) -> deque[int]:
        """The ids in memory."""
        return deque(self._latest().tokens[: self.n_tokens], maxlen=self.n_ctx())

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The valid rows of `scores`: all tokens with logits_all, else the last one."""
        if self._logits_all:
            return deque(self._scores.tolist(), maxlen=self.n_ctx())
        return deque([self._row(None).tolist()] if self.n_tokens else [], maxlen=1)

    def eval(self, tokens: Sequence[int]) -> None:
        """Reads tokens after those in memory.

        Raises:
            ContextFullError: the tokens do not fit.
            ArgumentError: an id is outside the vocabulary.
            BusyError: called by a callback of a running request.
        """
        if not len(tokens):
            return
        opened, scores = self._opened, self._score_rows
        with opened.runtime.runner.visit() as state:
            n_before = self.n_tokens
            held = state.tokens[:n_before]
            # One beyond the context is enough to know: there may be any number.
            prompt = [*held, *islice(tokens, self.n_ctx() + 1)]
            if len(prompt) > self.n_ctx():
                raise ContextFullError(
                    n_tokens=len(held) + len(tokens), n_ctx=self.n_ctx(),
                    remedy="begin a new text with reset()", setup="choose a larger `n_ctx`",
                )  # fmt: skip
            scores.begin(prompt, opened.adapters)
            if self._logits_all:
                for at, row in opened.rows_of(state, prompt, n_before):
                    scores.rows[at] = np.array(row)
            else:
                scores.rows = {len(prompt) - 1: opened.last_row_of(state, prompt)}
            opened.n_back = None  # a call that was refused leaves it
            opened.runtime.context.pause_threads()

    # fmt: off
    def sample(  # noqa: D417 - the like share a line
        self, top_k: int = 40, top_p: float = 0.95, min_p: float = 0.05, typical_p: float = 1.0,
        temp: float = 0.80, repeat_penalty: float = 1.0, frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0, tfs_z: float = 1.0, mirostat_mode: int = 0,
        mirostat_eta: float = 0.1, mirostat_tau: float = 5.0, penalize_nl: bool = True,
        logits_processor: Any = None, grammar: Any = None, idx: int | None = None,
    ) -> int:
        # fmt: on
        """Samples a token after the tokens in memory, whichever call read them.

        Args:
            idx: the token to sample after, from 0; None for the last one. Others need logits_all.
            penalize_nl: no effect: the engine no longer has this exception.
            top_k, top_p, min_p, typical_p, temp, repeat_penalty, frequency_penalty,
                presence_penalty, tfs_z, mirostat_mode, mirostat_eta, mirostat_tau,
                logits_processor, grammar: as of a request.

        Raises:
            ArgumentError: nothing was read yet, or there is no row at idx.
        """
        options = RequestOptions(
            max_tokens=None, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p,
            temperature=temp, repeat_penalty=repeat_penalty, frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty, tfs_z=tfs_z, mirostat_mode=mirostat_mode,
            mirostat_eta=mirostat_eta, mirostat_tau=mirostat_tau,
            logits_processor=logits_processor, grammar=grammar,
        )  # fmt: skip
        row, ids, model = self._row(idx), self._input_ids, self._opened.model
        for processor in options.processors:
            row = np.asarray(processor(ids, row), dtype=np.float32)
        params = options.sampler_params(
            model.vocab, seed=self._opened.seeds.draw(), last_n=self.last_n_tokens_size
        )
        sampler = Sampler(model, params)
        try:
            return sampler.sample_row(row)
        finally:
            sampler.close()

    def _row(self, idx: int | None) -> Logits:
        n = self.n_tokens
        if n == 0:
            raise ArgumentError(
                problem="no tokens are in memory to sample from", remedy="call eval() first"
            )
        at = n - 1 if idx is None else idx if idx >= 0 else n + idx
        if not 0 <= at < n or (at < n - 1 and not self._logits_all):
            raise ArgumentError(
                "idx", idx, f"the last of {n} tokens",
                "`logits_all=True` keeps the logits of the others",
            )  # fmt: skip
        if at not in self._kept_rows():
            # A request, a saved state, or going back: the tokens from there on are read once more.
            self._read_again(at)
        if (row := self._kept_rows().get(at)) is None:
            raise BusyError(
                "another thread changed the text in memory meanwhile: read logits and "
                "evaluate in one thread"
            )
        return np.array(row)

    # fmt: off
    def generate(  # noqa: D417 - the like share a line
        self, tokens: Sequence[int], top_k: int = 40, top_p: float = 0.95, min_p: float = 0.05,
        typical_p: float = 1.0, temp: float = 0.80, repeat_penalty: float = 1.0, reset: bool = True,
        frequency_penalty: float = 0.0, presence_penalty: float = 0.0, tfs_z: float = 1.0,
        mirostat_mode: int = 0, mirostat_tau: float = 5.0, mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None = None,
        stopping_criteria: StoppingCriterion | Sequence[StoppingCriterion] | None = None,
        grammar: Any = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        # fmt: on
        """Yields the tokens after a prompt, drafted where that is faster.

        Stops after an end token, which it yields too, and at the end of the context.

        Args:
            tokens: the ids of the prompt.
            reset: whether to start a new text; False continues after the tokens in memory.
            penalize_nl: no effect: the engine no longer has this exception.
            top_k, top_p, min_p, typical_p, temp, repeat_penalty, frequency_penalty,
                presence_penalty, tfs_z, mirostat_mode, mirostat_tau, mirostat_eta,
                logits_processor, stopping_criteria, grammar: as of a request.

        Raises:
            ContextFullError: the prompt leaves no room for a token.
            UnsupportedError: a token was sent into the generator.
        """
        options = RequestOptions(
            max_tokens=None, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p,
            temperature=temp, repeat_penalty=repeat_penalty, frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty, tfs_z=tfs_z, mirostat_mode=mirostat_mode,
            mirostat_eta=mirostat_eta, mirostat_tau=mirostat_tau,
            logits_processor=logits_processor, stopping_criteria=stopping_criteria, grammar=grammar,
        )  # fmt: skip
        check_fits(self._opened.model.vocab, tokens, self.n_ctx())
        held = [] if reset else self._latest().tokens[: self.n_tokens]
        run = self._opened.run(
            [*held, *tokens], options, last_n=self.last_n_tokens_size, by_token=True
        )
        generation: Stream[Piece] = Stream(self._runtime.runner, [run])
        try:
            for piece in generation:
                for token in piece.tokens:
                    if (yield token) is not None:
                        raise UnsupportedError(
                            "tokens cannot be sent into generate(); eval() reads them"
                        )
                if piece.finish_reason == "stop" and (end := generation.end_token) is not None:
                    yield end
        finally:
            generation.close()

    @staticmethod
    def logits_to_logprobs(logits: npt.ArrayLike, axis: int = -1) -> Logits:
        """Log-softmax along an axis, [...] float32; minus infinity stays."""
        rows = np.asarray(logits, dtype=np.float32)
        peak = np.max(rows, axis=axis, keepdims=True)
        shifted = rows - np.where(np.isfinite(peak), peak, 0)
        with np.errstate(divide="ignore"):
            log_sum = np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))
        return np.asarray(shifted - log_sum, dtype=np.float32)

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """The length of the common prefix of two token lists."""
        return n_common(a, b)

    # ---- the end

    def reopen(self) -> None:
        """Opens the model again in place after a failure left it unusable; see is_usable.

        Does nothing to a usable model, so that several threads may call it. Requests end, and the
        KV cache is empty. The keywords are the same, and so are chat format, chat handler, cache
        and seeds; adapters are those of lora_path. After an error the model is closed, and
        reopen() may be called again. A model that the program closed is opened too.

        Raises:
            ForkedError: the model belongs to the parent of this forked process.
            PyllamaSpecError: whatever Llama() and close() raise.
        """
        if self._opened.model.is_forked:  # the lock's holder may not exist here
            raise ForkedError("the model belongs to the parent process; open it in the child")
        with self._closing:
            if self.is_usable:
                return
            kept = {name: getattr(self, name) for name in _KEPT_ATTRIBUTES}
            chat_format, seed = self.chat_format, self._opened.seeds.state
            self._close()
            Llama.__init__(self, **self._opened_with.keywords())
            vars(self).update(kept)
            self._opened.seeds.state = seed
            if self.chat_format != chat_format:
                self.chat_format = chat_format

    def cancel(self) -> None:
        """Cancels all calls, from any thread: they raise CancelledError within one decode.

        Requests that wait for a place are not touched; with none running nothing happens.
        """
        self._embeddings.cancel()
        if self._eyes is not None:
            self._eyes.cancel()
        self._opened.runner.cancel()

    def close(self) -> None:
        """Frees the model. Cancels requests of other threads first. May be called twice.

        Raises:
            BusyError: called by a callback of a running generation.
        """
        with contextlib.nullcontext() if self._opened.model.is_forked else self._closing:
            self._close()

    def _close(self) -> None:
        self._opened.close(self._embeddings.close)
        self._chats.close()
        if self._eyes is not None:
            self._eyes.close()


class BaseLlamaTokenizer:
    """The interface of tokenizers."""

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of a text in UTF-8."""
        raise NotImplementedError

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """The bytes of a run of tokens."""
        raise NotImplementedError


class LlamaTokenizer(BaseLlamaTokenizer):
    """The vocabulary of an open model."""

    # Llama(tokenizer=...) takes such a one: it changes nothing.
    is_of_the_model = True

    def __init__(self, llama: Llama) -> None:
        self._llama = llama

    def tokenize(self, text: str | bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of a text. Names of control tokens are those tokens unless special=False."""
        return self._llama.tokenize(text, add_bos, special)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """The bytes of a run of tokens; control tokens are empty unless `special`."""
        return self._llama.detokenize(tokens, prev_tokens, special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of a str; invalid Unicode is dropped."""
        return self.tokenize(text.encode("utf-8", errors="ignore"), add_bos, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; bytes of incomplete characters are dropped."""
        return self.detokenize(tokens).decode("utf-8", errors="ignore")

    @classmethod
    def from_ggml_file(cls, path: str | os.PathLike[str]) -> LlamaTokenizer:
        """Opens the vocabulary of a model's file, without its weights."""
        return cls(Llama(path, vocab_only=True))


def _log_line(record: GenerationRecord) -> str:
    timing, usage = record.timing.as_dict(), record.usage
    saved = record.stats.saved_in_words
    return (
        f"{usage['prompt_tokens']} tokens read in {timing['prompt_s']:.3f} s, "
        f"{usage['completion_tokens']} generated in {timing['decode_s']:.3f} s "
        f"({timing['decode_tps']:.1f} per second), {record.stats.tokens_per_round:.2f} per round"
        f"{saved and f', {saved} saved by drafts'}\n"
    )


def _or_minus_1(token: int | None) -> int:
    return -1 if token is None else token


def _opened_again(kind: type[Llama], keywords: dict[str, Any]) -> Llama:
    llm = kind.__new__(kind)  # a subclass may have a signature of its own
    Llama.__init__(llm, **keywords)
    return llm


def downloaded(
    repo_id: str,
    patterns: Sequence[str | None],
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
    entries = hub.HfFileSystem().ls(repo_id, recursive=True)
    listed = [entry["name"] if isinstance(entry, dict) else str(entry) for entry in entries]
    names = [str(PurePosixPath(path).relative_to(repo_id)) for path in listed]
    folders: dict[str, Any] = {"local_dir": local_dir, "cache_dir": cache_dir}
    paths = []
    for pattern in patterns:
        fitting = fnmatch.filter(names, pattern or "")
        if len(fitting) != 1:
            which = "several files fit" if fitting else "there is no file"
            raise ArgumentError(
                "filename", pattern, f"one of {', '.join(fitting or names)}",
                problem=f"{which} in {repo_id}",
            )  # fmt: skip
        paths.append(hub.hf_hub_download(repo_id=repo_id, filename=fitting[0], **folders))
    return Path(paths[0])


class ScoreRows:
    """Rows of logits, each of a token of one text: a row of another text is never left."""

    def __init__(self) -> None:
        self.rows: dict[int, Logits] = {}
        self._tokens: list[int] = []
        self._adapters: Adapters = None

    def keep(self, tokens: Sequence[int], adapters: Adapters) -> None:
        """Drops the rows that are not of these tokens, or were computed with other adapters."""
        n = n_common(self._tokens, tokens) if self._adapters == adapters else 0
        self._tokens = self._tokens[:n]
        self.rows = {at: row for at, row in self.rows.items() if at < n}

    def begin(self, tokens: Sequence[int], adapters: Adapters) -> None:
        """keep(), and rows of these tokens come next."""
        self.keep(tokens, adapters)
        self._tokens, self._adapters = list(tokens), adapters


def is_list_of_prompts(prompt: object) -> bool:
    """Whether a value is a list of texts or of lists of ids, not one prompt."""
    if isinstance(prompt, (str, bytes)) or not isinstance(prompt, Sequence) or not prompt:
        return False
    return isinstance(prompt[0], (str, bytes, list, tuple))


def options_of_choices(request: RequestOptions, seeds: SeedStream) -> list[RequestOptions]:
    """The options of each answer; a request draws one seed from the model's stream."""
    if request.n == 1:
        return [request]
    seed = seeds.draw() if request.seed is None else None
    return [request.of_choice(i, seed) for i in range(request.n)]


def check_one_answer(request: RequestOptions) -> None:
    """Refuses several answers for a stream of pieces."""
    if request.n > 1:
        raise ArgumentError(
            "n", request.n, "1, as a generation has one answer",
            "create_completion() and create_chat_completion() give several",
        )  # fmt: skip


def check_usage_options(request: RequestOptions, *, is_stream: bool) -> None:
    """Refuses options of a stream for a whole answer."""
    if request.stream_options is not None and not is_stream:
        raise ArgumentError(
            "stream_options", request.stream_options, problem="is for `stream=True`",
            remedy="leave it out: a whole answer has its usage anyway",
        )  # fmt: skip


Llama.__doc__ = with_arguments(Llama.__doc__)
