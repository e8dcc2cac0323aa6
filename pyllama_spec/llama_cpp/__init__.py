"""llama-cpp-python's names: `from pyllama_spec.llama_cpp import Llama, LlamaGrammar`.

For libraries that say `import llama_cpp` themselves:

    import pyllama_spec.llama_cpp
    pyllama_spec.llama_cpp.install()  # before they are imported

What is the same, what differs and what is missing: docs/moving.md. The C functions that
llama-cpp-python hands out by ctypes are not here; pyllama_spec.engine has what they are for.
"""

from __future__ import annotations

from typing import Any

from pyllama_spec.llama.their_draft import LlamaPromptLookupDecoding
from pyllama_spec.llama_cpp import llama_cpp as _numbers
from pyllama_spec.llama_cpp.install import install, uninstall
from pyllama_spec.llama_cpp.llama import (
    BaseLlamaCache,
    Llama,
    LlamaCache,
    LlamaDiskCache,
    LlamaDraftModel,
    LlamaGrammar,
    LlamaRAMCache,
    LlamaState,
    LogitsProcessor,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)
from pyllama_spec.llama_cpp.llama_tokenizer import (
    BaseLlamaTokenizer,
    LlamaHFTokenizer,
    LlamaTokenizer,
)
from pyllama_spec.llama_cpp.llama_types import *  # noqa: F403 - its names are handed on, as there

# The version of llama-cpp-python whose names these are: programs ask for it.
__version__ = "0.3.36"

__all__ = [
    "BaseLlamaCache",
    "BaseLlamaTokenizer",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaDraftModel",
    "LlamaGrammar",
    "LlamaHFTokenizer",
    "LlamaPromptLookupDecoding",
    "LlamaRAMCache",
    "LlamaState",
    "LlamaTokenizer",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
    "install",
    "uninstall",
]


def __getattr__(name: str) -> Any:
    return getattr(_numbers, name)
