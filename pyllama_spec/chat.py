"""Chat templates: the model's own Jinja text, rendered in a sandbox.

A template comes with the model's file, from whoever made it. It runs without access to Python's
internals and may not change what it is given.

Control tokens in messages: a rendered chat is tokenized with the names of control tokens read as
those tokens. A message that contains such a name would then forge the turns of others. Where one
does, and the places of the messages in the rendered text can be told for certain, their text is
tokenized by itself, as plain text. Where they cannot (the template changes the text of messages),
the whole text is tokenized as it is, as other systems do; RenderedChat.is_split says which.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from pyllama_spec.engine import Model, Vocab
from pyllama_spec.engine.errors import ArgumentError, UnsupportedError

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Around the text of messages, to find it again. Private-use characters: no text of people has
# them, and no template looks for them.
_OPEN, _CLOSE = "\uf8f0\ue0e1\uf8f1", "\uf8f1\ue0e1\uf8f0"

Message = Mapping[str, Any]


class _TemplateRefusal(Exception):  # noqa: N818 - it is raised by a template, for its user
    """What a template's raise_exception() says."""


class _Generation(jinja2.ext.Extension):
    """{% generation %}: marks an assistant's text for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012 - the name and the type are jinja2's

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@dataclass(frozen=True, slots=True)
class ChatPart:
    """A stretch of a rendered chat: the template's own, or the text of a message."""

    text: str
    is_message: bool


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A chat as one text.

    Attributes:
        text: what the template gave.
        parts: the same, cut where messages begin and end; one part if that is not known.
        starts_with_bos: whether the text begins with the name of the BOS token already.

    """

    text: str
    parts: tuple[ChatPart, ...]
    starts_with_bos: bool

    @property
    def is_split(self) -> bool:
        """Whether the places of the messages are known."""
        return len(self.parts) > 1

    def tokenize(self, vocab: Vocab) -> list[int]:
        """Token ids, with one BOS if the model wants it or the template wrote it."""
        whole = vocab.tokenize(self.text, add_special=False, parse_special=True)
        if self.is_split and any(_forges(vocab, part) for part in self.parts):
            # Only then: cut text can give other tokens than whole text, at each cut.
            whole = []
            for part in self.parts:
                whole += vocab.tokenize(
                    part.text, add_special=False, parse_special=not part.is_message
                )
        if vocab.adds_bos and vocab.bos is not None and whole[:1] != [vocab.bos]:
            whole.insert(0, vocab.bos)
        return whole


class ChatTemplate:
    """A compiled template.

    Args:
        source: Jinja text, with what the transformers library gives to templates.
        bos_token, eos_token: their names.
        note: what a user should know about where the template comes from; "" for nothing.

    Raises:
        UnsupportedError: the text is not a template that jinja2 can compile.

    """

    def __init__(
        self, source: str, *, bos_token: str = "", eos_token: str = "", note: str = ""
    ) -> None:
        self.source, self.note = source, note
        self._bos_token, self._eos_token = bos_token, eos_token
        env = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        env.filters["tojson"] = _to_json
        env.globals["raise_exception"] = _raise_exception
        try:
            self._template = env.from_string(source)
        except jinja2.TemplateError as error:
            raise UnsupportedError(
                f"the chat template cannot be compiled ({error}); give another as chat_template="
            ) from None
        self._wants_parts: bool | None = None

    @classmethod
    def of_model(
        cls, model: Model, chat_format: str | None = None, chat_template: str | None = None
    ) -> ChatTemplate:
        """The template to use with a model.

        Args:
            model: whose file is asked.
            chat_format: "chatml", or the name of one of the file's named templates.
            chat_template: Jinja text that is used instead of the file's.

        Raises:
            ArgumentError: both were given, or the file has no template of that name.

        """
        vocab = model.vocab
        tokens = {
            name: vocab.piece(token, special=True).decode(errors="replace")
            for name, token in (("bos_token", vocab.bos), ("eos_token", vocab.eos))
            if token is not None
        }
        if chat_template is not None:
            if chat_format is not None:
                raise ArgumentError("give chat_format or chat_template, not both")
            if not isinstance(chat_template, str):
                raise ArgumentError(f"chat_template takes Jinja text, not {chat_template!r:.60}")
            return cls(chat_template, **tokens)
        if chat_format == "chatml":
            return cls(CHATML, **tokens)
        source = model.chat_template(chat_format)
        if source is not None:
            return cls(source, **tokens)
        if chat_format is not None:
            raise ArgumentError(
                f"chat_format={chat_format!r}: {model.path.name} has no template of that name "
                f"(it has: {', '.join(template_names(model)) or 'none'}); 'chatml' is built in, "
                "any other goes into chat_template= as Jinja text"
            )
        note = f"{model.path.name} has no chat template; ChatML is used, which may not fit it"
        return cls(CHATML, **tokens, note=note)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> RenderedChat:
        """The chat as text.

        Args:
            messages: dicts with "role" and "content": a str, or a list of {"type": "text", ...}.
            add_generation_prompt: end with the beginning of the assistant's answer.
            tools: descriptions of functions, for templates that know them.
            variables: further ones of the template, such as enable_thinking.

        Raises:
            ArgumentError: messages are malformed, or the template refuses them.
            UnsupportedError: a message is more than text, or the template leaves its sandbox.

        """
        checked = _checked(messages)
        now = dt.datetime.now()  # one time for all renderings of this chat

        def strftime_now(form: str) -> str:
            return now.strftime(form)

        given: dict[str, Any] = {
            "bos_token": self._bos_token, "eos_token": self._eos_token,
            "strftime_now": strftime_now, "add_generation_prompt": add_generation_prompt,
            "tools": [dict(tool) for tool in tools] if tools else None, "documents": None,
            **variables,
        }  # fmt: skip
        text = self._run(checked, given)
        starts_with_bos = bool(self._bos_token) and text.startswith(self._bos_token)
        return RenderedChat(text, self._split(text, checked, given), starts_with_bos)

    def _run(self, messages: Sequence[dict[str, Any]], given: Mapping[str, Any]) -> str:
        if self._needs_parts(given):
            messages = [_with_parts(message) for message in messages]
        return self._run_raw(messages, given)

    def _run_raw(self, messages: Sequence[dict[str, Any]], given: Mapping[str, Any]) -> str:
        try:
            return self._template.render(messages=messages, **given)
        except _TemplateRefusal as error:
            raise ArgumentError(f"the chat template refuses these messages: {error}") from None
        except jinja2.exceptions.SecurityError as error:
            raise UnsupportedError(
                f"the chat template does what its sandbox forbids ({error}); give another as "
                "chat_template="
            ) from None
        except (MemoryError, RecursionError) as error:
            raise UnsupportedError(f"the chat template does not come to an end: {error}") from None
        except Exception as error:  # noqa: BLE001 - a template is a program: anything can happen
            raise ArgumentError(
                f"the chat template failed on these messages: {type(error).__name__}: {error}"
            ) from None

    def _needs_parts(self, given: Mapping[str, Any]) -> bool:
        """Whether the template reads content only as a list of parts: tried once."""
        if self._wants_parts is None:
            plain = {"role": "user", "content": _OPEN}
            self._wants_parts = not self._shows(plain, given) and self._shows(
                _with_parts(plain), given
            )
        return self._wants_parts

    def _shows(self, message: dict[str, Any], given: Mapping[str, Any]) -> bool:
        try:
            return _OPEN in self._run_raw([message], given)
        except (ArgumentError, UnsupportedError):
            return False

    def _split(
        self, text: str, messages: Sequence[dict[str, Any]], given: Mapping[str, Any]
    ) -> tuple[ChatPart, ...]:
        """Cuts the text around messages, by rendering it again with marks around them."""
        whole = (ChatPart(text, is_message=False),)
        if _OPEN in text or _CLOSE in text:
            return whole
        try:
            marked = self._run([_marked(message) for message in messages], given)
        except (ArgumentError, UnsupportedError):
            return whole
        # Only if the marks change nothing else is it certain that they mark the same text.
        if marked.replace(_OPEN, "").replace(_CLOSE, "") != text:
            return whole
        return _parts(marked) or whole


def template_names(model: Model) -> list[str]:
    """The names of a model's named templates; the one without a name is not among them."""
    prefix = "tokenizer.chat_template."
    return sorted(key[len(prefix) :] for key in model.metadata if key.startswith(prefix))


def _forges(vocab: Vocab, part: ChatPart) -> bool:
    if not part.is_message:
        return False
    text = part.text
    return vocab.tokenize(text, add_special=False, parse_special=True) != vocab.tokenize(
        text, add_special=False
    )


def _parts(marked: str) -> tuple[ChatPart, ...] | None:
    """The stretches between marks; None where marks are not in pairs."""
    parts: list[ChatPart] = []
    before, *rest = marked.split(_OPEN)
    parts.append(ChatPart(before, is_message=False))
    for piece in rest:
        inside, close, after = piece.partition(_CLOSE)
        if not close or _CLOSE in after:
            return None
        parts += (ChatPart(inside, is_message=True), ChatPart(after, is_message=False))
    if _CLOSE in before:
        return None
    return tuple(part for part in parts if part.text)


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    """The message with marks around its text, inside of the white space that templates trim."""
    content = message.get("content")
    core = content.strip() if isinstance(content, str) else ""
    if not core or not isinstance(content, str):
        return message
    at = content.index(core)
    return {
        **message,
        "content": f"{content[:at]}{_OPEN}{core}{_CLOSE}{content[at + len(core) :]}",
    }


def _with_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def _checked(messages: object) -> list[dict[str, Any]]:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ArgumentError(
            f"messages must be a list of dicts with role and content, not {messages!r:.60}"
        )
    if not messages:
        raise ArgumentError("messages is empty: there is nothing to answer")
    out: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ArgumentError(f"messages[{i}] is not a dict: {message!r:.60}")
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise ArgumentError(f"messages[{i}] has role {role!r}; expected a word such as 'user'")
        content = _text(message.get("content"), i)
        if content is None and not message.get("tool_calls"):
            raise ArgumentError(f"messages[{i}] has no content")
        out.append({**message, "content": content})
    return out


def _text(content: object, i: int) -> str | None:
    """A content as text. None is what assistants' messages with tool calls have."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, (bytes, Mapping)) or not isinstance(content, Sequence):
        raise ArgumentError(
            f"messages[{i}] has content of type {type(content).__name__}; expected a str or a "
            'list of {"type": "text", "text": ...}'
        )
    texts: list[str] = []
    for part in content:
        if not isinstance(part, Mapping) or "type" not in part:
            raise ArgumentError(f"messages[{i}] has a part without a type: {part!r:.60}")
        if part["type"] != "text":
            raise UnsupportedError(
                f"messages[{i}] has a part of type {part['type']!r}; only text is supported"
            )
        if not isinstance(part.get("text"), str):
            raise ArgumentError(f"messages[{i}] has a text part without text: {part!r:.60}")
        texts.append(part["text"])
    return "".join(texts)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: jinja2's own filter escapes what means something to HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise _TemplateRefusal(message)
