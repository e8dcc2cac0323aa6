"""llama-cpp-python's draft models; `Llama(draft=...)` supports more."""

from pyllama_spec.llama.llama_cpp_drafts import LlamaDraftModel, LlamaPromptLookupDecoding

__all__ = ["LlamaDraftModel", "LlamaPromptLookupDecoding"]
