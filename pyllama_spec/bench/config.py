"""The configuration of a benchmark: what it measures, on which prompts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pyllama_spec.chat.prompt_file import Prompt, read_prompt_file
from pyllama_spec.drafters import Drafter
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.options import option

OWN_PROMPTS = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BenchConfig(OpenOptions):
    """The options of one benchmark: those of Llama(), with which all sides are opened, and its own.

    Attributes:
        draft: what Llama(draft=) takes; a Drafter stays open.
        also: further drafts, in the same way: each is measured beside the same plain texts.
        prompts: a prompts file; None for the package's own prompts.
        n_tokens: the most tokens to generate per prompt.
        repeats: how often each prompt is measured on each side, beside the warm-up.
        temperature: 0 is greedy; all other sampling options are those of Llama.
        seed: the seed of the draws.
        chat: True renders every prompt with the chat template, False none; None follows the line:
            "messages" are a chat, "prompt" is a text to continue.
        n_ctx: context length; None for what the longest prompt needs.
        command: the command line that says the same, for the record; None for none.
    """

    draft: str | os.PathLike[str] | Drafter = "none"
    also: tuple[str | os.PathLike[str] | Drafter, ...] = ()
    prompts: str | os.PathLike[str] | None = None
    n_tokens: int = option(128, low=2)  # the first token comes from the prompt, in no round
    repeats: int = option(3, low=1)
    temperature: float = option(0.0, low=0)
    # A random one would compare different texts.
    seed: int = option(1, low=0)
    chat: bool | None = None
    n_ctx: int | None = option(None, low=1, part="context")
    command: str | None = None

    def __post_init__(self) -> None:
        self.check()


def load_prompts(path: str | os.PathLike[str] | None = None) -> tuple[Prompt, ...]:
    """Reads a prompts file; by default the package's: 24 prompts in six categories and "field"."""
    return read_prompt_file(OWN_PROMPTS if path is None else Path(path))
