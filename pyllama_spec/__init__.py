"""Speculative decoding for local language models: the same text, faster.

    from pyllama_spec import Llama

    with Llama("model.gguf", draft="prompt-lookup", n_ctx=4096) as llm:
        result = llm.create_chat_completion([{"role": "user", "content": "Hello!"}])
        print(result["choices"][0]["message"]["content"], result["speculation"])

Below Llama lie `pyllama_spec.engine` (models, contexts, batches, memories, samplers),
`pyllama_spec.drafters` and `pyllama_spec.speculative` (the loop), for programs that drive the
rounds themselves.
"""

from __future__ import annotations

from pyllama_spec._version import __version__
from pyllama_spec.assembly import Piece
from pyllama_spec.chat import ChatTemplate, RenderedChat
from pyllama_spec.completion import Generation, GenerationRecord
from pyllama_spec.drafters import Draft, Drafter, Eagle3, NoDrafter, PromptLookup, WithLookup
from pyllama_spec.engine import SamplerParams
from pyllama_spec.engine.errors import (
    ArgumentError,
    BusyError,
    CancelledError,
    ClosedError,
    ContextFullError,
    ConversionError,
    EngineError,
    ModelLoadError,
    OutOfMemoryError,
    PyllamaSpecError,
    UnsupportedError,
)
from pyllama_spec.llama import Llama, LlamaState
from pyllama_spec.request import RequestOptions
from pyllama_spec.responses import Stream
from pyllama_spec.speculative import SpeculationStats, Timing

__all__ = [
    "ArgumentError",
    "BusyError",
    "CancelledError",
    "ChatTemplate",
    "ClosedError",
    "ContextFullError",
    "ConversionError",
    "Draft",
    "Drafter",
    "Eagle3",
    "EngineError",
    "Generation",
    "GenerationRecord",
    "Llama",
    "LlamaState",
    "ModelLoadError",
    "NoDrafter",
    "OutOfMemoryError",
    "Piece",
    "PromptLookup",
    "PyllamaSpecError",
    "RenderedChat",
    "RequestOptions",
    "SamplerParams",
    "SpeculationStats",
    "Stream",
    "Timing",
    "UnsupportedError",
    "WithLookup",
    "__version__",
]
