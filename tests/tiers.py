"""Which cases of a test run in `make check`, and which only in `make test`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Parameters of a test: those that are not among `quick` are marked as slow."""
    return [one if one in quick else pytest.param(one, marks=pytest.mark.slow) for one in cases]
