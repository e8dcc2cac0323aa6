"""The methods of `Llama` that its parts call, so that overrides in subclasses take effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pyllama_spec.chat.template import ChatTemplate, Message
from pyllama_spec.llama.caches import BaseLlamaCache
from pyllama_spec.llama.open_model import LlamaState
from pyllama_spec.llama.open_options import ChatHandler
from pyllama_spec.requests.generation import Generation

# Llama and its bases are in modules of this package.
_OF_LLAMA = "pyllama_spec.llama."


def is_overridden(llm: Overridable, method: str) -> bool:
    """Whether a subclass or the object's owner has replaced a method."""
    return method in vars(llm) or not getattr(type(llm), method).__module__.startswith(_OF_LLAMA)


class Overridable(Protocol):
    """`Llama`, as completions and chats see it.

    They get the Llama at each call and do not keep it, and use only the members listed here:
    this is the list of what a subclass may override and have heeded.
    """

    cache: BaseLlamaCache | None
    chat_handler: ChatHandler | None
    model_path: str
    last_n_tokens_size: int
    spm_infill: bool
    verbose: bool

    def n_ctx(self) -> int:
        """The maximum number of tokens of prompt and text together."""

    @property
    def template(self) -> ChatTemplate:
        """The chat template."""

    def generate_chat_steps(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> Generation:
        """A prepared answer."""

    def load_state(self, state: LlamaState) -> None:
        """Restores a saved state; the cache calls it only if a subclass overrides it."""
