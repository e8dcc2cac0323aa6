"""Chat formats by name and of programs, and their handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyllama_spec.chat.template import CHATML, ChatTemplate, RenderedChat
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.llama.chat_formats import (
    FORMATS,
    HANDLERS,
    register_chat_completion_handler,
)
from pyllama_spec.llama.llama import downloaded
from pyllama_spec.llama.open_options import ChatHandler
from pyllama_spec.requests.options import stops_of

__all__ = [
    "CHATML_BOS_TOKEN",
    "CHATML_CHAT_TEMPLATE",
    "CHATML_EOS_TOKEN",
    "ChatFormatter",
    "ChatFormatterResponse",
    "Jinja2ChatFormatter",
    "LlamaChatCompletionHandler",
    "LlamaChatCompletionHandlerNotFoundException",
    "LlamaChatCompletionHandlerRegistry",
    "chat_formatter_to_chat_completion_handler",
    "get_chat_completion_handler",
    "hf_tokenizer_config_to_chat_completion_handler",
    "hf_tokenizer_config_to_chat_formatter",
    "register_chat_completion_handler",
    "register_chat_format",
]

LlamaChatCompletionHandler = ChatHandler
CHATML_CHAT_TEMPLATE = CHATML
CHATML_BOS_TOKEN, CHATML_EOS_TOKEN = "<s>", "<|im_end|>"
# What a chat is given that completions know nothing of.
_OF_CHATS = ("functions", "function_call", "tools", "tool_choice", "messages", "llama")


class LlamaChatCompletionHandlerNotFoundException(Exception):  # noqa: N818 - their name
    """There is no chat format of that name."""


@dataclass
class ChatFormatterResponse:
    """The result of a chat formatter.

    Attributes:
        prompt: the chat as text.
        stop: the strings that end an answer.
        stopping_criteria: functions that end an answer.
        added_special: whether the text already begins with the name of the BOS token.
    """

    prompt: str
    stop: str | list[str] | None = None
    stopping_criteria: Any = None
    added_special: bool = False


class ChatFormatter(Protocol):
    """f(messages=...) -> ChatFormatterResponse."""

    def __call__(self, *, messages: Sequence[Any], **kwargs: Any) -> ChatFormatterResponse:
        """Renders the chat as text."""


class Jinja2ChatFormatter:
    """A chat formatter from Jinja text."""

    def __init__(
        self,
        template: str,
        eos_token: str,
        bos_token: str,
        add_generation_prompt: bool = True,
        stop_token_ids: Sequence[int] | None = None,
    ) -> None:
        self.template, self.eos_token, self.bos_token = template, eos_token, bos_token
        self.add_generation_prompt = add_generation_prompt
        self.stop_token_ids = None if stop_token_ids is None else set(stop_token_ids)
        self._template = ChatTemplate(template, bos_token=bos_token, eos_token=eos_token)

    def render(self, messages: Sequence[Any], **variables: Any) -> RenderedChat:
        """Renders the chat, with the caller's text located in it."""
        return self._template.render(
            messages, add_generation_prompt=self.add_generation_prompt, **variables
        )

    def __call__(self, *, messages: Sequence[Any], **kwargs: Any) -> ChatFormatterResponse:
        """See ChatFormatter."""
        criteria: Any = None
        if self.stop_token_ids is not None:
            ends = self.stop_token_ids

            def ends_text(tokens: Any, logits: Any) -> bool:
                del logits
                return len(tokens) > 0 and int(tokens[-1]) in ends

            criteria = [ends_text]
        text = self.render(messages, **kwargs).text
        stop = [self.eos_token] if self.eos_token else []
        return ChatFormatterResponse(text, stop, criteria, added_special=True)

    def to_chat_handler(self) -> ChatHandler:
        """A function that answers chats in this format."""
        return chat_formatter_to_chat_completion_handler(self)


def chat_formatter_to_chat_completion_handler(chat_formatter: ChatFormatter) -> ChatHandler:
    """A function that answers chats in a formatter's format.

    What the formatter gives is one text: names of control tokens in messages are read as those
    tokens, as in llama-cpp-python. Llama(chat_template=...) tells them apart.
    """

    def handler(
        *,
        llama: Any,
        messages: Sequence[Any],
        stop: Any = (),
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        stream: bool = False,
        **options: Any,
    ) -> Any:
        if options.get("tools") or options.get("functions"):
            raise UnsupportedError(
                "a registered chat format does not support tools; omit them, or use chat_format= "
                "or chat_template="
            )
        for_template = {name: options.pop(name, None) for name in _OF_CHATS[:4]}
        formatted = chat_formatter(messages=messages, **for_template)
        tokens = llama.tokenize(
            formatted.prompt.encode("utf-8"), add_bos=not formatted.added_special, special=True
        )
        answer = llama.create_completion(
            tokens, stop=[*stops_of(stop), *stops_of(formatted.stop)], stream=stream,
            logprobs=(top_logprobs or 0) if logprobs else None,
            stopping_criteria=formatted.stopping_criteria, **options,
        )  # fmt: skip
        return _chat_chunks(answer) if stream else _chat(answer)

    return handler


def _chat_logprobs(logprobs: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if logprobs is None:
        return None
    rows = zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    )
    content = [
        {
            "token": token, "bytes": None, "logprob": logprob,
            "top_logprobs": [
                {"token": other, "logprob": value, "bytes": None} for other, value in top.items()
            ],
        }
        for token, logprob, top in rows
    ]  # fmt: skip
    return {"content": content, "refusal": None}


def _chat(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Turns a completion into a chat completion."""
    choices = [
        {
            "index": choice["index"], "message": {"role": "assistant", "content": choice["text"]},
            "finish_reason": choice["finish_reason"],
            "logprobs": _chat_logprobs(choice["logprobs"]),
        }
        for choice in answer["choices"]
    ]  # fmt: skip
    return {
        **answer, "id": f"chat{answer['id']}", "object": "chat.completion", "choices": choices,
    }  # fmt: skip


def _chat_chunks(chunks: Iterator[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Turns the chunks of a completion into those of a chat completion."""

    def made(chunk: Mapping[str, Any], delta: dict[str, Any] | None = None) -> dict[str, Any]:
        choices = [
            {
                "index": one["index"], "finish_reason": one["finish_reason"],
                "delta": delta or ({} if one["finish_reason"] else {"content": one["text"]}),
                "logprobs": _chat_logprobs(one["logprobs"]),
            }
            for one in chunk["choices"]
        ]  # fmt: skip
        own = {"id": f"chat{chunk['id']}", "object": "chat.completion.chunk"}
        return {**chunk, **own, "choices": choices}

    for i, chunk in enumerate(chunks):
        if i == 0:
            begun = [{**one, "finish_reason": None, "logprobs": None} for one in chunk["choices"]]
            yield made({**chunk, "choices": begun}, {"role": "assistant"})
        yield made(chunk)


def register_chat_format(name: str) -> Callable[[ChatFormatter], ChatFormatter]:
    """A decorator that registers a formatter for Llama(chat_format=name)."""

    def register(formatter: ChatFormatter) -> ChatFormatter:
        register_chat_completion_handler(name)(chat_formatter_to_chat_completion_handler(formatter))
        return formatter

    return register


class LlamaChatCompletionHandlerRegistry:
    """The handlers that programs have registered."""

    def register_chat_completion_handler(
        self, name: str, chat_handler: ChatHandler, overwrite: bool = False
    ) -> None:
        """Registers a handler."""
        register_chat_completion_handler(name, overwrite)(chat_handler)

    def unregister_chat_handler(self, name: str) -> None:
        """Removes a handler."""
        if HANDLERS.pop(name, None) is None:
            raise ValueError(f"no chat handler {name!r} is registered")

    def get_chat_completion_handler_by_name(self, name: str) -> ChatHandler:
        """The registered or built-in handler of a name."""
        if name in HANDLERS:
            return HANDLERS[name]
        if name not in FORMATS:
            raise LlamaChatCompletionHandlerNotFoundException(
                f"chat format {name!r} is unknown; known are "
                f"{', '.join(sorted({*FORMATS, *HANDLERS}))}"
            )
        return chat_formatter_to_chat_completion_handler(_named(name))


def get_chat_completion_handler(name: str) -> ChatHandler:
    """The handler of that name."""
    return LlamaChatCompletionHandlerRegistry().get_chat_completion_handler_by_name(name)


def hf_tokenizer_config_to_chat_formatter(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True
) -> ChatFormatter:
    """A formatter from a tokenizer_config.json."""
    for key in ("chat_template", "bos_token", "eos_token"):
        if not isinstance(tokenizer_config.get(key), str):
            raise ArgumentError("tokenizer_config", problem=f"has no text as {key}")
    template = ChatTemplate(
        tokenizer_config["chat_template"],
        bos_token=tokenizer_config["bos_token"], eos_token=tokenizer_config["eos_token"],
    )  # fmt: skip

    def formatter(*, messages: Sequence[Any], **kwargs: Any) -> ChatFormatterResponse:
        # Templates that make no use of add_generation_prompt begin an answer by an empty one.
        chat = (
            [*messages, {"role": "assistant", "content": ""}] if add_generation_prompt else messages
        )
        text = template.render(chat, add_generation_prompt=False).text
        return ChatFormatterResponse(text, tokenizer_config["eos_token"], added_special=True)

    return formatter


def hf_tokenizer_config_to_chat_completion_handler(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True
) -> ChatHandler:
    """A function that answers chats in the format of a tokenizer_config.json."""
    return chat_formatter_to_chat_completion_handler(
        hf_tokenizer_config_to_chat_formatter(tokenizer_config, add_generation_prompt)
    )


def guess_chat_format_from_gguf_metadata(metadata: Mapping[str, str]) -> str | None:
    """The name chatml for that template; None for others, since a file's own template is used."""
    return "chatml" if metadata.get("tokenizer.chat_template") == CHATML_CHAT_TEMPLATE else None


def _named(name: str) -> ChatFormatter:
    form = FORMATS[name]

    def formatter(messages: Sequence[Any], **kwargs: Any) -> ChatFormatterResponse:
        text = ChatTemplate(form.source).render(messages).text
        return ChatFormatterResponse(text, form.stop[0] if form.stop else None)

    formatter.__name__ = name
    return formatter


format_llama2, format_llama3 = _named("llama-2"), _named("llama-3")
format_chatml, format_mistral_instruct = _named("chatml"), _named("mistral-instruct")
format_alpaca, format_qwen, format_zephyr = _named("alpaca"), _named("qwen"), _named("zephyr")
format_gemma, format_openchat, format = _named("gemma"), _named("openchat"), _named("vicuna")


# The form of chats with pictures, by their name of it; None for that of the model's file.
PICTURE_FORMATS: Mapping[str, str | None] = {
    "llava-1-5": "llava-1-5", "llava-1-6": "llava-1-5", "obsidian": "obsidian",
    "moondream": "moondream", "nanollava": "chatml", "llama-3-vision-alpha": "llama-3",
    "minicpm-v-2.6": None, "qwen2.5-vl": None, "gemma4": None, "mtmd": None,
}  # fmt: skip


class MTMDChatHandler:
    """A handler of pictures: Llama(chat_handler=) takes what it says, and answers by itself.

    Args:
        clip_model_path: the projector, mmproj_path of Llama().
        verbose: nothing.
        use_gpu: mmproj_offload of Llama().
    """

    chat_format: str | None = None

    def __init__(self, clip_model_path: str, verbose: bool = True, use_gpu: bool = True) -> None:
        if not Path(clip_model_path).exists():
            raise ArgumentError("clip_model_path", clip_model_path, "a file that exists")
        self.clip_model_path, self.verbose, self.use_gpu = clip_model_path, verbose, use_gpu

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None,
        local_dir: str | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | None = None,
        **keywords: Any,
    ) -> Any:
        """A handler of a file of the Hugging Face hub; see Llama.from_pretrained()."""
        del local_dir_use_symlinks
        return cls(str(downloaded(repo_id, (filename,), local_dir, cache_dir)), **keywords)

    def __call__(self, **options: Any) -> Any:
        """Refuses: a Llama that is open takes no projector."""
        raise UnsupportedError("give this handler to Llama(), as chat_handler")


def _handler(name: str, chat_format: str) -> type[MTMDChatHandler]:
    return type(name, (MTMDChatHandler,), {"chat_format": PICTURE_FORMATS[chat_format]})


Llava15ChatHandler = _handler("Llava15ChatHandler", "llava-1-5")
Llava16ChatHandler = _handler("Llava16ChatHandler", "llava-1-6")
ObsidianChatHandler = _handler("ObsidianChatHandler", "obsidian")
MoondreamChatHandler = _handler("MoondreamChatHandler", "moondream")
NanoLlavaChatHandler = _handler("NanoLlavaChatHandler", "nanollava")
Llama3VisionAlphaChatHandler = _handler("Llama3VisionAlphaChatHandler", "llama-3-vision-alpha")
Llama3VisionAlpha = Llama3VisionAlphaChatHandler
MiniCPMv26ChatHandler = _handler("MiniCPMv26ChatHandler", "minicpm-v-2.6")
Qwen25VLChatHandler = _handler("Qwen25VLChatHandler", "qwen2.5-vl")
Gemma3ChatHandler = _handler("Gemma3ChatHandler", "mtmd")
Gemma4ChatHandler = _handler("Gemma4ChatHandler", "gemma4")
