"""Llama: a model to generate with, under the names that users of llama-cpp-python know."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Literal, overload

from pyllama_spec.drafters import Drafter
from pyllama_spec.engine import ContextParams, Model
from pyllama_spec.engine.checks import count
from pyllama_spec.engine.log import thread_log_level
from pyllama_spec.engine.model import SplitMode
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.generation.chat_template import ChatTemplate, Message
from pyllama_spec.generation.generation import Generation
from pyllama_spec.generation.options import RequestOptions, check_keywords, check_seed
from pyllama_spec.generation.prompts import (
    chat_top_logprobs,
    chosen_tools,
    fim_tokens,
    prompt_tokens,
    template_variables,
)
from pyllama_spec.llama import responses
from pyllama_spec.llama.batch import (
    check_lengths,
    complete_all,
    each_prompt,
    is_list_of_prompts,
)
from pyllama_spec.llama.loading import (
    KEYWORD_HINTS,
    check_parallel,
    open_drafter,
    open_runtime,
    progress_for,
)
from pyllama_spec.llama.open_model import LlamaState, OpenModel
from pyllama_spec.llama.responses import Envelope, Response, Stream
from pyllama_spec.speculative import ControllerChoice, make_controller

__all__ = ["Llama", "LlamaState"]

# One prompt, as text or as ids; or a list of them.
Prompts = str | bytes | Sequence[int] | Sequence[str | bytes] | Sequence[Sequence[int]]


class Llama(OpenModel):
    """A model with a context and a drafter.

    With n_parallel=1 one request at a time: other threads wait for their turn, and a stream that is
    not read to its end has to be closed before the same thread makes the next request. With more,
    that many requests and open streams are computed side by side, by a thread of their own; each
    gets the text that it would get alone.

    Args:
        model_path: the target's GGUF file; of a split model the first part.
        draft: who proposes tokens: None or "none" for plain decoding, "prompt-lookup", the path of
            a draft's GGUF, or a Drafter. It changes how fast the text comes, never the text.
        n_draft: the most tokens to draft per round; None for the drafter's own number.
        p_min: end a draft before a token that it is less sure of, for drafts from a file, and
            nowhere else: the controller is off then. 0 drafts n_draft tokens in every round, which
            is most accepted tokens but not always most speed.
        controller: how much is drafted. None or "profit": as much as makes the text come soonest
            here, nothing at all where plain decoding is faster; "fixed": n_draft tokens in every
            round; "off": nothing; or a speculative.Controller.
        lookup: where the last so many tokens stood in the text before, propose what followed there
            instead of asking the draft of a file: None for 5. 0 for never, and no n-grams beside
            it either: the head of the file alone.
        n_ctx: positions for prompt and text of a request; None for as many as the model was
            trained with.
        n_parallel: how many requests are computed side by side. The KV cache is that many times
            as large.
        n_batch, n_ubatch: tokens per decode, and per step inside of it.
        n_threads: CPU threads; None for the physical cores.
        n_gpu_layers: layers on the GPU; -1 for all.
        split_mode, main_gpu, tensor_split: several GPUs, see engine.Model.
        seed: of requests that have none; None or -1 for a new one each time.
        flash_attn: None for off on the CPU, where it would make the text depend on the draft, and
            the engine's choice on a GPU.
        type_k, type_v: types of the KV cache, such as "f16" or "q8_0".
        rope_freq_base, rope_freq_scale, rope_scaling_type: 0, 0, None for the model's own.
        offload_kqv: keep the KV cache on the GPU.
        swa_full: keep sliding-window layers whole, so that any prefix can be reused.
        use_mmap, use_mlock: how the file is held.
        last_n_tokens_size: how many past tokens penalties see.
        chat_format: "chatml", or the name of a template in the file; None for its default one.
        chat_template: Jinja text instead of the file's.
        verbose: progress bars, and what the engine says while it loads, on stderr.

    Raises:
        ModelLoadError: a file is missing, unreadable, or not a model.
        ArgumentError: a value is out of range, or there is no such keyword.
        UnsupportedError: the model cannot generate, or the draft cannot be used with it.
        OutOfMemoryError: there is not enough memory.

    """

    _template: ChatTemplate | None = None

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        draft: str | os.PathLike[str] | Drafter | None = None,
        n_draft: int | None = None,
        p_min: float | None = None,
        lookup: int | None = None,
        controller: ControllerChoice = None,
        n_ctx: int | None = 512,
        n_parallel: int = 1,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_gpu_layers: int = 0,
        split_mode: SplitMode = "layer",
        main_gpu: int = 0,
        tensor_split: Sequence[float] | None = None,
        seed: int | None = None,
        flash_attn: bool | None = None,
        type_k: str | None = None,
        type_v: str | None = None,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        rope_scaling_type: str | None = None,
        offload_kqv: bool = True,
        swa_full: bool = True,
        use_mmap: bool = True,
        use_mlock: bool = False,
        last_n_tokens_size: int = 64,
        chat_format: str | None = None,
        chat_template: str | None = None,
        verbose: bool = False,
        **unknown: Any,
    ) -> None:
        start = perf_counter()
        check_keywords(unknown, _keywords(), "keyword of Llama", KEYWORD_HINTS)
        self._seed = check_seed(seed)
        self._last_n = count(last_n_tokens_size, "last_n_tokens_size", -1)
        params = ContextParams(
            n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_ubatch, n_threads=n_threads,
            flash_attn=flash_attn, type_k=type_k or "f16", type_v=type_v or "f16",
            rope_freq_base=rope_freq_base, rope_freq_scale=rope_freq_scale,
            rope_scaling=rope_scaling_type, offload_kqv=offload_kqv, swa_full=swa_full,
        )  # fmt: skip
        check_parallel(n_parallel, params)
        with thread_log_level("info") if verbose else contextlib.nullcontext():
            chosen = make_controller(controller, p_min)
            drafter = open_drafter(draft, n_draft, p_min, lookup, n_gpu_layers, verbose, chosen)
            model = Model(
                model_path, n_gpu_layers=n_gpu_layers, main_gpu=main_gpu, split_mode=split_mode,
                tensor_split=tensor_split, use_mmap=use_mmap, use_mlock=use_mlock,
                progress=progress_for(model_path, verbose),
            )  # fmt: skip
            self.model_path, self.verbose = os.fspath(model_path), verbose
            runtime = open_runtime(model, params, drafter, n_draft, n_parallel, chosen)
        # What was made here is closed here; a drafter of the caller's is not.
        super().__init__(runtime, None if drafter is draft else drafter)
        self._choose_template(chat_format, chat_template)
        runtime.runner.load_s = perf_counter() - start

    def _choose_template(self, *names: str | None) -> None:
        """Notes which one is wanted. One that is named is made now, so that its faults show."""
        self._templates = names
        if any(name is not None for name in names):
            self._template = ChatTemplate.of_model(self._runtime.model, *names)

    @overload
    def create_completion(
        self, prompt: Prompts, *, stream: Literal[False] = ..., **options: Any
    ) -> Response: ...

    @overload
    def create_completion(
        self, prompt: Prompts, *, stream: Literal[True], **options: Any
    ) -> Stream: ...

    def create_completion(
        self,
        prompt: Prompts,
        *,
        suffix: str | None = None,
        echo: bool = False,
        stream: bool = False,
        progress: bool | None = None,
        model: str | None = None,
        **options: Any,
    ) -> Response | Stream:
        """Continues a text, or each text of a list.

        Args:
            prompt: text or token ids. In text, names of control tokens are those tokens. Of a list
                of prompts as many are computed side by side as n_parallel says; the result has a
                choice for each, in their order, and the options, `seed` too, are those of each.
                Where one fails the others are answered all the same; the error has them in its
                `partial_choices`, and None in the place of what failed.
            suffix: text that comes after what is generated, for models with fill-in-the-middle.
            echo: begin the text with the prompt.
            stream: give chunks as they come instead of one result; for one prompt.
            progress: show a bar while a list is answered; None for what verbose says.
            model: the name in the result; the path by default.
            options: the fields of RequestOptions; max_tokens is 16 by default.

        Returns:
            A dict as OpenAI's text completion, with `speculation` and `timing`; or a Stream of
            such dicts, the last one with finish_reason, `usage`, `speculation` and `timing`.

        Raises:
            ArgumentError: an option does not exist or is out of range.
            UnsupportedError: the model has no fill-in-the-middle tokens, and suffix is given.
            PyllamaSpecError: whatever Generation raises.

        """
        request = RequestOptions.from_keywords(options)
        if is_list_of_prompts(prompt):
            if stream:
                raise UnsupportedError("stream=True is for one prompt; make a stream for each")
            found = each_prompt(
                prompt, lambda one: self._completion(one, suffix, request, echo=echo)
            )
            check_lengths(found, self.n_ctx())
            is_shown = self.verbose if progress is None else progress
            return complete_all(found, Envelope.make("cmpl", model or self.model_path), is_shown)
        completion = self._completion(prompt, suffix, request, echo=echo)
        envelope = Envelope.make("cmpl", model or self.model_path)
        if stream:
            return Stream(completion.generation, completion.chunks(envelope))
        return completion.whole(envelope)

    def _completion(
        self, prompt: object, suffix: str | None, request: RequestOptions, *, echo: bool
    ) -> responses.Completion:
        """A text completion that has not begun."""
        vocab, has_logprobs = self._runtime.model.vocab, request.logprobs is not None
        if echo and has_logprobs:
            raise UnsupportedError("echo with logprobs is not supported by this version")
        if suffix is None:
            tokens = prompt_tokens(vocab, prompt)
        else:
            tokens = fim_tokens(vocab, prompt, suffix)
        head = ""
        if echo:
            is_text = isinstance(prompt, str)
            head = str(prompt) if is_text else vocab.detokenize(tokens).decode(errors="replace")
        generation = self._generation(tokens, request)
        return responses.Completion(generation, vocab, head, has_logprobs)

    __call__ = create_completion

    @overload
    def create_chat_completion(
        self, messages: Sequence[Message], *, stream: Literal[False] = ..., **options: Any
    ) -> Response: ...

    @overload
    def create_chat_completion(
        self, messages: Sequence[Message], *, stream: Literal[True], **options: Any
    ) -> Stream: ...

    def create_chat_completion(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | None = None,
        stream: bool = False,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        model: str | None = None,
        **options: Any,
    ) -> Response | Stream:
        """Answers a chat.

        Args:
            messages: dicts with role and content; content is text or a list of text parts.
            tools: descriptions of functions, for templates that know them. The answer is text:
                calls in it are not parsed.
            tool_choice: None, "auto", or "none" to keep the tools from the template.
            stream: give chunks as they come instead of one result.
            logprobs: report the tokens' log-probabilities.
            top_logprobs: how many alternatives to report with each.
            chat_template_kwargs: variables for the template, such as {"enable_thinking": False}.
            model: the name in the result; the path by default.
            options: the fields of RequestOptions; max_tokens is None by default: to the
                context's end.

        Returns:
            A dict as OpenAI's chat completion, with `speculation` and `timing`; or a Stream.

        Raises:
            ArgumentError: the messages, or an option, are malformed.
            UnsupportedError: the template cannot be run, or a message is more than text.
            PyllamaSpecError: whatever Generation raises.

        """
        n_top = chat_top_logprobs(logprobs, top_logprobs)
        generation = self.generate_chat_steps(
            messages,
            tools=chosen_tools(tools, tool_choice),
            chat_template_kwargs=chat_template_kwargs,
            **{**options, "logprobs": n_top},
        )
        envelope = Envelope.make("chatcmpl", model or self.model_path)
        vocab = self._runtime.model.vocab
        if stream:
            chunks = responses.chat_chunks(generation, envelope, vocab, logprobs=bool(logprobs))
            return Stream(generation, chunks)
        return responses.chat_completion(generation, envelope, vocab, logprobs=bool(logprobs))

    def generate_steps(
        self,
        prompt: str | Sequence[int],
        options: RequestOptions | None = None,
        **keywords: Any,
    ) -> Generation:
        """Generates in pieces that say which tokens were drafted.

        Args:
            prompt: text or token ids, as for create_completion.
            options: of the request; or
            keywords: its fields. max_tokens is 16 by default.

        Returns:
            An iterator of Piece. Its `record` holds the text, ids, finish_reason, stats
            and timing so far. Close it if it is not read to its end.

        Raises:
            ArgumentError: an option does not exist or is out of range.

        """
        if options is not None and keywords:
            raise ArgumentError("give options or keywords, not both")
        request = options if options is not None else RequestOptions.from_keywords(keywords)
        return self._generation(prompt_tokens(self._runtime.model.vocab, prompt), request)

    def generate_chat_steps(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> Generation:
        """Answers a chat in pieces, as generate_steps. max_tokens is None by default."""
        request = RequestOptions.from_keywords({"max_tokens": None, **keywords})
        rendered = self.template.render(
            messages, tools=tools, **template_variables(chat_template_kwargs)
        )
        return self._generation(rendered.tokenize(self._runtime.model.vocab), request)

    def _generation(self, tokens: Sequence[int], request: RequestOptions) -> Generation:
        return Generation(self._runtime, tokens, request, seed=self._seed, last_n=self._last_n)

    @property
    def template(self) -> ChatTemplate:
        """The chat template. Warns once where the model has none and ChatML stands in.

        Raises:
            UnsupportedError: the template in the file cannot be compiled.

        """
        if self._template is None:
            self._template = ChatTemplate.of_model(self._runtime.model, *self._templates)
            if self._template.note:
                warnings.warn(self._template.note, stacklevel=2)
        return self._template


def _keywords() -> list[str]:
    """The keywords of Llama()."""
    return [name for name in Llama.__init__.__annotations__ if name != "return"]
