"""llama-cpp-python's draft models; `Llama(draft=...)` supports more."""

from pyllama_spec.llama.open_model import LlamaDraftModel, LlamaPromptLookupDecoding

__all__ = ["LlamaDraftModel", "LlamaPromptLookupDecoding"]
