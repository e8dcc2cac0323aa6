"""The engine: models, contexts, batches, memory, samplers. Only this package imports ffi."""

from pyllama_spec.engine.adapter import Adapter
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.binding import computing
from pyllama_spec.engine.chat import ChatParser, ChatSession, TemplateProgram
from pyllama_spec.engine.context import Context, Memory, exact_rows
from pyllama_spec.engine.context_params import ContextParams
from pyllama_spec.engine.log import set_log_level, thread_log_level
from pyllama_spec.engine.model import Model
from pyllama_spec.engine.model_info import ModelInfo
from pyllama_spec.engine.quantize import quantize, quantize_types
from pyllama_spec.engine.rpc import RpcServer, server_devices, set_rpc_timeout
from pyllama_spec.engine.sampler import Distribution, Sampler, SamplerParams
from pyllama_spec.engine.system import (
    Device,
    default_n_threads,
    devices,
    engine_version,
    row_kernels,
    supports_gpu,
    system_info,
)
from pyllama_spec.engine.vocab import Vocab

__all__ = [
    "Adapter",
    "Batch",
    "ChatParser",
    "ChatSession",
    "Context",
    "ContextParams",
    "Device",
    "Distribution",
    "Memory",
    "Model",
    "ModelInfo",
    "RpcServer",
    "Sampler",
    "SamplerParams",
    "TemplateProgram",
    "Vocab",
    "computing",
    "default_n_threads",
    "devices",
    "engine_version",
    "exact_rows",
    "quantize",
    "quantize_types",
    "row_kernels",
    "server_devices",
    "set_log_level",
    "set_rpc_timeout",
    "supports_gpu",
    "system_info",
    "thread_log_level",
]
