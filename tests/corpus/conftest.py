"""Fixtures for tests of training's text and features."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyllama_spec.engine import Model
from tests.corpus.tools import open_writer, write_prompts


@pytest.fixture(scope="module")
def writer() -> Iterator[Model]:
    """A target whose texts end now and then."""
    with open_writer() as opened:
        yield opened


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file of short ones."""
    return write_prompts(tmp_path)
