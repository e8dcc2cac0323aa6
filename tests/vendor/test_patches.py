"""vendor/sync.py on made-up patches, and the required header of ours."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.vendor.tools import (
    HOT,
    LATER_20,
    REPLACE_3,
    REPLACE_5,
    SYNC,
    TEXT,
    Failure,
    World,
    sync,
)
from tests.vendor.tools import failure as failure  # a fixture
from tests.vendor.tools import world as world  # a fixture


def test_same_result_as_git_apply(world: World) -> None:
    world.patch("0001", REPLACE_5 + LATER_20 + "-- \n2.43.0\n")
    assert world.run() == 0
    (world.root / "src").mkdir()
    (world.root / HOT).write_text(TEXT)
    command = ["git", "apply", "--unsafe-paths", str(world.patches / "0001.patch")]
    try:
        subprocess.run(command, cwd=world.root, check=True)
    except FileNotFoundError:
        pytest.skip("no git")
    assert (world.root / HOT).read_text() == world.hot()


def test_changed_patch_rewrites_only_its_files(world: World) -> None:
    world.patch("0001", REPLACE_3)
    world.patch("0002", REPLACE_3, file="include/llama.h")
    assert world.run() == 0
    before = world.times()
    world.patch("0001", REPLACE_5)
    assert world.run() == 0
    after = world.times()
    assert {name for name in after if after[name] != before[name]} == {HOT, sync.STAMP}
    (world.patches / "0001.patch").unlink()
    assert world.run() == 0
    assert world.hot() == TEXT


def test_patch_that_does_not_apply(world: World, failure: Failure) -> None:
    world.patch("0001", REPLACE_3)
    assert world.run() == 0
    before = world.times()
    world.patch("0002", REPLACE_5 + LATER_20.replace("-line 20", "-line twenty"))
    text = failure()
    assert "0002.patch, src/llama-context.cpp, hunk 2" in text
    assert "line 21 expected: 'line twenty'\n  line 21 found:    'line 20'" in text
    assert world.times() == before  # the tree in place is the old one, whole


@pytest.mark.parametrize(
    ("hunks", "reason"),
    [
        ("@@ -2,3 +2,3 @@\n line 2\n-line 3\n+three\n", "counts"),
        ("no hunk at all\n", "no hunks found"),
    ],
)
def test_malformed_patch(world: World, failure: Failure, hunks: str, reason: str) -> None:
    world.patch("0001", hunks)
    text = failure()
    assert "0001.patch" in text and reason in text


@pytest.mark.parametrize(
    "file", ["../outside", "src/../../outside", "/absolute", "tools/big.cpp", "src/none.c"]
)
def test_patch_of_another_file(world: World, failure: Failure, file: str) -> None:
    (world.root / "out").mkdir()
    (world.root / "out" / "outside").write_text(TEXT)
    file = str(world.root / "out" / "outside") if file == "/absolute" else file
    world.patch("0001", REPLACE_3, file=file)
    assert file in failure()
    assert (world.root / "out" / "outside").read_text() == TEXT


def test_every_patch_of_ours_says_why() -> None:
    for path in sorted((SYNC.parent / "patches").glob("*.patch")):
        title, blank, *rest = path.read_text(encoding="utf-8").split("\n--- ")[0].split("\n")
        assert title and not blank and any(rest), f"{path.name} has no header"


def test_neighbouring_patches_apply_in_order(world: World) -> None:
    world.patch("0001", REPLACE_3)
    world.patch("0002", REPLACE_5 + LATER_20)
    assert world.run() == 0
    lines = world.hot().splitlines()
    assert lines[1:7] == ["line 2", "three", "line 4", "five", "and a half", "line 6"]
    assert lines[20] == "twenty" and len(lines) == 31
    stamp = json.loads((world.dest / sync.STAMP).read_text())
    assert stamp["patches"] == ["0001.patch", "0002.patch"]
