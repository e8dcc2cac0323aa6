"""The chat formats that llama-cpp-python names, and those that programs register.

The templates are Jinja, so that a message cannot forge a turn in them either (chat/template.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.llama.open_options import ChatHandler


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A named chat format."""

    source: str  # Jinja
    stop: tuple[str, ...] = ()  # strings that end an answer, beside the model's own end


def _turns(
    user: str,
    assistant: str,
    *,
    head: str = "",
    between: str = "",
    after: str = "",
    after_answer: str | None = None,
    system: str | None = None,
    end: str | None = None,
    end_between: str = "",
    default_system: str = "",
) -> str:
    """The Jinja text of turns that all have the same form.

    `head` begins the chat, with {system} for the first system message; `user`, `assistant` and
    `system` begin turns. `between` follows a turn's beginning, `after` a turn, `after_answer` every
    second one. `end`, or `assistant`, asks for the answer, with `end_between` after it.
    """
    before, has_system, after_system = head.partition("{system}")
    parts = [f"{{% set ns = namespace(system={default_system!r}, i=0, found=false) %}}"]
    parts.append(
        "{% for m in messages if m.role == 'system' and not ns.found %}"
        "{% set ns.system = m.content or '' %}{% set ns.found = true %}{% endfor %}"
    )
    parts.append(f"{{{{ {before!r} }}}}")
    if has_system:
        parts.append(f"{{{{ ns.system ~ {after_system!r} }}}}")
    roles = {"user": user, "assistant": assistant, **({"system": system} if system else {})}
    parts.append(f"{{% set roles = {roles!r} %}}")
    second = after if after_answer is None else after_answer
    parts.append(
        "{% for m in messages if m.role in roles %}"
        f"{{{{ roles[m.role] ~ ({between!r} ~ m.content ~ "
        f"({second!r} if ns.i % 2 else {after!r}) if m.content else {between.rstrip()!r}) }}}}"
        "{% set ns.i = ns.i + 1 %}{% endfor %}"
    )
    ending = (assistant if end is None else end) + end_between
    if ending:
        parts.append(f"{{% if add_generation_prompt %}}{{{{ {ending!r} }}}}{{% endif %}}")
    return "".join(parts)


_LLAMA_2 = (
    "{% set ns = namespace(system='', i=0) %}"
    "{% for m in messages if m.role == 'system' and not ns.system %}"
    "{% set ns.system = m.content or '' %}{% endfor %}"
    "{{ ('[INST] <<SYS>>\n' ~ ns.system ~ '\n<</SYS>>') if ns.system else '' }}{{ ' ' }}"
    "{% for m in messages if m.role in ('user', 'assistant') %}"
    "{% set role = '<s>[INST]' if m.role == 'user' else '[/INST]' %}"
    "{% set sep = '</s>' if ns.i % 2 else ' ' %}"
    "{% if ns.system and ns.i == 0 %}{{ (m.content or '') ~ sep }}"
    "{% elif m.content %}{{ role ~ m.content ~ ' ' ~ sep }}{% else %}{{ role ~ ' ' }}{% endif %}"
    "{% set ns.i = ns.i + 1 %}{% endfor %}{{ '[/INST]' }}"
)
_MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' and m.content is not none %}"
    "{{ '[INST] ' ~ m.content }}{% elif m.role == 'assistant' and m.content is not none %}"
    "{{ ' [/INST]' ~ m.content ~ '</s>' }}{% endif %}{% endfor %}{{ ' [/INST]' }}"
)
# ChatML with tools, in the way of the Hermes models, which the engine's parsers know.
_CHATML_TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content ~ '\n\n' }}{% endif %}"
    "{{ '# Tools\n\nYou may call one or more functions. Their signatures are within "
    "<tools></tools>:\n<tools>' }}"
    "{% for tool in tools %}{{ '\n' ~ (tool | tojson) }}{% endfor %}"
    "{{ '\n</tools>\n\nFor each call answer with a JSON object within <tool_call></tool_call>:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call><|im_end|>\n' }}"
    "{% elif messages[0].role == 'system' %}"
    "{{ '<|im_start|>system\n' ~ messages[0].content ~ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' ~ m.content ~ '\n</tool_response><|im_end|>\n' }}"
    "{% elif m.role == 'assistant' and m.tool_calls %}"
    "{{ '<|im_start|>assistant' }}{% if m.content %}{{ '\n' ~ m.content }}{% endif %}"
    "{% for call in m.tool_calls %}{% set f = call.function %}"
    '{{ \'\n<tool_call>\n{"name": "\' ~ f.name ~ \'", "arguments": \' }}'
    "{% if f.arguments is string %}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}{% endif %}"
    "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif not (loop.first and m.role == 'system') %}"
    "{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions."
)
_HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"

FORMATS: dict[str, NamedFormat] = {
    "llama-2": NamedFormat(_LLAMA_2),
    "llama-3": NamedFormat(
        _turns(
            _HEADER.format("user"), _HEADER.format("assistant"), after="<|eot_id|>",
            system=_HEADER.format("system"),
        ), ("<|eot_id|>",),
    ),
    "alpaca": NamedFormat(
        _turns(
            "### Instruction:", "### Response:", head="{system}\n\n", between=" ", after="\n\n",
            after_answer="</s>", end="",
        )
    ),
    "qwen": NamedFormat(
        _turns(
            "<|im_start|>user\n", "<|im_start|>assistant\n", after="<|im_end|>\n",
            head="<|im_start|>system\n{system}<|im_end|>\n",
            default_system="You are a helpful assistant.",
        ), ("<|endoftext|>",),
    ),
    "vicuna": NamedFormat(
        _turns(
            "USER:", "ASSISTANT:", head=_VICUNA + " ", between=" ", after=" ", after_answer="</s>"
        )
    ),
    "llava-1-5": NamedFormat(  # Vicuna's turns after the program's own system message
        _turns(
            "USER:", "ASSISTANT:", head="{system} ", between=" ", after=" ", after_answer="</s>",
            default_system=_VICUNA.replace("user", "human"),
        )
    ),
    "zephyr": NamedFormat(
        _turns(
            "<|user|>\n", "<|assistant|>\n", head="<|system|>\n{system}</s>\n", between="\n",
            after="</s>\n", end_between="\n",
        ), ("</s>",),
    ),
    "chatml": NamedFormat(
        _turns(
            "<|im_start|>user\n", "<|im_start|>assistant\n", after="<|im_end|>\n",
            system="<|im_start|>system\n",
        ), ("<|im_end|>",),
    ),
    "mistral-instruct": NamedFormat(_MISTRAL, ("</s>",)),
    "openchat": NamedFormat(
        _turns(
            "GPT4 Correct User: ", "<|end_of_turn|>GPT4 Correct Assistant: ", between="\n",
            head="{system}<|end_of_turn|><|end_of_turn|>\n", after="<|end_of_turn|>\n",
            end_between="\n",
        ), ("<|end_of_turn|>",),
    ),
    "moondream": NamedFormat(_turns("Question: ", "Answer:", after="\n\n")),
    "obsidian": NamedFormat(
        _turns(
            "<|im_start|>user\n", "<|im_start|>assistant\n", after="\n###\n",
            system="<|im_start|>system\n",
        ), ("###",),
    ),
    "gemma": NamedFormat(
        _turns(
            "<start_of_turn>user\n", "<start_of_turn>model\n", after="<end_of_turn>\n"
        ), ("<end_of_turn>\n",),
    ),
    "chatml-function-calling": NamedFormat(_CHATML_TOOLS, ("<|im_end|>",)),
}  # fmt: skip
# Formats of llama-cpp-python that are missing here.
_REFUSED = (
    "baichuan", "baichuan-2", "chatglm3", "functionary", "functionary-v1", "functionary-v2",
    "intel", "mistrallite", "oasst_llama", "open-orca", "openbuddy", "phind", "pygmalion",
    "redpajama-incite", "saiga", "snoozy",
)  # fmt: skip
# Handlers that programs have registered, by name.
HANDLERS: dict[str, ChatHandler] = {}


def named_format(name: str) -> NamedFormat | None:
    """The chat format of a name."""
    if name in _REFUSED:
        raise UnsupportedError(
            "is not supported", param="chat_format", value=name,
            remedy="leave chat_format out for the template of the model's file, which reads calls "
            "too, or give its turns as chat_template",
        )  # fmt: skip
    return FORMATS.get(name)


def register_chat_completion_handler(
    name: str, overwrite: bool = False
) -> Callable[[ChatHandler], ChatHandler]:
    """A decorator that registers a function to answer the chats of Llama(chat_format=name)."""

    def register(handler: ChatHandler) -> ChatHandler:
        if not overwrite and (name in HANDLERS or name in FORMATS):
            raise ArgumentError(
                "name", name, problem="exists already", remedy="`overwrite=True` replaces it"
            )
        HANDLERS[name] = handler
        return handler

    return register
