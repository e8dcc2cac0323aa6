"""Lies beside llama-cpp-python's own tests as their conftest.py: what they import, as it is here.

The variable THEIR_MODELS maps each of their models to ours: JSON of file name -> path.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import types
from typing import Any

import pyllama_spec.llama_cpp as llama_cpp

llama_cpp.install()

_MODELS: dict[str, str] = json.loads(os.environ["THEIR_MODELS"])


# Theirs take every processor: on a busy machine threads that wait for each other take minutes.
multiprocessing.cpu_count = lambda: 1


def _module(name: str, **names: Any) -> None:
    module = types.ModuleType(name)
    for key, value in names.items():
        setattr(module, key, value)
    sys.modules[name] = module
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, module)


def _download(repo_id: str, filename: str) -> str:
    del repo_id
    return _MODELS[filename.rpartition("/")[2]]


# The hub cannot be reached, SciPy is imported and not used, and of the ctypes layer a test that is
# left out needs the name of a module.
_module("huggingface_hub", hf_hub_download=_download)
_module("scipy")
_module("scipy.special", log_softmax=llama_cpp.Llama.logits_to_logprobs)
_module("llama_cpp._internals")
