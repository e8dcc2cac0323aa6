"""The three tiers of tests: where each runs.

quick: `make check`, `make test` and CI. slow: `make test` and CI. release: `make release-check`
alone. tests/conftest.py gives each test its tier by tier_of(), and tests/unit/test_tiers.py shows
that the commands leave out none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

QUICK, SLOW, RELEASE = TIERS = ("quick", "slow", "release")

# Processes by the hundred, compilers, downloads, trainings, measurements.
_SLOW_FOLDERS = frozenset(
    ("bench", "corpus", "fuzz", "kernels", "robust", "train", "vendor", "wheel")
)
# A device or a browser of its own, an engine of others that is built from source, every Python.
_RELEASE = ("gpu/", "browser/", "wheel/test_coexist.py", "wheel/test_pythons.py")
# The one real model. Its name is in the fixture that gives it, or in the test's.
_REAL_MODEL = "smollm2"


def tier_of(file: str, names: Iterable[str], marks: Collection[str]) -> str:
    """The tier of a test."""
    if RELEASE in marks or file.startswith(_RELEASE):
        return RELEASE
    folder = file.partition("/")[0]
    if SLOW in marks or folder in _SLOW_FOLDERS or any(_REAL_MODEL in name for name in names):
        return SLOW
    return QUICK


def release_except(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Parameters of a test: those that are not among `quick` wait for a release."""
    return [one if one in quick else pytest.param(one, marks=pytest.mark.release) for one in cases]
