"""Threads beside other programs: how many compute a graph, and how they wait."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kernels.programs import compiled, printed


class World(NamedTuple):
    """The results of a made-up machine."""

    n_best: int
    n_last: int
    slowdown: float


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, World]:
    """Every world of threads.cpp."""
    program = compiled("threads.cpp", tmp_path_factory.mktemp("threads"))
    lines = [line.split() for line in printed(program)]
    return {name: World(int(n), int(of), float(times)) for name, n, of, times in lines}


# At most so many times the seconds of who knows the best number in advance, and at least this share
# of the last graphs by that number: the others are trials.
@pytest.mark.parametrize(
    ("name", "slowdown", "share"),
    [
        ("calm", 1.0, 1.0), ("calm-many", 1.0, 1.0),
        ("busy", 1.1, 0.9), ("busy-noisy", 1.25, 0.85), ("busy-tiny", 1.1, 0.9),
        ("busy-mixed", 1.1, 0.9), ("shared", 1.1, 0.9), ("comes-and-goes", 1.25, 0.9),
        ("one-of-eight", 1.15, 0.9),
    ],
)  # fmt: skip
def test_the_number_of_threads_is_the_fastest(
    worlds: dict[str, World], name: str, slowdown: float, share: float
) -> None:
    world = worlds[name]
    assert world.n_last > 50
    assert world.n_best >= share * world.n_last
    assert world.slowdown <= slowdown


def test_waiting_takes_no_processor(tmp_path: Path) -> None:
    """Measured as CPU time of all threads, which other programs do not change."""
    lines = [line.split() for line in printed(compiled("barriers.cpp", tmp_path))]
    figures = {"late": [], "idle": [], "many": []}  # type: dict[str, list[float]]
    for name, figure in lines:
        figures[name].append(float(figure))
    # 150 ms for one thread: the three others would spin through them.
    assert len(figures["late"]) == 4
    assert [ms for ms in figures["late"] if not ms < 60] == []
    # Three workers after a graph; they used to spin for a tenth of a second and more each.
    assert [ms for ms in figures["idle"] if not ms < 60] == []
    # Graphs of 200 barriers, with all threads or fewer, and one in ten ends by an exception.
    assert figures["many"] == [200]
