"""Llama and the arguments of its requests."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine.checks import count
from pyllama_spec.llama.caches import BaseLlamaCache, LlamaCache, LlamaDiskCache, LlamaRAMCache
from pyllama_spec.llama.llama import BaseLlamaTokenizer, Llama, LlamaState, LlamaTokenizer
from pyllama_spec.llama.open_model import LlamaDraftModel
from pyllama_spec.llama_cpp.llama_grammar import LlamaGrammar

__all__ = [
    "BaseLlamaCache",
    "BaseLlamaTokenizer",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaDraftModel",
    "LlamaGrammar",
    "LlamaRAMCache",
    "LlamaState",
    "LlamaTokenizer",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
]

Ids = npt.NDArray[np.intc]
Scores = npt.NDArray[np.single]
LogitsProcessor = Callable[[Ids, Scores], Any]
StoppingCriteria = Callable[[Ids, Scores], bool]


class LogitsProcessorList(list[LogitsProcessor]):
    """Functions that change logits, applied one after the other."""

    def __call__(self, input_ids: Ids, scores: Scores) -> Any:
        """Applies each function to the result of the one before."""
        processed: Any = scores
        for processor in self:
            processed = processor(input_ids, processed)
        return processed


class StoppingCriteriaList(list[StoppingCriteria]):
    """Functions any of which can end a text."""

    def __call__(self, input_ids: Ids, logits: Scores) -> bool:
        """Calls all functions, since each may keep a count."""
        ends = [criterion(input_ids, logits) for criterion in self]
        return any(ends)


class MinTokensLogitsProcessor:
    """Forbids end tokens before the text has a minimum number of tokens."""

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens, self.token_eos = count(min_tokens, "min_tokens"), token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        """Forbids end tokens while the text is too short; the first call sees the prompt alone."""
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores


def __getattr__(name: str) -> Any:
    # Types of answers: a program that asks for none does without them.
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("pyllama_spec.llama_cpp.llama_types"), name)
