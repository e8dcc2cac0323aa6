"""llama-cpp-python's names: `from pyllama_spec.llama_cpp import Llama, LlamaGrammar`.

For libraries that say `import llama_cpp` themselves:

    import pyllama_spec.llama_cpp
    pyllama_spec.llama_cpp.install()  # before they are imported

What is the same, what differs and what is missing: docs/moving.md. The C functions that
llama-cpp-python hands out by ctypes are not here; pyllama_spec.engine has what they are for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from pyllama_spec.llama.open_model import LlamaPromptLookupDecoding
from pyllama_spec.llama_cpp import llama
from pyllama_spec.llama_cpp.llama import *  # noqa: F403 - all that the module llama has
from pyllama_spec.llama_cpp.llama_tokenizer import LlamaHFTokenizer

# The version of llama-cpp-python whose names these are: programs ask for it.
__version__ = "0.3.36"

_PARTS = (
    "llama", "llama_cache", "llama_chat_format", "llama_cpp", "llama_grammar", "llama_speculative",
    "llama_tokenizer", "llama_types",
)  # fmt: skip

__all__ = ["LlamaHFTokenizer", "LlamaPromptLookupDecoding", "install"]
__all__ += llama.__all__


def install() -> None:
    """Makes `import llama_cpp` give pyllama_spec.llama_cpp, in this process.

    Call it before any library that imports llama_cpp is imported. May be called twice.
    """
    ours, there = sys.modules[__name__], sys.modules.get("llama_cpp")
    if there is not None and there is not ours:
        where = getattr(there, "__file__", "somewhere")
        raise ImportError(
            f"llama_cpp was imported already, from {where}: call pyllama_spec.llama_cpp.install() "
            "before anything that imports it"
        )
    # All of them at once: half of theirs and half of ours would not fit together.
    modules = {part: import_module(f"{__name__}.{part}") for part in _PARTS}
    sys.modules["llama_cpp"] = ours
    for part, module in modules.items():
        sys.modules[f"llama_cpp.{part}"] = module


def __getattr__(name: str) -> Any:
    # Types of answers, and numbers: a program that asks for none does without them.
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _PARTS:
        return import_module(f"{__name__}.{name}")
    types = import_module(f"{__name__}.llama_types")
    numbers = import_module(f"{__name__}.llama_cpp")
    if name in globals():  # one of these two
        return globals()[name]
    return getattr(types if hasattr(types, name) else numbers, name)
