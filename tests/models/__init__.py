"""Tiny GGUF models for tests, built from random numbers or with known behaviour."""

from __future__ import annotations

from .build import ARCHITECTURES, DECODERS, STATES, STATES_WITHOUT_SNAPSHOTS, build
from .cache import built_models, cache_directory, delete_unused_models, model_path
from .config import CHATML_TEMPLATE, TinyConfig
from .dflash import target_options
from .eagle3 import Eagle3Config, RopeScaling, build_eagle3, eagle3_tensors, write_eagle3
from .toys import CONSTANT_TOKENS, default_probabilities, perm_continuation, perm_next
from .vocab import BOS, ENDOFTEXT, EOS, IM_END, IM_START, SPECIAL_IDS, SPECIAL_TOKENS, decode

__all__ = [
    "ARCHITECTURES",
    "BOS",
    "CHATML_TEMPLATE",
    "CONSTANT_TOKENS",
    "DECODERS",
    "ENDOFTEXT",
    "EOS",
    "IM_END",
    "IM_START",
    "SPECIAL_IDS",
    "SPECIAL_TOKENS",
    "STATES",
    "STATES_WITHOUT_SNAPSHOTS",
    "Eagle3Config",
    "RopeScaling",
    "TinyConfig",
    "build",
    "build_eagle3",
    "built_models",
    "cache_directory",
    "decode",
    "default_probabilities",
    "delete_unused_models",
    "eagle3_tensors",
    "model_path",
    "perm_continuation",
    "perm_next",
    "target_options",
    "write_eagle3",
]
