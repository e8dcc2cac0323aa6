"""Tiny GGUF models for tests, built from random numbers or with known behaviour."""

from __future__ import annotations

from .build import (
    ARCHITECTURES,
    DECODERS,
    ENCODERS,
    HYBRID,
    RECURRENT,
    SLIDING,
    STATES,
    STATES_WITHOUT_SNAPSHOTS,
    build,
)
from .cache import (
    CACHE_VARIABLE,
    built_models,
    cache_directory,
    delete_unused_models,
    model_path,
)
from .config import CHATML_TEMPLATE, TinyConfig
from .dflash import (
    DFlashConfig,
    build_dflash,
    dflash_tensors,
    target_options,
    write_dflash,
)
from .dflash_perm import build_perm_dflash
from .eagle3 import (
    Eagle3Config,
    RopeScaling,
    build_eagle3,
    eagle3_tensors,
    write_eagle3,
)
from .eagle3_perm import build_perm_eagle3
from .toys import (
    CONSTANT_REST_LOGIT,
    CONSTANT_TOKENS,
    build_constant,
    build_perm,
    default_probabilities,
    perm_continuation,
    perm_next,
)
from .vocab import (
    BOS,
    ENDOFTEXT,
    EOS,
    IM_END,
    IM_START,
    MIN_VOCAB,
    SPECIAL_IDS,
    SPECIAL_TOKENS,
    decode,
)

__all__ = [
    "ARCHITECTURES",
    "BOS",
    "CACHE_VARIABLE",
    "CHATML_TEMPLATE",
    "CONSTANT_REST_LOGIT",
    "CONSTANT_TOKENS",
    "DECODERS",
    "ENCODERS",
    "ENDOFTEXT",
    "EOS",
    "HYBRID",
    "IM_END",
    "IM_START",
    "MIN_VOCAB",
    "RECURRENT",
    "SLIDING",
    "SPECIAL_IDS",
    "SPECIAL_TOKENS",
    "STATES",
    "STATES_WITHOUT_SNAPSHOTS",
    "DFlashConfig",
    "Eagle3Config",
    "RopeScaling",
    "TinyConfig",
    "build",
    "build_constant",
    "build_dflash",
    "build_eagle3",
    "build_perm",
    "build_perm_dflash",
    "build_perm_eagle3",
    "built_models",
    "cache_directory",
    "decode",
    "default_probabilities",
    "delete_unused_models",
    "dflash_tensors",
    "eagle3_tensors",
    "model_path",
    "perm_continuation",
    "perm_next",
    "target_options",
    "write_dflash",
    "write_eagle3",
]
