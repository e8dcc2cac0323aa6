"""The configuration of a benchmark: what it measures, on which prompts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyllama_spec.chat.prompt_file import Prompt, read_prompt_file
from pyllama_spec.drafters import Drafter
from pyllama_spec.engine.checks import checked
from pyllama_spec.options import option, options_of
from pyllama_spec.speculative import ControllerChoice

OWN_PROMPTS = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """The options of one benchmark.

    Attributes:
        model_path: the target's GGUF file.
        draft: what Llama(draft=) takes; a Drafter stays open.
        also: further drafts, in the same way: each is measured beside the same plain texts.
        prompts: a prompts file; None for the package's own prompts.
        n_tokens: the most tokens to generate per prompt.
        repeats: how often each prompt is measured on each side, beside the warm-up.
        n_draft: the most tokens to draft per round; None for the drafter's own number.
        p_min: end a draft before a token that it gives a lower probability; None for no such limit.
        lookup, controller: see Llama.
        temperature: 0 is greedy; all other sampling options are those of Llama.
        seed: the seed of the draws.
        chat: True renders every prompt with the chat template, False none; None follows the line:
            "messages" are a chat, "prompt" is a text to continue.
        n_threads: CPU threads; None for the physical cores.
        rpc_servers, rpc_timeout: see Llama.
        n_gpu_layers, draft_gpu_layers, devices: see Llama; for the target and for a draft's file.
        offload_kqv, flash_attn, op_offload: see Llama, for both sides.
        n_ctx: context length; None for what the longest prompt needs.
        command: the command line that says the same, for the record; None for none.

    """

    model_path: str | os.PathLike[str]
    draft: str | os.PathLike[str] | Drafter = "none"
    also: tuple[str | os.PathLike[str] | Drafter, ...] = ()
    prompts: str | os.PathLike[str] | None = None
    n_tokens: int = option(128, low=2)  # the first token comes from the prompt, in no round
    repeats: int = option(3, low=1)
    n_draft: int | None = option(None, low=0)
    p_min: float | None = None
    lookup: int | None = None
    controller: ControllerChoice = None
    temperature: float = option(0.0, low=0)
    # A random one would compare different texts.
    seed: int = option(1, low=0)
    chat: bool | None = None
    n_threads: int | None = option(None, low=1)
    n_gpu_layers: int = 0
    draft_gpu_layers: int | None = None
    devices: Sequence[str] | None = None
    rpc_servers: Sequence[str] | None = None
    rpc_timeout: float | None = None
    offload_kqv: bool = True
    flash_attn: bool | None = None
    op_offload: bool = False
    n_ctx: int | None = option(None, low=1)
    command: str | None = None

    def __post_init__(self) -> None:
        for one in options_of(type(self)).values():
            checked(one, getattr(self, one.name))


def load_prompts(path: str | os.PathLike[str] | None = None) -> tuple[Prompt, ...]:
    """Reads a prompts file; by default the package's: 24 prompts in six categories and "field"."""
    return read_prompt_file(OWN_PROMPTS if path is None else Path(path))
