"""The modules that `import pyllama_spec` loads, and those that it loads later."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import typing

import pyllama_spec
from pyllama_spec import Llama

# Each takes milliseconds, and no text needs them.
LATER = (
    "importlib.metadata", "email", "secrets", "hashlib", "statistics", "difflib", "uuid",
    "llguidance", "torch", "gguf", "matplotlib", "pyllama_spec.schema",
)  # fmt: skip


def modules_of(code: str) -> set[str]:
    """The modules that code imports in a fresh Python, without those loaded at the start."""
    source = f"import sys; before = set(sys.modules)\n{code}\n"
    source += "import json; print(json.dumps(sorted(set(sys.modules) - before)))"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=120
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_an_import_leaves_out_what_a_text_does_not_need() -> None:
    brought = modules_of("import numpy")
    for name in ("pyllama_spec", "pyllama_spec.llama_cpp"):
        found = modules_of(f"import {name}")
        assert "pyllama_spec.llama.llama" in found
        assert not found.intersection(LATER) - brought


def test_types_can_be_read_at_run_time() -> None:
    """Libraries that check arguments need this."""
    assert "_chats" in typing.get_type_hints(Llama)
    hints = typing.get_type_hints(Llama.__init__)
    assert hints["model_path"] == str | os.PathLike[str]
    assert "chat_handler" in hints


def test_the_version_is_read_when_it_is_asked_for() -> None:
    assert pyllama_spec.__version__ == importlib.metadata.version("pyllama_spec")
    assert "__version__" in dir(pyllama_spec)
    assert set(pyllama_spec.__all__) <= set(dir(pyllama_spec))
    assert all(getattr(pyllama_spec, name) is not None for name in pyllama_spec.__all__)
    assert not hasattr(pyllama_spec, "no_such_name")
    assert modules_of("from pyllama_spec import *\nassert __version__")
