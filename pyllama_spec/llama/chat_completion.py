"""Chat completions: the chat format, the template, and the requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pyllama_spec.chat.continued import check_continued, field_to_continue, render_continued
from pyllama_spec.chat.messages import check_messages
from pyllama_spec.chat.prompts import chat_top_logprobs, check_fits, template_variables
from pyllama_spec.chat.template import ChatTemplate, Message, RenderedChat, check_form
from pyllama_spec.constraints import schema_of
from pyllama_spec.engine import Model
from pyllama_spec.errors import ArgumentError, UnsupportedError, both_given, warn
from pyllama_spec.llama.batch import options_of_choices
from pyllama_spec.llama.completion import Completions
from pyllama_spec.llama.open_model import OpenModel
from pyllama_spec.llama.open_options import ChatHandler
from pyllama_spec.llama.overridable import Overridable
from pyllama_spec.llama.report import Report
from pyllama_spec.llama.responses import (
    ChatReply,
    Deferred,
    Envelope,
    Reply,
    Response,
    Stream,
    answering_model,
    check_stream,
)
from pyllama_spec.llama.thoughts import with_effort
from pyllama_spec.requests.generation import Generation
from pyllama_spec.requests.options import MAX_LOGPROBS, RequestOptions

if TYPE_CHECKING:
    from pyllama_spec.chat.answers import AnswerReader
    from pyllama_spec.chat.tools import ToolChats, ToolRequest

# The defaults of a chat where they differ from RequestOptions: llama-cpp-python's.
CHAT_DEFAULTS: Mapping[str, Any] = {"max_tokens": None, "temperature": 0.2}
_DEFAULT = "chat_template.default"
_FIELDS = {field.name: field for field in fields(RequestOptions)}
# The options that change an answer's form or place.
_NOT_FOR_HANDLERS = (
    "n", "min_tokens", "ignore_eos", "stop_token_ids", "bad_words", "include_stop_str_in_output",
    "thinking_token_budget", "reasoning_effort", "continue_final_message", "return_token_ids",
    "stream_options", "context_shift", "return_token_sources", "n_draft", "remember", "acceptance",
)  # fmt: skip
# The option of a reader whose grammar covers the whole answer, thoughts included.
_OF_ENGINE_GRAMMARS = frozenset(("grammar_prefill", "grammar_triggers"))


@dataclass(slots=True)
class ChatForm:
    """The chat format of a model."""

    name: str
    template_name: str | None = None  # of one in the file; None for its default
    source: str | None = None  # Jinja text in place of the file's
    stops: tuple[str, ...] = ()  # beside the model's own end
    template: ChatTemplate | None = None  # compiled, once it is needed or its faults have to show
    tools: ToolChats | None = None  # writes chats with tools by it, once there is one

    @classmethod
    def of(cls, model: Model, chat_format: str | None, chat_template: str | None) -> ChatForm:
        """The form for Llama(chat_format=, chat_template=).

        A template that is named is made now, so that its faults show. check_form() was called.
        """
        has_own = model.chat_template() is not None
        form = cls(chat_format or (_DEFAULT if has_own else "chatml"))
        if registered_handler(chat_format, chat_template) is not None:
            return form
        form.source = chat_template
        if chat_format == _DEFAULT and has_own:
            chat_format = None
        if chat_format is None and chat_template is None:
            return form
        if chat_format is not None and chat_template is None:
            form.template_name = chat_format.removeprefix("chat_template.")
            if model.chat_template(form.template_name) is None:
                from pyllama_spec.llama.chat_formats import named_format

                known = named_format(chat_format)
                if known is not None:  # else make_template() says what there is
                    form.template_name, form.source = None, known.source
                    form.stops = known.stop
        form.make_template(model)
        return form

    def make_template(self, model: Model) -> ChatTemplate:
        """Compiles the template."""
        self.template = ChatTemplate.of_model(model, self.template_name, self.source)
        return self.template


def registered_handler(chat_format: str | None, chat_template: str | None) -> ChatHandler | None:
    """The handler that a program registered for a chat format; None if there is none."""
    if chat_format is None or chat_template is not None:
        return None
    from pyllama_spec.llama.chat_formats import HANDLERS

    return HANDLERS.get(chat_format)


class ChatCompletions:
    """Starts chat completion requests, in the model's chat format.

    Every call is handed the Llama that it is made on: nothing here keeps a Llama alive.
    """

    def __init__(
        self,
        opened: OpenModel,
        completions: Completions,
        chat_format: str | None,
        chat_template: str | None,
    ) -> None:
        self._opened, self._completions = opened, completions
        self.form = ChatForm.of(opened.model, chat_format, chat_template)

    def set_format(self, llm: Overridable, name: str | None) -> None:
        """Sets the format of later requests."""
        from pyllama_spec.llama.chat_formats import HANDLERS

        check_form(name, None)
        self.form = ChatForm.of(self._opened.model, name, None)
        if any(llm.chat_handler is one for one in HANDLERS.values()):
            llm.chat_handler = None  # of the form before; a program's own still answers
        llm.chat_handler = llm.chat_handler or registered_handler(name, None)

    def template(self) -> ChatTemplate:
        """The format's template."""
        if self.form.template is None:
            template = self.form.make_template(self._opened.model)
            if template.note:
                warn(template.note)
            return template
        return self.form.template

    def create(
        self,
        llm: Overridable,
        messages: Sequence[Message],
        tool_options: tuple[Any, Any, Any, Any],
        options: dict[str, Any],
        more: Mapping[str, Any],
        *,
        stream: bool | Deferred,
        model: str | None,
        logprobs: bool | None,
        top_logprobs: int | None,
        parallel_tool_calls: bool | None,
        reasoning_format: str | None,
        chat_template_kwargs: Mapping[str, Any] | None,
    ) -> Response | Stream:
        """See Llama.create_chat_completion.

        `tool_options` are tools, tool_choice, functions and function_call; `options` those of
        RequestOptions that a chat handler is given too, `more` those that it is not given.
        """
        if llm.chat_handler is not None:
            others = (check_stream(stream), model, logprobs, top_logprobs)
            options = {**options, **_for_handler(more)}
            return _handled(llm, llm.chat_handler, messages, tool_options, options, *others)
        from pyllama_spec.chat.tools import ToolRequest

        is_stream = check_stream(stream)
        request = ToolRequest.read(*tool_options, parallel_tool_calls, reasoning_format)
        top = chat_top_logprobs(logprobs, top_logprobs, MAX_LOGPROBS)
        options = {**options, **more, "logprobs": top}
        variables = template_variables(chat_template_kwargs)
        asked = RequestOptions(n=options.pop("n", 1), seed=options["seed"])
        envelope = Envelope.make("chatcmpl", answering_model(llm.model_path, model))
        replies: list[Reply] = []
        for one in options_of_choices(asked, self._opened.seeds):
            generation, reader = self.begin(
                llm, messages, request, variables, {**options, "seed": one.seed}
            )
            given = (generation, self._opened.model.vocab, bool(logprobs))
            if reader is None:
                replies.append(ChatReply(*given))
            else:
                from pyllama_spec.llama.tool_responses import ParsedReply

                replies.append(ParsedReply(*given, reader, request, envelope.id))
        report = Report(replies[0].generation.options, stream=is_stream)
        handle = self._completions.handle(llm, replies, envelope, report)
        return handle if is_stream or isinstance(stream, Deferred) else handle.result()

    def begin(
        self,
        llm: Overridable,
        messages: Sequence[Message],
        request: ToolRequest,
        variables: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> tuple[Generation, AnswerReader | None]:
        """Prepares a generation, and the reader of its answer if one is needed."""
        if request.is_plain:
            generation = llm.generate_chat_steps(
                messages, tools=None, chat_template_kwargs=variables, **options
            )
            return generation, None
        own, variables, unread = with_effort(options, variables, llm.template.source)
        own = {name: value for name, value in own.items() if value is not None}
        wanted = own.get("response_format")
        is_written = isinstance(wanted, Mapping) and wanted.get("type") in ("regex", "grammar")
        schema = None if is_written else schema_of(own.pop("response_format", None))
        if request.tools and request.choice != "none" and ("grammar" in own or is_written):
            raise both_given("grammar", "tools")
        model, form = self._opened.model, self.form
        if form.tools is None:
            from pyllama_spec.chat.tools import ToolChats

            form.tools = ToolChats(model, llm.template)
        which = own.get("continue_final_message")
        if own.get("add_generation_prompt") is False and not which:
            raise ArgumentError(
                "add_generation_prompt", False, problem="without `continue_final_message` is for "
                "chats "
                "without `tools` and `reasoning_format`: their answers are read from their "
                "beginning",
            )  # fmt: skip
        name = field_to_continue(messages, which) if which else None
        rendered, reader = form.tools.begin(messages, request, variables, schema, name)
        self._check_fits(rendered)
        if name:
            check_continued(rendered.text, messages, name)
        options_ = _merged(own, reader)
        options_ = self._completions.thoughts.of_chat(
            llm, options_, unread, own_grammar=not _OF_ENGINE_GRAMMARS & reader.options.keys(),
            answer=_begun_answer(
                llm.template, messages, request.offered, variables, rendered.text, bool(name)
            ),
        )  # fmt: skip
        return self._generation(llm, rendered, options_), reader

    def generate_chat_steps(
        self,
        llm: Overridable,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        chat_template_kwargs: Mapping[str, Any] | None,
        keywords: dict[str, Any],
    ) -> Generation:
        """See Llama.generate_chat_steps; `keywords` are those of RequestOptions."""
        if llm.chat_handler is not None:
            raise UnsupportedError(
                "generate_chat_steps() does not support the chat_handler of this Llama; call "
                "create_chat_completion()"
            )
        if self.form.stops:
            stops = keywords.get("stop") or ()
            stops = [stops] if isinstance(stops, str) else stops
            keywords["stop"] = [*stops, *self.form.stops]
        template = llm.template
        variables = template_variables(chat_template_kwargs)
        keywords, variables, unread = with_effort(keywords, variables, template.source)
        given = {name: value for name, value in keywords.items() if value is not None}
        request = RequestOptions.from_keywords({**CHAT_DEFAULTS, **given})
        which, begins = request.continue_final_message, request.add_generation_prompt
        if begins is not None:
            variables["add_generation_prompt"] = begins
        if which:
            name = field_to_continue(messages, which)
            rendered = render_continued(template, messages, name, tools, variables)
        else:
            rendered = template.render(messages, tools=tools, **variables)
        self._check_fits(rendered)
        if unread is not None or request.thinking_token_budget is not None:
            answer = _begun_answer(template, messages, tools, variables, rendered.text, bool(which))
            request = self._completions.thoughts.of_chat(
                llm, request, unread, answer=answer, own_grammar=True
            )
        return self._generation(llm, rendered, request)

    def _generation(
        self, llm: Overridable, rendered: RenderedChat, request: RequestOptions
    ) -> Generation:
        """Prepares a chat's generation."""
        tokens = rendered.tokenize(self._opened.model.vocab)
        generation = self._opened.generation(tokens, request, last_n=llm.last_n_tokens_size)
        generation.record.note = rendered.note
        return generation

    def _check_fits(self, rendered: RenderedChat) -> None:
        check_fits(self._opened.model.vocab, rendered.text, self._opened.runtime.context.n_ctx_seq)

    def close(self) -> None:
        """Frees the resources of chats with tools."""
        if self.form.tools is not None:
            self.form.tools.close()


def _begun_answer(
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
    prompt: str,
    is_continued: bool,
) -> str:
    """The prompt's part of the answer."""
    before = check_messages(messages)
    before = before[:-1] if is_continued else before
    variables = {**variables, "add_generation_prompt": False}
    try:
        chat = template.render(before, tools=tools, **variables).text if before else ""
    except (ArgumentError, UnsupportedError):
        chat = prompt
    if prompt.startswith(chat) and chat != prompt:
        return prompt[len(chat) :]
    # Written otherwise, as tools are by the engine: after the last message then.
    last = str(before[-1]["content"] or "").strip() if before else ""
    return prompt.rpartition(last)[2] if last else prompt


def _for_handler(more: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a handler gets although it may not know them."""
    for name in _NOT_FOR_HANDLERS:
        value = more.get(name)
        if value is not None and value != _FIELDS[name].default:
            raise UnsupportedError(
                "is no option of the `chat_handler` of this Llama",
                param=name,
                value=value,
                remedy="omit it",
            )
    limit = more.get("max_completion_tokens")
    return {} if limit is None else {"max_tokens": limit}


def _handled(
    llm: Overridable,
    handler: ChatHandler,
    messages: Sequence[Message],
    tool_options: tuple[Any, Any, Any, Any],
    options: Mapping[str, Any],
    *others: Any,
) -> Response | Stream:
    """Calls the chat handler with the arguments that llama-cpp-python passes."""
    tools, tool_choice, functions, function_call = tool_options
    stream, model, logprobs, top_logprobs = others
    # Handlers add to it what ends an answer in their form.
    stop = list(options["stop"]) if isinstance(options["stop"], tuple) else options["stop"]
    answered: Response | Stream = handler(
        llama=llm, messages=messages, functions=functions, function_call=function_call,
        tools=tools, tool_choice=tool_choice, stream=stream, model=model,
        logprobs=logprobs, top_logprobs=top_logprobs, **{**options, "stop": stop},
    )  # fmt: skip
    return answered


def _merged(own: Mapping[str, Any], reader: AnswerReader) -> RequestOptions:
    stop = own.get("stop") or ()
    stops = [stop] if isinstance(stop, str) else list(stop)
    stops += [one for one in reader.options.get("stop", ()) if one not in stops]
    keywords = {**CHAT_DEFAULTS, **own, **reader.options, "stop": stops}
    return RequestOptions.from_keywords(keywords)
