"""The configuration of a benchmark: what it measures, on which prompts."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from pyllama_spec.chat.prompt_file import Prompt, read_prompt_file
from pyllama_spec.drafters import Drafter, NoDrafter, PromptLookup
from pyllama_spec.drafters.suffix import Suffix
from pyllama_spec.engine.checks import count, instance, real, text
from pyllama_spec.errors import ArgumentError
from pyllama_spec.speculative import ControllerChoice

OWN_PROMPTS = Path(__file__).with_name("prompts.jsonl")


# The systems that can be started beside, and what has to be installed for each.
BESIDE = {"llama-server": "xllamacpp", "llama-cpp-python": "llama-cpp-python[server]"}


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
        lookup: see Llama; not used with synthetic_acceptance.
        controller: see Llama; not used with synthetic_acceptance.
        temperature: 0 is greedy; all other sampling options are those of Llama.
        seed: the seed of the draws, and of the coins of synthetic_acceptance.
        chat: True renders every prompt with the chat template, False none; None follows the line:
            "messages" are a chat, "prompt" is a text to continue.
        n_threads: CPU threads; None for the physical cores.
        rpc_servers, rpc_timeout: see Llama.
        n_gpu_layers, draft_gpu_layers, devices: see Llama; for the target and for a draft's file.
        offload_kqv, flash_attn, op_offload: see Llama, for both sides.
        n_ctx: context length; None for what the longest prompt needs.
        synthetic_acceptance: drafted token i is right with probability [i - 1], given that the
            tokens before it were right. This measures speed, not the draft's quality.
        peer: the address of an OpenAI-compatible server that gets the same prompts; None for none.
        beside: "llama-server" or "llama-cpp-python": starts this server for the same file and sends
            it the same prompts, with the same first draft if it supports that; None for none.
        beside_python: the interpreter that has its package; None for this one.
        names: the arguments of -d for draft and for each of also, used by `command`; empty for the
            drafters' own names.

    Raises:
        ArgumentError: a value is out of range, or two contradict each other.

    """

    model_path: str | os.PathLike[str]
    draft: str | os.PathLike[str] | Drafter = "none"
    also: tuple[str | os.PathLike[str] | Drafter, ...] = ()
    prompts: str | os.PathLike[str] | None = None
    n_tokens: int = 128
    repeats: int = 3
    n_draft: int | None = None
    p_min: float | None = None
    lookup: int | None = None
    controller: ControllerChoice = None
    temperature: float = 0.0
    seed: int = 1
    chat: bool | None = None
    n_threads: int | None = None
    n_gpu_layers: int = 0
    draft_gpu_layers: int | None = None
    devices: tuple[str, ...] | None = None
    rpc_servers: tuple[str, ...] | None = None
    rpc_timeout: float | None = None
    offload_kqv: bool = True
    flash_attn: bool | None = None
    op_offload: bool = False
    n_ctx: int | None = None
    synthetic_acceptance: tuple[float, ...] = ()
    peer: str | None = None
    beside: str | None = None
    beside_python: str | os.PathLike[str] | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count(self.n_tokens, "n_tokens", 2)  # the first token comes from the prompt, in no round
        count(self.repeats, "repeats", 1)
        # A seed of one's own for each run would compare different texts.
        count(self.seed, "seed", 0, 2**31 - 1)
        real(self.temperature, "temperature", 0.0)
        for name, low in (("n_draft", 0), ("n_threads", 1), ("n_ctx", 1)):
            if getattr(self, name) is not None:
                count(getattr(self, name), name, low)
        instance(self.chat, (bool, type(None)), "chat")
        instance(self.also, tuple, "also", " of drafts")
        instance(self.names, tuple, "names", " of str")
        for i, name in enumerate(self.names):
            text(name, f"names[{i}]")
        if self.names and len(self.names) != 1 + len(self.also):
            raise ArgumentError(
                f"names has {len(self.names)} names for {1 + len(self.also)} drafts; give one each"
            )
        check_probabilities(self.synthetic_acceptance)
        instance(self.beside, (str, type(None)), "beside")
        if self.beside is not None and self.beside not in BESIDE:
            raise ArgumentError(f"beside={self.beside!r} is not one of {', '.join(BESIDE)}")
        if self.beside is not None and self.peer is not None:
            raise ArgumentError(
                "peer names a running server, and beside starts one: give only one of them"
            )
        if self.beside is None and self.beside_python is not None:
            raise ArgumentError("beside_python needs beside: name the system too")
        if self.beside is not None and (self.devices or self.rpc_servers):
            raise ArgumentError(
                "beside starts a server that knows n_gpu_layers only: omit devices and rpc_servers"
            )
        n = len(self.synthetic_acceptance)
        if n and self.also:
            raise ArgumentError(
                f"synthetic_acceptance measures one draft, and {1 + len(self.also)} are given: "
                "give one"
            )
        if n and self.lookup:
            raise ArgumentError(
                f"lookup={self.lookup}: synthetic_acceptance measures rounds of the draft, and "
                "copies nothing; leave one of them out"
            )
        if n and self.n_draft is not None and self.n_draft > n:
            raise ArgumentError(
                f"n_draft={self.n_draft}, and synthetic_acceptance has {n} probabilities; give one "
                "per drafted token"
            )

    @property
    def peer_name(self) -> str | None:
        """The address of the other server, or its name where it is started here; None for none."""
        return self.peer if self.beside is None else self.beside

    @property
    def max_draft(self) -> int | None:
        """The maximum number of tokens to draft per round, as far as the options fix it."""
        n = len(self.synthetic_acceptance)
        return n if n and self.n_draft is None else self.n_draft

    @property
    def command(self) -> str | None:
        """The command line of this measurement; None for a draft that no option names."""
        words = ["pyllama-spec", "bench", "-m", os.fspath(self.model_path)]
        for name in self.names or map(draft_option, (self.draft, *self.also)):
            if name is None:
                return None
            words += ["-d", name]
        if self.prompts is not None:
            words += ["--prompts", os.fspath(self.prompts)]
        words += ["-n", str(self.n_tokens), "--repeat", str(self.repeats)]
        optional = (
            ("--n-draft", self.n_draft), ("--p-min", self.p_min), ("--lookup", self.lookup),
            ("--controller", self.controller),
            ("-t", self.n_threads), ("-c", self.n_ctx), ("--peer", self.peer),
            ("--beside", self.beside), ("--beside-python", self.beside_python),
            ("-ngl", self.n_gpu_layers or None), ("-ngld", self.draft_gpu_layers),
            ("-dev", ",".join(self.devices) if self.devices else None),
            ("--rpc-servers", ",".join(self.rpc_servers) if self.rpc_servers else None),
            ("--rpc-timeout", self.rpc_timeout),
            ("--flash-attn", None if self.flash_attn is None else _switch(self.flash_attn)),
        )  # fmt: skip
        for option, value in optional:
            words += [option, str(value)] if value is not None else []
        words += [] if self.offload_kqv else ["--no-offload-kqv"]
        words += ["--op-offload"] if self.op_offload else []
        if self.chat is not None:
            words.append("--chat" if self.chat else "--no-chat")
        if self.synthetic_acceptance:
            words += [
                "--synthetic-acceptance",
                ",".join(f"{p:g}" for p in self.synthetic_acceptance),
            ]
        words += ["--temp", f"{self.temperature:g}", "--seed", str(self.seed)]
        return shlex.join(words)


def draft_option(draft: str | os.PathLike[str] | Drafter) -> str | None:
    """The value of `-d` for a draft; None for an object that no option names.

    A file's drafter has its own options, and a user's drafter has no name on the command line.
    """
    if not isinstance(draft, Drafter):
        return os.fspath(draft)
    return draft.name if type(draft) in (NoDrafter, PromptLookup, Suffix) else None


def draft_file(draft: object, depth: int = 4) -> Path | None:
    """The file of a draft, also inside a wrapper; None for none.

    Args:
        draft: what Llama(draft=) takes.
        depth: how many levels of wrapped drafters to search.

    """
    if isinstance(draft, (str, os.PathLike)):
        return Path(draft) if Path(draft).is_file() else None
    if not isinstance(draft, Drafter) or draft.wants_head:  # a head lies in the target's file
        return None
    path = draft.describe().get("path")
    if path is not None and Path(path).is_file():
        return Path(path)
    inner = (one for one in vars(draft).values() if isinstance(one, Drafter) and depth)
    return next((file for one in inner if (file := draft_file(one, depth - 1))), None)


def _switch(is_on: bool) -> str:
    return "on" if is_on else "off"


def check_probabilities(probabilities: object) -> None:
    """Refuses a value that is not a tuple of numbers from 0 to 1.

    Raises:
        ArgumentError: the message names the wrong value.

    """
    instance(probabilities, tuple, "synthetic_acceptance", ", such as (0.8, 0.6)")
    assert isinstance(probabilities, tuple)
    for i, p in enumerate(probabilities):
        if not 0.0 <= real(p, f"synthetic_acceptance[{i}]") <= 1.0:
            raise ArgumentError(f"synthetic_acceptance[{i}]={p!r} is not a probability: 0 .. 1")


def load_prompts(path: str | os.PathLike[str] | None = None) -> tuple[Prompt, ...]:
    """Reads a prompts file; by default the package's: 24 prompts in six categories and "field".

    Raises:
        ArgumentError: the file cannot be read, holds no prompt, or a line is malformed; the message
            names the line.

    """
    return read_prompt_file(OWN_PROMPTS if path is None else Path(path))
