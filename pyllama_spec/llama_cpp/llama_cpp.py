"""llama.cpp's constants, and the few of its C functions that other programs use.

llama-cpp-python exposes the whole C interface of the engine through ctypes. That is not here: the
engine of pyllama_spec is inside of one compiled module, and what a program needs of it has Python
names in `pyllama_spec.engine`. Constants and a few functions that only read a vocabulary are.
"""

from __future__ import annotations

import time
from typing import Any, NoReturn

from pyllama_spec.engine import Model, Vocab
from pyllama_spec.errors import ArgumentError
from pyllama_spec.gguf.sizes import TENSOR_TYPES

_NUMBERS: dict[str, dict[str, int]] = {
    'GGML_TYPE': {**TENSOR_TYPES, "COUNT": 43},
    '': {
        "LLAMA_DEFAULT_SEED": 0xffffffff, "LLAMA_TOKEN_NULL": -1,
        "LLAMA_FILE_MAGIC_GGLA": 0x67676c61, "LLAMA_FILE_MAGIC_GGSN": 0x6767736e,
        "LLAMA_FILE_MAGIC_GGSQ": 0x67677371, "LLAMA_SESSION_MAGIC": 0x6767736e,
        "LLAMA_SESSION_VERSION": 10, "LLAMA_STATE_SEQ_MAGIC": 0x67677371,
        "LLAMA_STATE_SEQ_VERSION": 3,
    },
    'LLAMA_VOCAB_TYPE': {
        "NONE": 0, "SPM": 1, "BPE": 2, "WPM": 3, "UGM": 4, "RWKV": 5, "PLAMO2": 6, "TEST": 7,
    },
    'LLAMA_ROPE_TYPE': {
        "NONE": -1, "NORM": 0, "NEOX": 2, "MROPE": 8, "IMROPE": 40, "VISION": 24,
    },
    'GGML_ROPE_TYPE': {
        "NEOX": 2, "MROPE": 8, "IMROPE": 40, "VISION": 24,
    },
    'LLAMA_TOKEN_TYPE': {
        "UNDEFINED": 0, "NORMAL": 1, "UNKNOWN": 2, "CONTROL": 3, "USER_DEFINED": 4, "UNUSED": 5,
        "BYTE": 6,
    },
    'LLAMA_TOKEN_ATTR': {
        "UNDEFINED": 0, "UNKNOWN": 1, "UNUSED": 2, "NORMAL": 4, "CONTROL": 8, "USER_DEFINED": 16,
        "BYTE": 32, "NORMALIZED": 64, "LSTRIP": 128, "RSTRIP": 256, "SINGLE_WORD": 512,
    },
    'LLAMA_FTYPE': {
        "ALL_F32": 0, "GUESSED": 1024,
    },
    'LLAMA_FTYPE_MOSTLY': {
        "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10,
        "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16,
        "Q5_K_M": 17, "Q6_K": 18, "IQ2_XXS": 19, "IQ2_XS": 20, "Q2_K_S": 21, "IQ3_XS": 22,
        "IQ3_XXS": 23, "IQ1_S": 24, "IQ4_NL": 25, "IQ3_S": 26, "IQ3_M": 27, "IQ2_S": 28,
        "IQ2_M": 29, "IQ4_XS": 30, "IQ1_M": 31, "BF16": 32, "TQ1_0": 36, "TQ2_0": 37,
        "MXFP4_MOE": 38, "NVFP4": 39, "Q1_0": 40, "Q2_0": 41,
    },
    'LLAMA_ROPE_SCALING_TYPE': {
        "UNSPECIFIED": -1, "NONE": 0, "LINEAR": 1, "YARN": 2, "LONGROPE": 3, "MAX_VALUE": 3,
    },
    'LLAMA_POOLING_TYPE': {
        "UNSPECIFIED": -1, "NONE": 0, "MEAN": 1, "CLS": 2, "LAST": 3, "RANK": 4,
    },
    'LLAMA_ATTENTION_TYPE': {
        "UNSPECIFIED": -1, "CAUSAL": 0, "NON_CAUSAL": 1,
    },
    'LLAMA_FLASH_ATTN_TYPE': {
        "AUTO": -1, "DISABLED": 0, "ENABLED": 1,
    },
    'LLAMA_SPLIT_MODE': {
        "NONE": 0, "LAYER": 1, "ROW": 2, "TENSOR": 3,
    },
    'LLAMA_LOAD_MODE': {
        "AUTO": -1, "NONE": 0, "MMAP": 1, "MLOCK": 2, "MMAP_MLOCK": 3, "DIRECT_IO": 4,
    },
    'LLAMA_KV_OVERRIDE_TYPE': {
        "INT": 0, "FLOAT": 1, "BOOL": 2, "STR": 3,
    },
    'GGML_NUMA_STRATEGY': {
        "DISABLED": 0, "DISTRIBUTE": 1, "ISOLATE": 2, "NUMACTL": 3, "MIRROR": 4, "COUNT": 5,
    },
}  # fmt: skip

globals().update(
    {
        f"{group}_{name}" if group else name: number
        for group, names in _NUMBERS.items()
        for name, number in names.items()
    }
)
LLAMA_MAX_DEVICES = 16


def llama_model_get_vocab(model: Any) -> Vocab:
    """The vocabulary of `Llama.model`."""
    if not isinstance(model, Model):
        raise ArgumentError("model", model, "Llama.model")
    return model.vocab


def llama_vocab_n_tokens(vocab: Vocab) -> int:
    """The size of a vocabulary."""
    return vocab.n_tokens


def llama_vocab_is_eog(vocab: Vocab, token: int) -> bool:
    """Whether a token ends a generation."""
    return vocab.is_eog(int(token))


def llama_token_to_piece(
    vocab: Vocab, token: Any, buf: Any, length: int, lstrip: int, special: bool
) -> int:
    """Writes a token's bytes to an array of c_char; returns their number, or minus the needed size.

    `lstrip` is the maximum number of leading spaces to remove; `special` has control tokens' names.
    """
    data = vocab.piece(int(getattr(token, "value", token)), special=bool(special))
    n_spaces = len(data) - len(data.lstrip(b" "))
    data = data[min(n_spaces, lstrip) :]
    if len(data) > length:
        return -len(data)
    buf[: len(data)] = data
    return len(data)


def llama_supports_gpu_offload() -> bool:
    """Whether this build can put layers on a GPU."""
    from pyllama_spec.engine import supports_gpu

    return supports_gpu()


def llama_supports_mmap() -> bool:
    """True: see Llama(use_mmap=...)."""
    return True


def llama_supports_mlock() -> bool:
    """True: see Llama(use_mlock=...)."""
    return True


def llama_log_callback(function: Any) -> Any:
    """A decorator that returns the function unchanged; see llama_log_set()."""
    return function


def llama_log_set(log_callback: Any, user_data: Any) -> None:
    """Does nothing: Llama(verbose=True) and engine.set_log_level() control the log."""
    del log_callback, user_data


def llama_print_system_info() -> bytes:
    """The compiled features of the engine."""
    from pyllama_spec.engine import system_info

    return system_info().encode()


def llama_max_devices() -> int:
    """The maximum number of devices for one model."""
    return LLAMA_MAX_DEVICES


def llama_time_us() -> int:
    """Microseconds of a monotonic clock."""
    return time.perf_counter_ns() // 1000


def llama_backend_init() -> None:
    """Does nothing: the engine initialises itself."""


def llama_backend_free() -> None:
    """Does nothing: the engine ends with the process."""


def __getattr__(name: str) -> NoReturn:
    if name.startswith(("llama_", "ggml_", "gguf_", "LLAMA_", "GGML_")):
        raise AttributeError(
            f"{name}: the C functions of llama.cpp are not handed out by pyllama_spec, which keeps "
            "its engine inside of one module; pyllama_spec.engine has models, contexts, batches, "
            "memories and samplers for programs that drive them"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
