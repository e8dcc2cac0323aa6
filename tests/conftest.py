"""Models that tests share, and the tier of each test."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.models import cache_directory, delete_unused_models
from tests.tiers import QUICK, tier_of
from tools.packaged_models import fetch

_HERE = Path(__file__).parent


def pytest_sessionstart(session: pytest.Session) -> None:
    """Frees the disk of models that no checkout uses any more, once for all processes."""
    if not hasattr(session.config, "workerinput"):
        delete_unused_models()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is slow, and what waits for a release."""
    for item in items:
        names = (item.nodeid, *getattr(item, "fixturenames", ()))
        marks = {mark.name for mark in item.iter_markers()}
        tier = tier_of(item.path.relative_to(_HERE).as_posix(), names, marks)
        if tier != QUICK:
            item.add_marker(tier)
    # The longest file of a release comes first: last, it would keep one worker for half an hour.
    items.sort(key=lambda item: item.path.name != "test_sessions.py")


def smollm2(kind: str) -> Path:
    """SmolLM2-135M-Instruct in a type, made once and kept. A test fails where it cannot be had."""
    path = cache_directory() / f"SmolLM2-135M-Instruct.{kind}.gguf"
    # One at a time: tests may run in several processes.
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        with contextlib.suppress(ImportError):  # Windows, where they run in one
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        return fetch(path)


@pytest.fixture(scope="session")
def smollm2_q4_0() -> Path:
    """SmolLM2-135M-Instruct as Q4_0."""
    return smollm2("Q4_0")


@pytest.fixture(scope="session")
def smollm2_bf16() -> Path:
    """SmolLM2-135M-Instruct as BF16."""
    return smollm2("BF16")
