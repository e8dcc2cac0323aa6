"""Drafts in llama-cpp-python's form; `Llama(draft=...)` has more."""

from pyllama_spec.llama.their_draft import LlamaDraftModel, LlamaPromptLookupDecoding

__all__ = ["LlamaDraftModel", "LlamaPromptLookupDecoding"]
