"""Chats answered: Llama's requests for chat completions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from pyllama_spec.chat.prompts import (
    chat_top_logprobs,
    prompt_tokens,
    template_variables,
)
from pyllama_spec.chat.template import ChatTemplate, Message
from pyllama_spec.constraints import schema_of
from pyllama_spec.engine.checks import instance, shown
from pyllama_spec.errors import ArgumentError, PyllamaSpecError, UnsupportedError
from pyllama_spec.llama import responses
from pyllama_spec.llama.completion import Completions, MoreOptions
from pyllama_spec.llama.open_options import ChatHandler
from pyllama_spec.llama.responses import Envelope, Response, Stream
from pyllama_spec.requests.generation import Generation
from pyllama_spec.requests.options import RequestOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pyllama_spec.chat.tools import AnswerReader, ToolRequest

# Of a chat, where RequestOptions has those of a text: llama-cpp-python's.
CHAT_DEFAULTS: Mapping[str, Any] = {"max_tokens": None, "temperature": 0.2}
_DEFAULT = "chat_template.default"
# What a form of chats is made of; all of it changes together.
_FORM = (
    "_chat_format", "chat_handler", "_template", "_template_source", "_template_name",
    "_format_stops", "_tools",
)  # fmt: skip


class Chats(Completions):
    """What Llama does with messages."""

    chat_handler: ChatHandler | None = None
    _chat_format: str | None = None
    _template: ChatTemplate | None = None
    _template_source: str | None = None
    _template_name: str | None = None
    _format_stops: tuple[str, ...] = ()
    # A ToolChats, once there is one. Types of attributes can be read at run time.
    _tools: Any = None

    @property
    def chat_format(self) -> str | None:
        """The form of chats, by name. May be set: it counts for the requests from then on.

        Raises:
            ArgumentError: there is no such form; the one before stays.

        """
        return self._chat_format

    @chat_format.setter
    def chat_format(self, name: str | None) -> None:
        from pyllama_spec.llama.chat_formats import HANDLERS

        before = {field: getattr(self, field) for field in _FORM}
        for field in _FORM:
            setattr(self, field, getattr(Chats, field))
        if not any(before["chat_handler"] is one for one in HANDLERS.values()):
            self.chat_handler = before["chat_handler"]  # the program's own: it still answers
        try:
            self._choose_template(name, None)
        except PyllamaSpecError:
            for field, value in before.items():
                setattr(self, field, value)
            raise

    def _choose_template(self, chat_format: str | None, chat_template: str | None) -> None:
        """Notes which one is wanted. One that is named is made now, so that its faults show."""
        if chat_format is not None and not isinstance(chat_format, str):
            raise ArgumentError(
                f"chat_format takes the name of a template, not {shown(chat_format)}"
            )
        has_own = self._open.chat_template() is not None
        self._chat_format = chat_format or (_DEFAULT if has_own else "chatml")
        if chat_format is not None and chat_template is None:
            from pyllama_spec.llama.chat_formats import HANDLERS

            if chat_format in HANDLERS:
                self.chat_handler = self.chat_handler or HANDLERS[chat_format]
                return
        self._template_source = chat_template
        if chat_format == _DEFAULT and has_own:
            chat_format = None
        if chat_format is None and chat_template is None:
            return
        if chat_format is not None and chat_template is None:
            self._template_name = chat_format.removeprefix("chat_template.")
            if self._open.chat_template(self._template_name) is None:
                self._name_format(chat_format)
                return
        elif chat_format is not None:
            raise ArgumentError("give chat_format or chat_template, not both")
        self._make_template()

    def _name_format(self, name: str) -> None:
        from pyllama_spec.llama.chat_formats import named_format

        found = named_format(name)
        if found is None:
            self._make_template()  # which says what there is
            return
        self._template_name, self._template_source = None, found.source
        self._format_stops = found.stop
        self._make_template()

    def _make_template(self) -> ChatTemplate:
        self._template = ChatTemplate.of_model(
            self._open, self._template_name, self._template_source
        )
        return self._template

    @property
    def template(self) -> ChatTemplate:
        """The chat template. Warns once where the model has none and ChatML stands in.

        Raises:
            UnsupportedError: the template in the file cannot be compiled.

        """
        if self._template is None:
            template = self._make_template()
            if template.note:
                warnings.warn(template.note, stacklevel=2)
            return template
        return self._template

    # fmt: off
    @overload
    def create_chat_completion(
        self, messages: Sequence[Message], functions: Any = ..., function_call: Any = ..., tools:
        Any = ..., tool_choice: Any = ..., temperature: float = ..., top_p: float = ..., top_k: int
        = ..., min_p: float = ..., typical_p: float = ..., stream: Literal[False] = ..., stop: str |
        Sequence[str] | None = ..., seed: int | None = ..., response_format: Mapping[str, Any] |
        None = ..., max_tokens: int | None = ..., presence_penalty: float = ..., frequency_penalty:
        float = ..., repeat_penalty: float = ..., tfs_z: float = ..., mirostat_mode: int = ...,
        mirostat_tau: float = ..., mirostat_eta: float = ..., model: str | None = ...,
        logits_processor: Any = ..., grammar: Any = ..., logit_bias: Mapping[Any, float] | None =
        ..., logprobs: bool | None = ..., top_logprobs: int | None = ..., *, stopping_criteria: Any
        = ..., parallel_tool_calls: bool | None = ..., reasoning_format: str | None = ...,
        chat_template_kwargs: Mapping[str, Any] | None = ..., **more: Unpack[MoreOptions],
    ) -> Response: ...

    @overload
    def create_chat_completion(
        self, messages: Sequence[Message], functions: Any = ..., function_call: Any = ..., tools:
        Any = ..., tool_choice: Any = ..., temperature: float = ..., top_p: float = ..., top_k: int
        = ..., min_p: float = ..., typical_p: float = ..., *, stream: Literal[True], stop: str |
        Sequence[str] | None = ..., seed: int | None = ..., response_format: Mapping[str, Any] |
        None = ..., max_tokens: int | None = ..., presence_penalty: float = ..., frequency_penalty:
        float = ..., repeat_penalty: float = ..., tfs_z: float = ..., mirostat_mode: int = ...,
        mirostat_tau: float = ..., mirostat_eta: float = ..., model: str | None = ...,
        logits_processor: Any = ..., grammar: Any = ..., logit_bias: Mapping[Any, float] | None =
        ..., logprobs: bool | None = ..., top_logprobs: int | None = ..., stopping_criteria: Any =
        ..., parallel_tool_calls: bool | None = ..., reasoning_format: str | None = ...,
        chat_template_kwargs: Mapping[str, Any] | None = ..., **more: Unpack[MoreOptions],
    ) -> Stream: ...

    @overload
    def create_chat_completion(
        self, messages: Sequence[Message], *options: Any, **more: Any
    ) -> Response | Stream: ...

    def create_chat_completion(  # noqa: D417 - the like share a line
        self, messages: Sequence[Message], functions: Sequence[Mapping[str, Any]] | None = None,
        function_call: Any = None, tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = None, temperature: float = 0.2, top_p: float = 0.95, top_k: int = 40,
        min_p: float = 0.05, typical_p: float = 1.0, stream: bool = False,
        stop: str | Sequence[str] | None = (), seed: int | None = None,
        response_format: Mapping[str, Any] | None = None, max_tokens: int | None = None,
        presence_penalty: float = 0.0, frequency_penalty: float = 0.0, repeat_penalty: float = 1.0,
        tfs_z: float = 1.0, mirostat_mode: int = 0, mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1, model: str | None = None, logits_processor: Any = None,
        grammar: Any = None, logit_bias: Mapping[Any, float] | None = None,
        logprobs: bool | None = None, top_logprobs: int | None = None, *,
        stopping_criteria: Any = None, parallel_tool_calls: bool | None = None,
        reasoning_format: str | None = None, chat_template_kwargs: Mapping[str, Any] | None = None,
        **more: Unpack[MoreOptions],
    ) -> Response | Stream:
        # fmt: on
        """Answers a chat: a dict as OpenAI's chat completion, or with stream=True a Stream.

        Args:
            messages: dicts with role and content; content is text or a list of text parts.
            tools, functions: descriptions of functions, in OpenAI's newer or older form.
            tool_choice, function_call: None or "auto" to let the model choose, "none", "required",
                or a function: {"type": "function", "function": {"name": ...}}, {"name": ...}.
            parallel_tool_calls: whether several calls may come at once; None for if it can be.
            reasoning_format: "auto" for what the model thinks before its answer apart, in
                `reasoning_content`; "none" for it in the content; None for "auto" with tools alone.
            logprobs, top_logprobs: report the tokens' log-probabilities, and so many alternatives.
            chat_template_kwargs: variables for the template, such as {"enable_thinking": False}.
            model: the name in the result; the path by default.
            max_tokens: None for up to the context's end.
            more: any other field of RequestOptions, which also says what the rest is.

        Raises:
            ArgumentError: the messages, or an option, are malformed.
            UnsupportedError: the template cannot be run, or a message is more than text.
            PyllamaSpecError: whatever Generation raises.

        """
        options: dict[str, Any] = {
            "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p,
            "typical_p": typical_p, "stop": stop, "seed": seed, "max_tokens": max_tokens,
            "response_format": response_format, "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty, "repeat_penalty": repeat_penalty,
            "tfs_z": tfs_z, "mirostat_mode": mirostat_mode, "mirostat_tau": mirostat_tau,
            "mirostat_eta": mirostat_eta, "logits_processor": logits_processor,
            "grammar": grammar, "logit_bias": logit_bias,
        }  # fmt: skip
        tool_options = (tools, tool_choice, functions, function_call)
        if self.chat_handler is not None:
            others = (stream, model, logprobs, top_logprobs)
            return self._handle(messages, tool_options, options, *others)
        from pyllama_spec.chat.tools import ToolRequest

        request = ToolRequest.read(*tool_options, parallel_tool_calls, reasoning_format)
        options.update(more, logprobs=chat_top_logprobs(logprobs, top_logprobs))
        options["stopping_criteria"] = stopping_criteria
        plan = self._chat(messages, request, template_variables(chat_template_kwargs), options)
        return self._answer(*plan, model, request, stream, bool(logprobs))

    def _handle(
        self,
        messages: Sequence[Message],
        tool_options: tuple[Any, Any, Any, Any],
        options: Mapping[str, Any],
        *others: Any,
    ) -> Response | Stream:
        """Lets the chat handler answer, with what llama-cpp-python gives to one."""
        assert self.chat_handler is not None
        tools, tool_choice, functions, function_call = tool_options
        stream, model, logprobs, top_logprobs = others
        # Handlers add to it what ends an answer in their form.
        stop = list(options["stop"]) if isinstance(options["stop"], tuple) else options["stop"]
        answered: Response | Stream = self.chat_handler(
            llama=self, messages=messages, functions=functions, function_call=function_call,
            tools=tools, tool_choice=tool_choice, stream=stream, model=model,
            logprobs=logprobs, top_logprobs=top_logprobs, **{**options, "stop": stop},
        )  # fmt: skip
        return answered

    def _answer(
        self,
        generation: Generation,
        reader: AnswerReader | None,
        model: str | None,
        request: ToolRequest,
        stream: bool,
        logprobs: bool,
    ) -> Response | Stream:
        instance(stream, bool, "stream")
        envelope = Envelope.make("chatcmpl", self.model_path if model is None else model)
        vocab = self._open.vocab
        self._look_up(generation.record.prompt_tokens)
        if reader is not None:
            from pyllama_spec.llama.tool_responses import tool_chunks, tool_completion
        if stream:
            chunks = (
                responses.chat_chunks(generation, envelope, vocab, logprobs=logprobs)
                if reader is None
                else tool_chunks(generation, envelope, vocab, reader, request, logprobs=logprobs)
            )
            return Stream(generation, self._noted(chunks, generation))
        response = (
            responses.chat_completion(generation, envelope, vocab, logprobs=logprobs)
            if reader is None
            else tool_completion(generation, envelope, vocab, reader, request, logprobs=logprobs)
        )
        self._note(generation)
        return response

    def _chat(
        self,
        messages: Sequence[Message],
        request: ToolRequest,
        variables: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> tuple[Generation, AnswerReader | None]:
        """A generation that has not begun, and who takes its answer apart, if that is needed."""
        if request.is_plain:
            generation = self.generate_chat_steps(
                messages, tools=None, chat_template_kwargs=variables, **options
            )
            return generation, None
        own = {name: value for name, value in options.items() if value is not None}
        form = own.get("response_format")
        is_written = isinstance(form, Mapping) and form.get("type") in ("regex", "grammar")
        schema = None if is_written else schema_of(own.pop("response_format", None))
        if request.tools and request.choice != "none" and ("grammar" in own or is_written):
            raise ArgumentError(
                "give grammar or tools, not both: calls have a grammar of their own"
            )
        if self._tools is None:
            from pyllama_spec.chat.tools import ToolChats

            self._tools = ToolChats(self._open, self.template)
        rendered, reader = self._tools.begin(messages, request, variables, schema)
        merged = self._merged(own, reader)
        return self._generation(rendered.tokenize(self._open.vocab), merged), reader

    def _merged(self, own: Mapping[str, Any], reader: AnswerReader) -> RequestOptions:
        stop = own.get("stop") or ()
        stops = [stop] if isinstance(stop, str) else list(stop)
        stops += [one for one in reader.options.get("stop", ()) if one not in stops]
        keywords = {**CHAT_DEFAULTS, **own, **reader.options, "stop": stops}
        return RequestOptions.from_keywords(keywords)

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
        instance(options, (RequestOptions, type(None)), "options")
        request = options if options is not None else RequestOptions.from_keywords(keywords)
        return self._generation(prompt_tokens(self._open.vocab, prompt), request)

    def generate_chat_steps(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> Generation:
        """Answers a chat in pieces, as generate_steps.

        max_tokens is None by default, and the temperature 0.2.
        """
        if self.chat_handler is not None:
            raise UnsupportedError("a chat_handler answers the chats of this Llama, not in steps")
        stops = keywords.get("stop") or ()
        stops = [stops] if isinstance(stops, str) else stops
        if self._format_stops:
            keywords["stop"] = [*stops, *self._format_stops]
        request = RequestOptions.from_keywords({**CHAT_DEFAULTS, **keywords})
        rendered = self.template.render(
            messages, tools=tools, **template_variables(chat_template_kwargs)
        )
        return self._generation(rendered.tokenize(self._open.vocab), request)
