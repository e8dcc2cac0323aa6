"""Built models are kept per version of their builders, and those of unused versions are deleted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.models import (
    CACHE_VARIABLE,
    built_models,
    cache_directory,
    delete_unused_models,
    model_path,
)

_HOUR = 3600


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, with a file that is not a built model."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    (tmp_path / "SmolLM2.gguf").write_bytes(b"kept")
    return tmp_path


def earlier_version(cache: Path, name: str, hours: float) -> Path:
    """A directory of other builders, last used some hours ago."""
    directory = cache / "built" / name
    directory.mkdir(parents=True)
    (directory / "llama-1.gguf").write_bytes(b"model")
    then = time.time() - hours * _HOUR
    os.utime(directory, (then, then))
    return directory


def test_models_of_unused_builders_are_deleted(cache: Path) -> None:
    own = model_path("script", n_prompt=1, script=(2,))
    unused = earlier_version(cache, "0123", hours=13)
    beside = earlier_version(cache, "4567", hours=11)

    assert delete_unused_models() == [unused]
    assert not unused.exists()
    assert (beside / "llama-1.gguf").exists()
    assert own.exists() and own.parent == built_models()
    assert (cache_directory() / "SmolLM2.gguf").read_bytes() == b"kept"
