"""tools/release_check.py: the rows to run, the record, and when it is outdated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools import release_check
from tools.release_check import RECORD, ROWS, Row, check, chosen, listing, read


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three rows over a folder of sources; the last one needs what no machine has."""
    for name in ("a/one.py", "a/two.h", "b/one.cpp", "b/fuzz/one.cpp"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    rows = {
        "first": Row("make-first", "the first", ("a",)),
        "second": Row("make-second", "the second", ("a", "b")),
        "third": Row("make-third", "the third", ("b",), ("no-such-program",), "buy one"),
    }
    monkeypatch.setattr(release_check, "ROOT", tmp_path)
    monkeypatch.setattr(release_check, "ROWS", rows)
    monkeypatch.setattr(release_check, "commit", lambda: "abc")
    return tmp_path


def passing(_: str) -> int:
    return 0


def test_due_is_what_has_not_passed_with_these_sources(world: Path) -> None:
    record = world / "record.json"
    assert chosen([], read(record)) == ["first", "second", "third"]
    assert check(["first", "second"], record, passing)
    assert chosen([], read(record)) == ["third"]
    (world / "b/one.cpp").write_text("changed")
    assert chosen([], read(record)) == ["second", "third"]
    assert "other sources" in listing(read(record))[1]
    (world / "b/one.cpp").write_text("b/one.cpp")
    assert chosen([], read(record)) == ["third"]
    (world / "b/fuzz/one.cpp").write_text("a project of its own")
    assert chosen([], read(record)) == ["third"]
    failed = {"first": replace(read(record)["first"], outcome="failed")}
    assert chosen([], {**read(record), **failed}) == ["first", "third"]


def test_the_record_of_this_tree() -> None:
    assert set(read(RECORD)) <= set(ROWS)
    assert len({row.target for row in ROWS.values()}) == len(ROWS)
    for row in ROWS.values():
        assert all((release_check.ROOT / name).exists() for name in row.sources), row
