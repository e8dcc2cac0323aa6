"""Renders chat templates: the model's own Jinja text, which the engine runs.

A template comes with the model's file, from an unknown author. It sees what it is given and
nothing else, and its time and memory are bounded: csrc/abi/chat.cpp.

Control tokens in messages: a rendered chat is tokenized with the names of control tokens read as
those tokens. A message that contains such a name would then forge the turns of others, and so would
a role, a tool's description or a variable of the template. prompt_provenance.py finds what of the
text comes from the caller, and reads no control token there; RenderedChat.located says how much
could be found.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, TypeVar

from pyllama_spec.chat.prompt_provenance import (
    Form,
    Located,
    PromptProvenance,
    Span,
    StandIns,
    locate,
    strings_of,
    tokenize_chat,
)
from pyllama_spec.engine import Model, TemplateProgram, Vocab
from pyllama_spec.engine.checks import count
from pyllama_spec.errors import (
    ArgumentError,
    ContextFullError,
    UnsupportedError,
    both_given,
    shown,
    warn,
)

T = TypeVar("T")


def check_messages(messages: object) -> list[dict[str, Any]]:
    """Checks messages, and makes the content of each one text. A key that is None is absent."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ArgumentError("messages", messages, "a list of objects with role and content")
    if not messages:
        raise ArgumentError("messages", messages, "at least one message")
    out: list[dict[str, Any]] = []
    for i, message in enumerate(map(present, messages)):
        if not isinstance(message, Mapping):
            raise ArgumentError(f"messages[{i}]", message, dict)
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise ArgumentError(f"messages[{i}].role", role, "a word such as 'user'")
        content = _text(message.get("content"), i)
        if content is None and not message.get("tool_calls"):
            # Of an empty answer, or of one with a call in OpenAI's older form.
            if role != "assistant":
                raise ArgumentError(
                    f"messages[{i}]", problem="has no content", remedy="give a text"
                )
            content = ""
        checked = {**message, "content": content}
        calls = checked.get("tool_calls")
        if isinstance(calls, (list, tuple)):
            checked["tool_calls"] = [_with_arguments(call) for call in calls]
        out.append(checked)
    return out


def render_messages(
    messages: list[dict[str, Any]], render: Callable[[list[dict[str, Any]]], T]
) -> tuple[T, list[dict[str, Any]]]:
    """Renders a template; returns its output and the messages that it read.

    A call of tools has no content, which a template that knows no tools puts into its text: where
    it fails on that, it gets "" instead. So the answers of create_chat_completion() can be given
    back to any model.
    """
    try:
        return render(messages), messages
    except ArgumentError:
        texts = [{**one, "content": ""} if one["content"] is None else one for one in messages]
        if texts == messages:
            raise
        return render(texts), texts


def present(thing: Any) -> Any:
    """A dict without its keys that are None, also of a pydantic object; others unchanged."""
    if not isinstance(thing, Mapping):
        dump = getattr(thing, "model_dump", None)
        return dump(exclude_none=True) if callable(dump) else thing
    return {key: value for key, value in thing.items() if value is not None}


def _with_arguments(call: Any) -> Any:
    """A call with the type and the arguments that templates expect.

    Arguments that are no JSON, as of an answer that max_tokens cut, become {}.
    """
    call = present(call)
    function = present(call.get("function")) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str) and not is_json(arguments):
        arguments = "{}"
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def is_json(text: str) -> bool:
    """Whether a text is complete JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _text(content: object, i: int) -> str | None:
    """A content as one text; None, as of assistant messages with tool calls, stays None."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, (bytes, Mapping)) or not isinstance(content, Sequence):
        raise ArgumentError(
            f"messages[{i}].content", content, 'a text, or a list of {"type": "text", "text": ...}'
        )
    texts: list[str] = []
    for k, part in enumerate(content):
        if not isinstance(part, Mapping) or "type" not in part:
            raise ArgumentError(f"messages[{i}].content[{k}]", part, "a part with a type")
        if part["type"] not in ("text", "refusal"):
            medium = MEDIA.get(str(part["type"]))
            raise UnsupportedError(
                f"{medium} input is not supported" if medium else "",
                param=f"messages[{i}].content[{k}].type", value=part["type"],
                expected="text alone" if medium else "text, or image_url and input_audio",
                setup="give the model its projector, as `mmproj_path`" if medium else "",
            )  # fmt: skip
        text = part.get(part["type"])
        if not isinstance(text, str):
            raise ArgumentError(f"messages[{i}].content", part, "a text in each part")
        texts.append(text)
    return "".join(texts)


CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Asks a template whether it prints content. A private-use character: no text of people has it.
_CANARY = "\U0010abcd"

# Parts that a projector reads, in llama-server's words.
MEDIA = {"image_url": "image", "input_audio": "audio"}
# Any template may be asked for them; what it does not know it refuses, or leaves out by design.
_ROLES = ("system", "user", "assistant", "tool")

Message = Mapping[str, Any]


TOOLS_UNSHOWN = "the chat template knows no tools: the model is not told what they are"


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A chat as one text.

    Attributes:
        text: the rendered text.
        caller: the known places of the caller's text.
        note: a remark for the caller, such as tools that the template left out; "" for no remark.
    """

    text: str
    caller: PromptProvenance = field(default=PromptProvenance("nothing"), repr=False)
    note: str = ""

    @property
    def spans(self) -> tuple[Span, ...]:
        """[start, end) of each stretch of the caller's text; () if they are not all known."""
        return self.caller.spans if self.located == "all" else ()

    @property
    def located(self) -> Located:
        """How much of the caller's text was found; it decides how forged names are tokenized.

        - "all": every stretch; one that holds a forged name is read as plain text.
        - "signs": signs, or all but what the template itself looks for in texts. That is enough to
          tell forged names; these alone are read as plain text.
        - "nothing": the template processes the text in a way that cannot be followed. A name of a
          control token that the characters of the caller's text can spell is plain text in the
          whole chat, the template's own too.
        """
        return self.caller.located

    def tokenize(self, vocab: Vocab) -> list[int]:
        """Token ids, with one BOS token if the model wants it or the template wrote it."""
        tokens = tokenize_chat(vocab, self.text, self.caller)
        if vocab.adds_bos and vocab.bos is not None and tokens[:1] != [vocab.bos]:
            tokens.insert(0, vocab.bos)
        return tokens

    def cut(self, at: int) -> RenderedChat:
        """The chat up to a place."""
        caller = self.caller
        clipped = replace(
            caller,
            spans=tuple((a, min(b, at)) for a, b in caller.spans if a < at),
            lookups=tuple((a, min(b, at)) for a, b in caller.lookups if a < at),
        )  # fmt: skip
        return replace(self, text=self.text[:at], caller=clipped)

    def followed_by(self, text: str) -> RenderedChat:
        """The chat with a text of the caller appended."""
        caller, whole = self.caller, self.text + text
        extended = replace(
            caller, spans=(*caller.spans, (len(self.text), len(whole))),
            caller_strings=(*caller.caller_strings, text),
        )  # fmt: skip
        return replace(self, text=whole, caller=extended)


def check_form(chat_format: object, chat_template: object) -> None:
    """Checks what ChatTemplate.of_model() takes, as far as that needs no model."""
    if chat_template is not None:
        if chat_format is not None:
            raise both_given("chat_format", "chat_template")
        if not isinstance(chat_template, str) or "{" not in chat_template:
            raise ArgumentError(
                "chat_template", chat_template, "Jinja text", "read a file: Path(...).read_text()"
            )
        ChatTemplate(chat_template)
    elif chat_format is not None and not isinstance(chat_format, str):
        raise ArgumentError("chat_format", chat_format, "the name of a template")


class ChatTemplate:
    """A compiled template.

    Args:
        source: Jinja text, in the engine's dialect, which published templates are written in.
        bos_token, eos_token: the names of these tokens.
        note: a remark on where the template comes from; "" for no remark.

    Raises:
        UnsupportedError: the text is not a template that the engine can read.
    """

    def __init__(
        self, source: str, *, bos_token: str = "", eos_token: str = "", note: str = ""
    ) -> None:
        if not isinstance(source, str):
            raise ArgumentError("chat_template", source, "Jinja text")
        self.source, self.note = source, note
        self._bos_token, self._eos_token = bos_token, eos_token
        self._program = TemplateProgram(source)
        self._wants_parts: bool | None = None

    @classmethod
    def of_model(
        cls, model: Model, chat_format: str | None = None, chat_template: str | None = None
    ) -> ChatTemplate:
        """The chat template of a model.

        Args:
            model: the model whose file has the templates.
            chat_format: "chatml", or the name of one of the file's named templates.
            chat_template: Jinja text in place of the file's.

        Raises:
            ArgumentError: both are given, or the file has no template of that name.
        """
        vocab = model.vocab
        tokens = {
            name: vocab.piece(token, special=True).decode(errors="replace")
            for name, token in (("bos_token", vocab.bos), ("eos_token", vocab.eos))
            if token is not None
        }
        check_form(chat_format, chat_template)
        if chat_template is not None:
            return cls(chat_template, **tokens)
        if chat_format == "chatml":
            return cls(CHATML, **tokens)
        source = model.chat_template(chat_format)
        if source is not None:
            return cls(source, **tokens)
        if chat_format is not None:
            raise ArgumentError(
                "chat_format", chat_format,
                f"one of {', '.join([*_names_in(model), 'chatml'])}, or a format of "
                "llama-cpp-python, such as 'llama-2'",
                "give any other template as Jinja text in `chat_template`",
            )  # fmt: skip
        note = f"{model.path.name} has no chat template; ChatML is used, which may not fit it"
        return cls(CHATML, **tokens, note=note)

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> RenderedChat:
        """Renders a chat.

        Args:
            messages: dicts with "role" and "content": a str, or a list of {"type": "text", ...}.
            add_generation_prompt: whether to end with the beginning of the assistant's answer.
            tools: descriptions of functions, for templates that show them.
            variables: further variables of the template, such as enable_thinking.

        Raises:
            ArgumentError: messages are malformed, or the template refuses them.
            UnsupportedError: a message is more than text, or the template takes too much time or
                memory.
        """
        checked = check_messages(messages)
        self._warn_of_roles(checked)
        now = int(time.time())  # one time for all renderings of this chat
        fixed_variables: dict[str, Any] = {
            "bos_token": self._bos_token, "eos_token": self._eos_token,
            "add_generation_prompt": add_generation_prompt, "documents": None,
        }  # fmt: skip
        caller_variables = {"tools": [dict(tool) for tool in tools] if tools else None, **variables}

        def run(messages: Sequence[dict[str, Any]], values: Mapping[str, Any]) -> str:
            return self._run(messages, {**fixed_variables, **values}, now)

        text, checked = render_messages(checked, lambda messages: run(messages, caller_variables))
        return self.located(text, checked, caller_variables, run)

    def _warn_of_roles(self, messages: Sequence[Mapping[str, Any]]) -> None:
        for role in dict.fromkeys(str(message["role"]) for message in messages):
            if role not in _ROLES and role not in self.source:
                warn(
                    f"the role {shown(role)} does not occur in the chat template, which may omit "
                    "the message, or write it in a format that the model does not know; usual "
                    f"roles are {', '.join(_ROLES)}",
                )

    def located(
        self,
        text: str,
        messages: Sequence[dict[str, Any]],
        caller_variables: Mapping[str, Any],
        run: Callable[[Sequence[dict[str, Any]], Mapping[str, Any]], str],
        form: Form = "plain",
    ) -> RenderedChat:
        """A chat with the caller's text located in it.

        `run` renders this chat with other messages and variables; `text` is its result for these
        messages, which check_messages() made, and for the caller's own variables.
        """

        def render(stand_ins: StandIns) -> str | None:
            hidden = [stand_ins.message(message) for message in messages]
            variables = {
                name: stand_ins.value(value, name) for name, value in caller_variables.items()
            }
            try:
                return run(hidden, variables)
            except (ArgumentError, UnsupportedError):
                return None

        # Values alone: the names of variables are the template's.
        caller = locate(
            text, strings_of([*messages, *caller_variables.values()]), source=self.source,
            words=self._program.words, lookups=self._program.lookups, render=render, form=form,
        )  # fmt: skip
        note = "" if self._shows_tools(text, caller_variables.get("tools")) else TOOLS_UNSHOWN
        return RenderedChat(text, caller, note)

    def _shows_tools(self, text: str, tools: Sequence[Mapping[str, Any]] | None) -> bool:
        """Whether the rendered chat shows its tools; a name alone may be a coincidence."""
        names = [name_of_tool(tool) for tool in tools or ()]
        return not names or ("tool" in self.source and any(name in text for name in names))

    def _run(
        self, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any], now: int
    ) -> str:
        if self._needs_parts(variables):
            messages = [_with_parts(message) for message in messages]
        return self._program.run({**variables, "messages": messages}, now)

    def _needs_parts(self, variables: Mapping[str, Any]) -> bool:
        """Whether the template reads content only as a list of parts; tried once."""
        if self._wants_parts is None:
            plain = {"role": "user", "content": _CANARY}
            self._wants_parts = not self._shows(plain, variables) and self._shows(
                _with_parts(plain), variables
            )
        return self._wants_parts

    def _shows(self, message: dict[str, Any], variables: Mapping[str, Any]) -> bool:
        try:
            return _CANARY in self._program.run({**variables, "messages": [message]}, 0)
        except ArgumentError:
            return False


def name_of_tool(tool: Any) -> str:
    """The name of a tool; "" for none."""
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return str(inner.get("name", "")) if isinstance(inner, Mapping) else ""


def _names_in(model: Model) -> list[str]:
    prefix = "tokenizer.chat_template."
    return sorted(key[len(prefix) :] for key in model.metadata if key.startswith(prefix))


def _with_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


# One of them, which no message has, stands where the message ends. They are for private use.
_MARKS = ("\U0010abce", "\U0010abcf", "\U0010abd0")


def check_continuable(messages: Sequence[Message]) -> None:
    """Refuses chats whose last message is no text of the assistant."""
    last = check_messages(messages)[-1]
    if last["role"] != "assistant":
        raise ArgumentError(
            "continue_final_message", expected="the role assistant in the last message",
            problem=f"continues a message with the role {shown(last['role'])}",
        )  # fmt: skip
    if last.get("tool_calls") or last.get("function_call"):
        raise ArgumentError(
            "continue_final_message",
            problem="continues a text, and the last message is a tool call",
        )


def render_continued(
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
) -> RenderedChat:
    """Renders a chat up to the end of its last message's text.

    The template writes the message as it writes any other, with a mark after the text, and the
    chat ends before the mark. Where a template does not show the mark the text goes after the
    beginning of an answer.
    """
    checked = check_messages(messages)
    before, last = checked[:-1], checked[-1]
    texts = "".join(str(value) for message in checked for value in message.values())
    mark = next((one for one in _MARKS if one not in texts), "")
    variables = {**variables, "add_generation_prompt": False}
    if mark and last["content"]:
        rendered = template.render(
            [*before, {**last, "content": last["content"] + mark}], tools=tools, **variables
        )
        at = rendered.text.rfind(mark)
        if at >= 0:
            return rendered.cut(at)
    variables["add_generation_prompt"] = True
    return template.render(before, tools=tools, **variables).followed_by(last["content"])


def check_continued(prompt: str, messages: Sequence[Message]) -> None:
    """Checks a chat that the engine has rendered up to the last message's end."""
    text = str(check_messages(messages)[-1]["content"])
    if not prompt.endswith(text) and not prompt.rstrip().endswith(text.strip()):
        raise UnsupportedError(
            "is not shown by the chat template in a last message", param="continue_final_message",
            remedy="leave `tools` and `reasoning_format` out",
        )  # fmt: skip


# Characters of a text whose tokens take a moment.
LONG_TEXT = 1 << 16


def check_fits(vocab: Vocab, text: object, n_ctx: int) -> None:
    """Refuses a text that is too long by its bytes alone, before seconds of tokenizing.

    Ids are refused by their number, before they are listed.
    """
    if not isinstance(text, (str, bytes)):
        if isinstance(text, Sequence) and len(text) >= max(n_ctx, LONG_TEXT):
            raise ContextFullError.of_prompt(len(text), n_ctx)
        return
    if len(text) < LONG_TEXT:
        return
    # One more: the prefix may merge with one of its tokens.
    n = vocab.fewest_tokens(text) - 1
    if n >= n_ctx:
        raise ContextFullError.of_prompt(n, n_ctx, at_least(n))


def at_least(n: int) -> str:
    """What an error says of a text that was not tokenized."""
    return f": its bytes make at least {n} tokens (it was not tokenized)"


def prompt_tokens(vocab: Vocab, prompt: object) -> list[int]:
    """Token ids of a text, with names of control tokens as those tokens; or ids as they are."""
    if isinstance(prompt, (str, bytes)):
        return _text_tokens(vocab, prompt)
    if not isinstance(prompt, Sequence):
        raise ArgumentError("prompt", prompt, "a text or a list of token ids")
    for i, token in enumerate(prompt):
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            raise ArgumentError(
                f"prompt[{i}]", token, "a token id", "create_completion() takes lists of prompts"
            )
    try:
        tokens = [index(token) for token in prompt]
    except TypeError as error:  # an array, say: it has an index only if it holds one number
        raise ArgumentError(
            "prompt", problem=f"has an item that is not a token id: {error}"
        ) from None
    if not tokens:
        raise ArgumentError("prompt", problem="has no tokens", remedy="give at least one")
    vocab.check_ids(tokens, "prompt")
    return tokens


def fim_tokens(vocab: Vocab, prompt: object, suffix: object, *, is_spm: bool = False) -> list[int]:
    """The prompt for text between `prompt` and `suffix`: prefix, suffix, middle.

    With `is_spm` the order is suffix, prefix, middle, as some models learned it. A `suffix` of ""
    needs no tokens for a gap.
    """
    if not isinstance(prompt, str) or not isinstance(suffix, str):
        raise ArgumentError("suffix", suffix, "a text, and a text as `prompt`")
    ids = [vocab.special(name) for name in ("fim_pre", "fim_suf", "fim_mid")]
    before, after, middle = ids
    if before is None or after is None or middle is None:
        if not suffix:
            return prompt_tokens(vocab, prompt)
        raise UnsupportedError(
            "needs fill-in-the-middle tokens, which this model has not",
            param="suffix",
            remedy="leave it out",
        )
    bos = [vocab.bos] if vocab.adds_bos and vocab.bos is not None else []
    head = vocab.tokenize(prompt, add_special=False)
    tail = vocab.tokenize(suffix, add_special=False)
    if is_spm:
        return [*bos, after, *tail, before, *head, middle]
    return [*bos, before, *head, after, *tail, middle]


def _text_tokens(vocab: Vocab, text: str | bytes) -> list[int]:
    tokens = vocab.tokenize(text, add_special=False, parse_special=True)
    # A text that begins with the name of BOS, as rendered chats do, gets no second one.
    needs_bos = vocab.adds_bos or not tokens
    if needs_bos and vocab.bos is not None and tokens[:1] != [vocab.bos]:
        tokens.insert(0, vocab.bos)
    if not tokens:
        raise ArgumentError("prompt", "", "a text, as the model has no BOS token")
    return tokens


def chat_top_logprobs(logprobs: object, top_logprobs: object, most: int) -> int | None:
    """How many alternatives a chat reports per token; None for no log-probabilities."""
    if logprobs not in (None, True, False) or not isinstance(logprobs, (bool, type(None))):
        raise ArgumentError("logprobs", logprobs, bool, "give the number as `top_logprobs`")
    n = 0 if top_logprobs is None else count(top_logprobs, "top_logprobs", 0, most)
    return n if logprobs else None


def template_variables(variables: Mapping[str, Any] | None) -> dict[str, Any]:
    """The caller's variables for the chat template."""
    if variables is None:
        return {}
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise ArgumentError("chat_template_kwargs", variables, "an object of names")
    taken = {"messages", "tools"} & set(variables)
    if taken:
        raise ArgumentError(
            "chat_template_kwargs", problem=f"has {', '.join(sorted(taken))}",
            remedy="give that as its own argument",
        )  # fmt: skip
    return dict(variables)
