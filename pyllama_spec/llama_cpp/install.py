"""Replaces llama-cpp-python by this package for libraries that import llama_cpp."""

from __future__ import annotations

import importlib
import sys

PARTS = (
    "llama", "llama_cache", "llama_chat_format", "llama_cpp", "llama_grammar", "llama_speculative",
    "llama_tokenizer", "llama_types",
)  # fmt: skip
_OURS = __name__.rpartition(".")[0]


def install() -> None:
    """Makes `import llama_cpp` give pyllama_spec.llama_cpp, in this process.

    Call it before any library that imports llama_cpp is imported. May be called twice.
    """
    there = sys.modules.get("llama_cpp")
    ours = importlib.import_module(_OURS)
    if there is ours:
        return
    if there is not None:
        where = getattr(there, "__file__", "somewhere")
        raise ImportError(
            f"llama_cpp was imported already, from {where}: call pyllama_spec.llama_cpp.install() "
            "before anything that imports it"
        )
    # All of them at once: half of theirs and half of ours would not fit together.
    modules = {part: importlib.import_module(f"{_OURS}.{part}") for part in PARTS}
    sys.modules["llama_cpp"] = ours
    for part, module in modules.items():
        sys.modules[f"llama_cpp.{part}"] = module
