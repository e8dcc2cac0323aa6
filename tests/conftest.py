"""Models that tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import cache_directory
from tools.fetch_smollm2 import fetch


def smollm2(kind: str) -> Path:
    """SmolLM2-135M-Instruct in a type, made once and kept. A test fails where it cannot be had."""
    return fetch(cache_directory() / f"SmolLM2-135M-Instruct.{kind}.gguf")


@pytest.fixture(scope="session")
def smollm2_q4_0() -> Path:
    """SmolLM2-135M-Instruct as Q4_0."""
    return smollm2("Q4_0")


@pytest.fixture(scope="session")
def smollm2_bf16() -> Path:
    """SmolLM2-135M-Instruct as BF16."""
    return smollm2("BF16")
