"""Llama: the class that users of llama-cpp-python know."""

from pyllama_spec.lazy_imports import public_names
from pyllama_spec.llama.llama import Llama, LlamaState

__all__ = ["Llama", "LlamaState"]

__dir__ = public_names(__name__)
