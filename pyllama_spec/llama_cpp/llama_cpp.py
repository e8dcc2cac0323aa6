"""llama.cpp's constants, and the few of its C functions that other programs use.

llama-cpp-python exposes the whole C interface of the engine through ctypes. That is not here: the
engine of pyllama_spec is inside of one compiled module, and what a program needs of it has Python
names in `pyllama_spec.engine`. Constants of Llama()'s keywords, and a few functions that only read
a vocabulary, are.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NoReturn

from pyllama_spec.engine import Model, Vocab
from pyllama_spec.engine.context_params import ATTENTION, POOLING, ROPE_SCALING
from pyllama_spec.errors import ArgumentError
from pyllama_spec.gguf.sizes import TENSOR_TYPES
from pyllama_spec.llama.open_options import SPLIT_MODES

LLAMA_DEFAULT_SEED, LLAMA_TOKEN_NULL, LLAMA_MAX_DEVICES = 2**32 - 1, -1, 16
GGML_TYPE_COUNT = 43
LLAMA_ROPE_SCALING_TYPE_MAX_VALUE = 3
_NUMBERS: dict[str, Mapping[Any, int]] = {
    "GGML_TYPE": TENSOR_TYPES,
    "LLAMA_ROPE_SCALING_TYPE": ROPE_SCALING,
    "LLAMA_POOLING_TYPE": POOLING,
    "LLAMA_ATTENTION_TYPE": ATTENTION,
    "LLAMA_SPLIT_MODE": {name: number for number, name in enumerate(SPLIT_MODES)},
    "LLAMA_VOCAB_TYPE": {
        "NONE": 0, "SPM": 1, "BPE": 2, "WPM": 3, "UGM": 4, "RWKV": 5, "PLAMO2": 6, "TEST": 7,
    },
    "GGML_NUMA_STRATEGY": {
        "DISABLED": 0, "DISTRIBUTE": 1, "ISOLATE": 2, "NUMACTL": 3, "MIRROR": 4, "COUNT": 5,
    },
}  # fmt: skip

globals().update(
    {
        f"{group}_{(name or 'unspecified').replace('-', '_').upper()}": number
        for group, names in _NUMBERS.items()
        for name, number in names.items()
    }
)


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


def llama_backend_init(numa: bool = False) -> None:
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
