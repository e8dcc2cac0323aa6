"""The engine: models, contexts, batches, memory, samplers. The only room that sees ffi."""

from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.context import Context, ContextParams
from pyllama_spec.engine.log import set_log_level, thread_log_level
from pyllama_spec.engine.memory import Memory
from pyllama_spec.engine.model import Model, ModelInfo, quantize, quantize_types
from pyllama_spec.engine.resources import default_n_threads
from pyllama_spec.engine.sampler import Sampler, SamplerParams
from pyllama_spec.engine.system import (
    Device,
    devices,
    engine_version,
    row_kernels,
    supports_gpu,
    system_info,
)
from pyllama_spec.engine.vocab import Vocab

__all__ = [
    "Batch",
    "Context",
    "ContextParams",
    "Device",
    "Memory",
    "Model",
    "ModelInfo",
    "Sampler",
    "SamplerParams",
    "Vocab",
    "default_n_threads",
    "devices",
    "engine_version",
    "quantize",
    "quantize_types",
    "row_kernels",
    "set_log_level",
    "supports_gpu",
    "system_info",
    "thread_log_level",
]
