"""Llama: the class that users of llama-cpp-python know."""

from pyllama_spec.llama.llama import Llama, LlamaState

__all__ = ["Llama", "LlamaState"]
