"""tools/release_check.py: the rows to run, the record, and when it is outdated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools import release_check
from tools.release_check import RECORD, ROWS, Outcome, Row, check, chosen, listing, read


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


def test_what_ended_is_written_down_at_once(world: Path) -> None:
    record = world / "record.json"
    seen: list[tuple[str, list[str]]] = []

    def run(target: str) -> int:
        seen.append((target, sorted(read(record))))
        return int(target == "make-second")

    assert not check(["first", "second"], record, run)
    assert seen == [("make-first", []), ("make-second", ["first"])]
    outcomes = read(record)
    assert [outcomes[name].outcome for name in ("first", "second")] == ["passed", "failed"]
    assert outcomes["first"].commit == "abc" and outcomes["first"].date.endswith("Z")
    assert outcomes["first"].sources != outcomes["second"].sources
    # One that passes again takes the place of its failure, and leaves the others.
    assert check(["second"], record, passing)
    assert read(record) == {"first": outcomes["first"], "second": read(record)["second"]}
    assert read(record)["second"].outcome == "passed"


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


def test_what_cannot_run_here_is_no_pass(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = world / "record.json"
    before = {"third": Outcome("passed", "2026-01-01T00:00Z", 3, "abc", "of then")}
    release_check.write(record, before)
    assert not check(["first", "third"], record, passing)
    assert read(record)["third"] == before["third"]
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "== third: NOT RUN, needs no-such-program: buy one"


def test_the_record_of_this_tree() -> None:
    assert set(read(RECORD)) <= set(ROWS)
    assert len({row.target for row in ROWS.values()}) == len(ROWS)
    for row in ROWS.values():
        assert all((release_check.ROOT / name).exists() for name in row.sources), row
