"""Chat completions: the chat format, the template, and the prompts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyllama_spec.chat.answers import AnswerReader
from pyllama_spec.chat.template import (
    ChatTemplate,
    Message,
    RenderedChat,
    check_continuable,
    check_continued,
    check_fits,
    check_form,
    check_messages,
    render_continued,
    template_variables,
)
from pyllama_spec.chat.tools import ToolChats, ToolRequest
from pyllama_spec.constraints import schema_of
from pyllama_spec.engine import ChatParser, Model, Vocab
from pyllama_spec.engine.chat import ends_in_thought
from pyllama_spec.engine.checks import one_of
from pyllama_spec.errors import ArgumentError, UnsupportedError, both_given, warn
from pyllama_spec.llama.open_options import ChatHandler
from pyllama_spec.requests.options import EFFORTS, OF_CHATS, RequestOptions, stops_of

# The defaults of a chat where they differ from RequestOptions: llama-cpp-python's.
CHAT_DEFAULTS: Mapping[str, Any] = {"max_tokens": None, "temperature": 0.2}
_DEFAULT = "chat_template.default"
# Tokens of thought for an effort that a template does not read. LiteLLM's defaults.
_BUDGETS = {"none": 0, "minimal": 128, "low": 1024, "medium": 2048, "high": 4096}
# What templates read to leave thoughts out.
_SWITCHES = ("enable_thinking", "thinking")
# The option of a reader whose grammar covers the whole answer, thoughts included.
_OF_ENGINE_GRAMMARS = frozenset(("grammar_prefill", "grammar_triggers"))


def registered_handler(chat_format: str | None, chat_template: str | None) -> ChatHandler | None:
    """The handler that a program registered for a chat format; None if there is none."""
    if chat_format is None or chat_template is not None:
        return None
    from pyllama_spec.llama.chat_formats import HANDLERS

    return HANDLERS.get(chat_format)


class Chats:
    """The chats of an open model, in one chat format: from messages to prompts.

    A template that is named is compiled now, so that its faults show.
    """

    def __init__(
        self,
        model: Model,
        n_ctx: int | None,
        chat_format: str | None,
        chat_template: str | None,
    ) -> None:
        self._model, self._n_ctx = model, n_ctx
        self._thought_tags: tuple[str, ...] | None = None
        has_own = model.chat_template() is not None
        self.name = chat_format or (_DEFAULT if has_own else "chatml")
        self._stops: tuple[str, ...] = ()  # beside the model's own end
        self._tools: ToolChats | None = None  # writes chats with tools, once there is one
        self._template: ChatTemplate | None = None
        # The name of one in the file, None for its default; and Jinja text in place of the file's.
        self._template_name: str | None = None
        self._source: str | None = None
        if registered_handler(chat_format, chat_template) is not None:
            return
        self._source = chat_template
        if chat_format == _DEFAULT and has_own:
            chat_format = None
        if chat_format is not None and chat_template is None:
            self._template_name = chat_format.removeprefix("chat_template.")
            if model.chat_template(self._template_name) is None:
                from pyllama_spec.llama.chat_formats import named_format

                known = named_format(chat_format)
                if known is not None:  # else the template says what there is
                    self._template_name, self._source = None, known.source
                    self._stops = known.stop
        if chat_format is not None or chat_template is not None:
            self.template()

    def of_format(self, name: str | None) -> Chats:
        """The chats of the model in another format."""
        check_form(name, None)
        return Chats(self._model, self._n_ctx, name, None)

    def template(self) -> ChatTemplate:
        """The format's template."""
        if self._template is None:
            self._template = ChatTemplate.of_model(self._model, self._template_name, self._source)
            if self._template.note:
                warn(self._template.note)
        return self._template

    def begin(
        self,
        messages: Sequence[Message],
        asked: ToolRequest,
        variables: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> tuple[RenderedChat, RequestOptions, AnswerReader | None]:
        """The prompt of a chat, its options, and the reader of its answer if one is needed."""
        if asked.is_plain:
            return *self.plain(messages, None, variables, options), None
        return self._parsed(messages, asked, variables, options)

    def plain(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        chat_template_kwargs: Mapping[str, Any] | None,
        keywords: Mapping[str, Any],
    ) -> tuple[RenderedChat, RequestOptions]:
        """The prompt of a chat whose answer is text; `keywords` are those of RequestOptions."""
        template, variables = self.template(), template_variables(chat_template_kwargs)
        if self._stops:
            keywords = {**keywords, "stop": [*stops_of(keywords.get("stop")), *self._stops]}
        self._check_messages_fit(messages)
        keywords, variables, unread = with_effort(keywords, variables, template.source)
        given = {name: value for name, value in keywords.items() if value is not None}
        request = RequestOptions.from_keywords({**CHAT_DEFAULTS, **given})
        which, begins = request.continue_final_message, request.add_generation_prompt
        if begins is not None:
            variables["add_generation_prompt"] = begins
        if which:
            check_continuable(messages)
            rendered = render_continued(template, messages, tools, variables)
        else:
            rendered = template.render(messages, tools=tools, **variables)
        self._check_fits(rendered)
        if unread is not None or request.thinking_token_budget is not None:
            answer = _begun_answer(rendered.text, messages, bool(which))
            request = self._of_chat(request, unread, answer=answer, own_grammar=True)
        return rendered, request

    def _parsed(
        self,
        messages: Sequence[Message],
        request: ToolRequest,
        variables: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> tuple[RenderedChat, RequestOptions, AnswerReader]:
        """The prompt of a chat with tools or thoughts apart, and the reader of its answer."""
        template = self.template()
        self._check_messages_fit(messages)
        own, variables, unread = with_effort(options, variables, template.source)
        own = {name: value for name, value in own.items() if value is not None}
        wanted = own.get("response_format")
        is_written = isinstance(wanted, Mapping) and wanted.get("type") in ("regex", "grammar")
        schema = None if is_written else schema_of(own.pop("response_format", None))
        if request.tools and request.choice != "none" and ("grammar" in own or is_written):
            raise both_given("grammar", "tools")
        if self._tools is None:
            self._tools = ToolChats(self._model, template)
        which = own.get("continue_final_message")
        if own.get("add_generation_prompt") is False and not which:
            raise ArgumentError(
                "add_generation_prompt", False, problem="without `continue_final_message` is for "
                "chats without `tools` and `reasoning_format`: their answers are read from their "
                "beginning",
            )  # fmt: skip
        if which:
            check_continuable(messages)
        rendered, reader = self._tools.begin(
            messages, request, variables, schema, is_continued=bool(which)
        )
        self._check_fits(rendered)
        if which:
            check_continued(rendered.text, messages)
        merged = self._of_chat(
            _merged(own, reader), unread,
            own_grammar=not _OF_ENGINE_GRAMMARS & reader.options.keys(),
            answer=_begun_answer(rendered.text, messages, bool(which)),
        )  # fmt: skip
        return rendered, merged, reader

    # ---- thoughts

    def of_text(self, tokens: Sequence[int], request: RequestOptions) -> RequestOptions:
        """The options of a text, with the tags for a budget."""
        for name in OF_CHATS:
            if getattr(request, name) is not None:
                raise ArgumentError(
                    name, getattr(request, name), problem="applies to chats only",
                    remedy="pass it to create_chat_completion(), or leave it out",
                )  # fmt: skip
        if request.thinking_token_budget is None or request.thought_close:
            return request
        text = self._model.vocab.detokenize(tokens, special=True).decode(errors="replace")
        return self._bounded(request, self.thought_tags(), text, own_grammar=True)

    def _of_chat(
        self, request: RequestOptions, unread: str | None, *, answer: str, own_grammar: bool
    ) -> RequestOptions:
        """The options of a chat, with the tags for a budget or for a grammar after the thought."""
        budget = request.thinking_token_budget
        is_ruled = own_grammar and request.grammar is not None
        if unread is None and budget is None and not is_ruled:
            return request
        tags = self.thought_tags()
        if unread is not None and not tags:
            if unread == "none":
                return replace(request, response_format=None, thinking_token_budget=None)
            raise UnsupportedError(
                "is not for this model: its chat template marks no thoughts and reads no effort",
                param="reasoning_effort",
                value=unread,
                remedy="leave it out",
            )
        if budget is None and not (is_ruled and ends_in_thought(answer, tags)):
            return request
        return self._bounded(request, tags, answer, own_grammar=own_grammar)

    def _bounded(
        self, request: RequestOptions, tags: Sequence[str], before: str, *, own_grammar: bool
    ) -> RequestOptions:
        """The options with a budget and its tags, after the text `before`.

        own_grammar: the request's grammar is for the answer alone, without thoughts.
        """
        if not tags:
            raise UnsupportedError(
                "is not for this model: its chat template marks no thoughts",
                param="thinking_token_budget",
                value=request.thinking_token_budget,
                remedy="leave it out, or set `max_tokens`",
            )
        return replace(
            request, response_format=None, max_completion_tokens=None, thought_tags=tuple(tags),
            thought_is_open=ends_in_thought(before, tags),
            thought_close=_close(self._model.vocab, tags[1]),
            grammar_skips_thoughts=own_grammar and request.grammar is not None,
        )  # fmt: skip

    def thought_tags(self) -> tuple[str, ...]:
        """The tags of thoughts in the template's answers; () if it has none. Slow at first."""
        if self._thought_tags is None:
            with ChatParser(self._model, self.template().source) as parser:
                session = parser.begin({"messages": [{"role": "user", "content": "."}]})
            self._thought_tags = session.thought_tags
        return self._thought_tags

    # ---- lengths

    def _check_messages_fit(self, messages: Sequence[Message]) -> None:
        """Refuses texts that are too long before seconds of rendering.

        A template may drop the thoughts of answers: each answer has to fit alone.
        """
        if self._n_ctx is None:
            return
        checked = check_messages(messages)
        texts = [(one["role"] == "assistant", one["content"] or "") for one in checked]
        given = "".join(text for is_answer, text in texts if not is_answer)
        for text in (given, *(text for is_answer, text in texts if is_answer)):
            check_fits(self._model.vocab, text, self._n_ctx)

    def _check_fits(self, rendered: RenderedChat) -> None:
        if self._n_ctx is not None:
            check_fits(self._model.vocab, rendered.text, self._n_ctx)

    def close(self) -> None:
        """Frees the resources of chats with tools."""
        if self._tools is not None:
            self._tools.close()


def _begun_answer(prompt: str, messages: Sequence[Message], is_continued: bool) -> str:
    """The prompt's part of the answer: what follows the last message."""
    before = check_messages(messages)
    before = before[:-1] if is_continued else before
    last = str(before[-1]["content"] or "").strip() if before else ""
    return prompt.rpartition(last)[2] if last else prompt


def _merged(own: Mapping[str, Any], reader: AnswerReader) -> RequestOptions:
    stops = stops_of(own.get("stop"))
    stops += [one for one in reader.options.get("stop", ()) if one not in stops]
    keywords = {**CHAT_DEFAULTS, **own, **reader.options, "stop": stops}
    return RequestOptions.from_keywords(keywords)


def with_effort(
    keywords: Mapping[str, Any], variables: Mapping[str, Any], source: str
) -> tuple[dict[str, Any], dict[str, Any], str | None]:
    """A chat's options and template variables with the effect of reasoning_effort.

    The caller's own budget, and variable for the effort, take precedence. The effort comes third
    where the template has no variable for it.
    """
    keywords, variables = dict(keywords), dict(variables)
    effort = keywords.pop("reasoning_effort", None)
    one_of(effort, (None, *EFFORTS), "reasoning_effort")
    if effort is None:
        return keywords, variables, None
    is_read = _reads(source, "reasoning_effort")
    if is_read:
        variables.setdefault("reasoning_effort", effort)
    switch = next((name for name in _SWITCHES if _reads(source, name)), None)
    if effort == "none" and switch is not None:
        variables.setdefault(switch, False)
        is_read = True
    elif not is_read and keywords.get("thinking_token_budget") is None:
        keywords["thinking_token_budget"] = _BUDGETS.get(effort)
    return keywords, variables, None if is_read else effort


def _reads(source: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", source) is not None


def _close(vocab: Vocab, end: str) -> tuple[int, ...]:
    """The ids of the tag that ends a thought.

    Some vocabularies put a space before a first control token, which is not part of the tag.
    """
    ids = vocab.tokenize(end, add_special=False, parse_special=True)
    if len(ids) > 1 and vocab.piece(ids[0], special=True).isspace() and not end[0].isspace():
        ids = ids[1:]
    return tuple(ids)
