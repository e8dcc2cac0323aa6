"""States of past requests."""

from pyllama_spec.llama.caches import BaseLlamaCache, LlamaCache, LlamaRAMCache
from pyllama_spec.llama.state_folder import LlamaDiskCache

__all__ = ["BaseLlamaCache", "LlamaCache", "LlamaDiskCache", "LlamaRAMCache"]
