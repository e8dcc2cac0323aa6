"""Drafts in llama-cpp-python's form; `Llama(draft=...)` has more."""

from pyllama_spec.llama.llama_cpp_drafts import LlamaDraftModel, LlamaPromptLookupDecoding

__all__ = ["LlamaDraftModel", "LlamaPromptLookupDecoding"]
