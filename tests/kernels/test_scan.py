"""States scanned in place are right, with the same bits after any rollbacks."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kernels.programs import compiled, printed

N_DRAWS = 24


class Rounds(NamedTuple):
    """The results of twelve rounds with a random shape."""

    kind: str
    n_tokens: int
    n_back: int
    n_different: int
    worst: float


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scan.cpp, built."""
    return compiled("scan.cpp", tmp_path_factory.mktemp("scan"))


def _rounds(program: Path, *args: str) -> list[Rounds]:
    out = []
    for line in printed(program, *args):
        words = line.split()
        counts = [int(word) for word in words[-4:-1]]
        out.append(Rounds(words[0], counts[0], counts[1], counts[2], float(words[-1])))
    return out


@pytest.mark.parametrize("seed", [1, 2])
def test_random_rounds_of_random_shapes(program: Path, seed: int) -> None:
    """Batches, repeated rollbacks, new texts and cells that change places.

    Outputs and states are bit-equal to those of single tokens without a log, and those equal the
    formulas within float32 rounding.
    """
    rounds = _rounds(program, str(seed), str(N_DRAWS))
    assert {r.kind for r in rounds} == {"delta", "wide", "ssm"}
    assert sum(r.n_tokens for r in rounds) > 1000
    assert sum(r.n_back for r in rounds) > 100
    assert [r for r in rounds if r.n_different or not r.worst < 2e-6] == []


def test_a_rollback_that_is_one_token_short_is_seen(program: Path) -> None:
    rounds = _rounds(program, "1", "9", "fault")
    assert all(r.n_different for r in rounds)
