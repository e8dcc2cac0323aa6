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

from typing import TYPE_CHECKING

from pyllama_spec.chat.template import ChatTemplate, RenderedChat
from pyllama_spec.drafters import (
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    NoDrafter,
    PromptLookup,
    SequenceErrors,
)
from pyllama_spec.engine import SamplerParams
from pyllama_spec.errors import (
    ArgumentError,
    BusyError,
    CancelledError,
    ClosedError,
    ContextFullError,
    ContextOpenError,
    ConversionError,
    DeadlineError,
    EngineError,
    ForkedError,
    ModelLoadError,
    OutOfMemoryError,
    PyllamaSpecError,
    QueueFullError,
    RemoteError,
    SchemaError,
    UnknownKeywordError,
    UnsupportedError,
)
from pyllama_spec.lazy_imports import lazy_names
from pyllama_spec.llama.llama import Llama, LlamaState
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.requests.run import GenerationRecord, Piece, RequestStatus
from pyllama_spec.requests.stream import Stream
from pyllama_spec.speculative import SpeculationStats, Timing

if TYPE_CHECKING:
    from pyllama_spec._version import __version__
    from pyllama_spec.drafters import DrafterWrapper, Eagle3, LookupFirst
else:
    # The version too: looking it up takes longer than most imports here.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "DrafterWrapper": "pyllama_spec.drafters",
            "Eagle3": "pyllama_spec.drafters",
            "LookupFirst": "pyllama_spec.drafters",
            "__version__": "pyllama_spec._version",
        },
        ("bench", "convert", "drafters", "engine", "gguf", "llama_cpp", "speculative", "train"),
        theirs="pyllama_spec.llama_cpp",
    )

__all__ = [
    "ArgumentError",
    "BusyError",
    "CancelledError",
    "ChatTemplate",
    "ClosedError",
    "Committed",
    "ContextFullError",
    "ContextOpenError",
    "ConversionError",
    "DeadlineError",
    "Draft",
    "DraftRequest",
    "Drafter",
    "DrafterWrapper",
    "Eagle3",
    "EngineError",
    "ForkedError",
    "GenerationRecord",
    "Llama",
    "LlamaState",
    "LookupFirst",
    "ModelLoadError",
    "NoDrafter",
    "OutOfMemoryError",
    "Piece",
    "PromptLookup",
    "PyllamaSpecError",
    "QueueFullError",
    "RemoteError",
    "RenderedChat",
    "RequestOptions",
    "RequestStatus",
    "SamplerParams",
    "SchemaError",
    "SequenceErrors",
    "SpeculationStats",
    "Stream",
    "Timing",
    "UnknownKeywordError",
    "UnsupportedError",
    "__version__",
]
