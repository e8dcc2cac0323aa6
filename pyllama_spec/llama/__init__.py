"""Llama: what users of llama-cpp-python expect."""

from pyllama_spec.llama.llama import Llama, LlamaState

__all__ = ["Llama", "LlamaState"]
