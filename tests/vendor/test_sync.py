"""vendor/sync.py on made-up archives: the pin, the stamp and every way to fail."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.vendor.tools import (
    HOT,
    REPLACE_3,
    REPLACE_5,
    TEXT,
    Failure,
    World,
    engine_files,
    sync,
)
from tests.vendor.tools import failure as failure  # a fixture
from tests.vendor.tools import world as world  # a fixture


def test_only_the_parts_are_unpacked(world: World) -> None:
    assert world.run() == 0
    wanted = {*engine_files(), sync.STAMP} - {"tools/big.cpp"}
    assert set(world.times()) == wanted
    assert world.hot() == TEXT
    assert [p.name for p in world.dest.parent.iterdir() if p.is_dir()] == ["llama.cpp"]


def test_second_run_touches_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.patch("0001", REPLACE_3)
    assert world.run() == 0
    before, folder = world.times(), world.dest.parent.stat().st_mtime_ns
    world.archive.unlink()  # and needs nothing
    capsys.readouterr()
    assert world.run("--dest", world.dest) == 0
    assert world.times() == before
    assert world.dest.parent.stat().st_mtime_ns == folder
    assert "up to date" in capsys.readouterr().out


def test_wrong_hash(world: World, failure: Failure) -> None:
    got = hashlib.sha256(world.archive.read_bytes()).hexdigest()
    world.pin("0" * 64)
    text = failure()
    assert got in text and "0" * 64 in text and str(world.archive) in text
    assert not world.dest.exists()


def test_download_then_cache(world: World) -> None:
    world.archive.rename(world.root / "links" / world.archive.name)
    assert world.run("--dest", world.dest) == 0
    cached = world.root / "cache" / world.archive.name
    assert [p.name for p in cached.parent.iterdir()] == [cached.name]
    (world.root / "links" / world.archive.name).unlink()
    assert world.run("--force") == 0  # from the cache now
    cached.write_bytes(b"damaged")  # noticed, ignored, and not an excuse to use it
    assert world.run("--force") == 1


def checkout(world: World) -> Path:
    source = world.root / "checkout"
    for name, text in engine_files().items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    return source


def test_source_folder(world: World) -> None:
    source = checkout(world)
    world.patch("0001", REPLACE_3)
    assert world.run("--source", source) == 0
    assert "three" in world.hot() and (source / HOT).read_text() == TEXT
    before = world.times()
    assert world.run("--source", source) == 0
    assert world.times() == before
    (source / "src" / "file.txt").write_text("edited, of the same commit\n")
    assert world.run("--source", source) == 0
    after = world.times()
    assert {n for n in after if after[n] != before.get(n)} == {"src/file.txt", sync.STAMP}


def test_folder_of_someone_else_is_not_replaced(world: World, failure: Failure) -> None:
    world.dest.mkdir(parents=True)
    (world.dest / "thesis.txt").write_text("precious")
    assert "not replaced" in failure()
    assert "not replaced" in failure("--archive", world.archive, "--force")
    assert (world.dest / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize("killed", ["while writing", "between the renames"])
def test_killed_run_recovers(world: World, killed: str) -> None:
    world.patch("0001", REPLACE_3)
    assert world.run() == 0
    before = world.times()
    aside = world.dest.with_name(".llama.cpp.old")
    (world.dest.with_name(".llama.cpp.new") / "src").mkdir(parents=True)
    if killed == "between the renames":
        world.dest.rename(aside)
    else:
        aside.mkdir()
    world.patch("0001", REPLACE_5)
    assert world.run() == 0
    after = world.times()
    assert {name for name in after if after[name] != before[name]} == {HOT, sync.STAMP}
    assert [p.name for p in world.dest.parent.iterdir() if p.is_dir()] == ["llama.cpp"]


def test_environment_names_the_source(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    source = checkout(world)
    (source / HOT).write_text("mine\n")
    monkeypatch.setenv("PYLLAMA_LLAMA_CPP_DIR", str(source))
    assert world.run("--dest", world.dest) == 0
    assert world.hot() == "mine\n"
    monkeypatch.delenv("PYLLAMA_LLAMA_CPP_DIR")
    assert world.run() == 0  # back to the pin
    assert world.hot() == TEXT
