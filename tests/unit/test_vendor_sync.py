"""vendor/sync.py on made-up archives: the pin, the patches, the stamp and every way to fail."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

SYNC = Path(__file__).parents[2] / "vendor" / "sync.py"
spec = importlib.util.spec_from_file_location("vendor_sync", SYNC)
assert spec is not None and spec.loader is not None
sync = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sync)

NAME = "made_up_engine-1.0"
FOLDER = f"{NAME}/vendor/llama.cpp"
HOT = "src/llama-context.cpp"
TEXT = "".join(f"line {i}\n" for i in range(1, 31))
# A build backend inside the package, so that pip can prepare its metadata without any index.
BACKEND = """
import os
def prepare_metadata_for_build_wheel(folder, settings=None):
    os.mkdir(os.path.join(folder, "made_up_engine-1.0.dist-info"))
    with open(os.path.join(folder, "made_up_engine-1.0.dist-info", "METADATA"), "w") as f:
        f.write("Metadata-Version: 2.1\\nName: made-up-engine\\nVersion: 1.0\\n")
    return "made_up_engine-1.0.dist-info"
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def engine_files() -> dict[str, str]:
    """A file for each part that the build needs, and one that it does not."""
    files = {part: f"{part}\n" for part in sync.PARTS if Path(part).suffix or part.isupper()}
    files |= {f"{part}/file.txt": f"in {part}\n" for part in sync.PARTS if part not in files}
    return files | {HOT: TEXT, "include/llama.h": TEXT, "tools/big.cpp": "not needed\n"}


def write_archive(path: Path, files: dict[str, str], extra: tarfile.TarInfo | None = None) -> None:
    members = {f"{FOLDER}/{name}": text for name, text in files.items()}
    members |= {f"{NAME}/pyproject.toml": PYPROJECT, f"{NAME}/backend.py": BACKEND}
    members[f"{NAME}/PKG-INFO"] = "Metadata-Version: 2.1\nName: made-up-engine\nVersion: 1.0\n"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
        if extra is not None:
            tar.addfile(extra, io.BytesIO(b"x" * extra.size))


class World(NamedTuple):
    """A lock, patches, a destination and an archive in a folder of their own."""

    root: Path
    dest: Path
    archive: Path
    lock: Path
    patches: Path

    def pin(self, sha256: str | None = None) -> None:
        pinned = sha256 or hashlib.sha256(self.archive.read_bytes()).hexdigest()
        self.lock.write_text(
            f"[llama.cpp]\npackage = made-up-engine\nversion = 1.0\nsha256 = {pinned}\n"
            f"folder = {FOLDER}\ncommit = 0\nlicense = MIT\narchive = {NAME}.tar.gz\n"
        )

    def patch(self, name: str, hunks: str, file: str = HOT) -> None:
        text = f"Say why\n\nBecause.\n\n--- a/{file}\n+++ b/{file}\n{hunks}"
        (self.patches / f"{name}.patch").write_text(text)

    def flags(self) -> list[str]:
        paths = {"--dest": self.dest, "--lock": self.lock, "--patches": self.patches}
        return [str(x) for pair in paths.items() for x in pair]

    def run(self, *more: str | Path) -> int:
        given = more or ("--archive", self.archive)
        return int(sync.main([*self.flags(), *map(str, given)]))

    def times(self) -> dict[str, int]:
        files = (p for p in self.dest.rglob("*") if p.is_file())
        return {p.relative_to(self.dest).as_posix(): p.stat().st_mtime_ns for p in files}

    def hot(self) -> str:
        return (self.dest / HOT).read_text()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(
        root=tmp_path,
        dest=tmp_path / "out" / "llama.cpp",
        archive=tmp_path / f"{NAME}.tar.gz",
        lock=tmp_path / "lock",
        patches=tmp_path / "patches",
    )
    made.patches.mkdir()
    write_archive(made.archive, engine_files())
    made.pin()
    monkeypatch.setenv("PYLLAMA_SPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PYLLAMA_LLAMA_CPP_DIR", raising=False)
    # pip sees one folder and nothing else: no index, no settings of this machine.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    (tmp_path / "links").mkdir()
    return made


Failure = Callable[..., str]


@pytest.fixture
def failure(world: World, capsys: pytest.CaptureFixture[str]) -> Failure:
    """Run, expect the one kind of failure there is, and give its text."""

    def fail(*more: str | Path) -> str:
        capsys.readouterr()
        assert world.run(*more) == 1
        text = capsys.readouterr().err
        assert text.startswith("vendor/sync.py: error: ")
        assert not world.dest.with_name(".llama.cpp.new").exists()
        return text

    return fail


REPLACE_3 = "@@ -2,3 +2,3 @@\n line 2\n-line 3\n+three\n line 4\n"
REPLACE_5 = "@@ -4,3 +4,4 @@\n line 4\n-line 5\n+five\n+and a half\n line 6\n"
LATER_20 = "@@ -19,3 +20,3 @@\n line 19\n-line 20\n+twenty\n line 21\n"


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


def test_force_restores_an_edited_tree(world: World) -> None:
    assert world.run() == 0
    (world.dest / HOT).write_text("edited\n")
    assert world.run("--archive", world.archive, "--force") == 0
    assert world.hot() == TEXT


def test_unpacked_files_are_newer_than_the_archive_says(world: World) -> None:
    assert world.run() == 0  # members carry the time 0; ninja would not rebuild for them
    assert min(world.times().values()) > world.lock.stat().st_mtime_ns - 10**9


def test_neighbouring_patches_apply_in_order(world: World) -> None:
    world.patch("0001", REPLACE_3)
    world.patch("0002", REPLACE_5 + LATER_20)
    assert world.run() == 0
    lines = world.hot().splitlines()
    assert lines[1:7] == ["line 2", "three", "line 4", "five", "and a half", "line 6"]
    assert lines[20] == "twenty" and len(lines) == 31
    stamp = json.loads((world.dest / sync.STAMP).read_text())
    assert stamp["patches"] == ["0001.patch", "0002.patch"]


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


def test_vanished_file_is_removed(world: World) -> None:
    assert world.run() == 0
    files = engine_files()
    del files["ggml/file.txt"]
    write_archive(world.archive, files | {"ggml/other.txt": "new\n"})
    world.pin()
    assert world.run() == 0
    assert sorted(p.name for p in (world.dest / "ggml").iterdir()) == ["other.txt"]


def test_moved_hunk_is_found_where_it_is_unique(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.patch("0001", REPLACE_3.replace("-2,3", "-12,3"))
    assert world.run() == 0
    assert world.hot().splitlines()[2] == "three"
    assert "0001.patch, src/llama-context.cpp, hunk 1 found at line 2" in capsys.readouterr().out


def test_ambiguous_hunk_is_refused(world: World, failure: Failure) -> None:
    write_archive(world.archive, engine_files() | {HOT: "x\na\nb\na\nb\n"})
    world.pin()
    world.patch("0001", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n")
    assert "not at line 1, but at several: [2, 4]" in failure()


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
        ("@@ -2,3 +2,3 @@\n line 2\n-line 3\n+three\n line 4\n+lost\n", "counts"),
        ("@@ -2,0 +3 @@\n+no context\n", "counts"),
        ("@@ -29,3 +29,3 @@\n line 29\n-line 30\n+x\n line 31\n", "found:    ''"),
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


def test_new_file_in_a_patch_is_refused(world: World, failure: Failure) -> None:
    world.patch("0001", REPLACE_3 + "diff --git a/src/n b/src/n\nnew file mode 100644\n")
    assert "belong into csrc/" in failure()


def test_wrong_hash(world: World, failure: Failure) -> None:
    got = hashlib.sha256(world.archive.read_bytes()).hexdigest()
    world.pin("0" * 64)
    text = failure()
    assert got in text and "0" * 64 in text and str(world.archive) in text
    assert not world.dest.exists()


def test_truncated_archive(world: World, failure: Failure) -> None:
    whole = world.archive.read_bytes()
    world.archive.write_bytes(whole[: len(whole) // 2])
    assert "not the pinned one" in failure()
    world.pin()  # even when the hash is that of the broken file
    assert "cannot unpack" in failure()
    world.archive.write_bytes(b"not an archive")
    world.pin()
    assert "cannot unpack" in failure()


def escapes() -> list[tarfile.TarInfo]:
    names = ["../evil", f"{FOLDER}/src/../../../../evil", "/tmp/evil", "C:\\evil", "..\\evil"]
    link = tarfile.TarInfo(f"{FOLDER}/src/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    return [*map(tarfile.TarInfo, names), link]


@pytest.mark.parametrize("member", escapes(), ids=lambda member: member.name)
def test_member_outside_of_its_folder(
    world: World, failure: Failure, member: tarfile.TarInfo
) -> None:
    write_archive(world.archive, engine_files(), member)
    world.pin()
    text = failure()
    assert "refused" in text and repr(member.name) in text
    assert not world.dest.exists()


def test_archive_of_something_else(world: World, failure: Failure) -> None:
    write_archive(world.archive, {"src/a.c": ""})
    world.pin()
    assert "has no AUTHORS, CMakeLists.txt" in failure()


def test_malformed_or_missing_lock(world: World, failure: Failure) -> None:
    world.lock.write_text("[llama.cpp]\npackage = x\n")
    assert "malformed" in failure()
    world.lock.unlink()
    assert str(world.lock) in failure()


def test_index_unreachable(world: World, failure: Failure) -> None:
    text = failure("--dest", world.dest)
    assert "could not download made-up-engine==1.0" in text
    assert "No matching distribution" in text  # what pip said
    assert str(world.root / "cache") in text and "PYLLAMA_LLAMA_CPP_DIR" in text


def test_download_then_cache(world: World) -> None:
    world.archive.rename(world.root / "links" / world.archive.name)
    assert world.run("--dest", world.dest) == 0
    cached = world.root / "cache" / world.archive.name
    assert [p.name for p in cached.parent.iterdir()] == [cached.name]
    (world.root / "links" / world.archive.name).unlink()
    assert world.run("--force") == 0  # from the cache now
    cached.write_bytes(b"damaged")  # noticed, ignored, and not an excuse to use it
    assert world.run("--force") == 1


def test_download_of_another_file_is_not_kept(world: World, failure: Failure) -> None:
    world.archive.rename(world.root / "links" / world.archive.name)
    world.pin("0" * 64)
    assert "not the pinned one" in failure("--dest", world.dest)
    assert not (world.root / "cache").exists() and not world.dest.exists()


def test_damaged_cache_is_replaced(world: World) -> None:
    cached = world.root / "cache" / world.archive.name
    cached.parent.mkdir()
    cached.write_bytes(b"damaged")
    data = world.archive.read_bytes()
    world.archive.rename(world.root / "links" / world.archive.name)
    assert world.run("--dest", world.dest) == 0
    assert cached.read_bytes() == data


def test_unwritable_cache_is_only_a_note(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYLLAMA_SPEC_CACHE", str(world.lock / "cache"))  # below a file
    world.archive.rename(world.root / "links" / world.archive.name)
    assert world.run("--dest", world.dest) == 0
    assert "not kept for the next build" in capsys.readouterr().out


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


def test_environment_names_the_source(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    source = checkout(world)
    (source / HOT).write_text("mine\n")
    monkeypatch.setenv("PYLLAMA_LLAMA_CPP_DIR", str(source))
    assert world.run("--dest", world.dest) == 0
    assert world.hot() == "mine\n"
    monkeypatch.delenv("PYLLAMA_LLAMA_CPP_DIR")
    assert world.run() == 0  # back to the pin
    assert world.hot() == TEXT


def test_unusable_source(world: World, failure: Failure) -> None:
    assert "is not a folder" in failure("--source", world.root / "none")
    assert "has no AUTHORS" in failure("--source", world.patches)
    assert world.run() == 0
    assert "give a checkout" in failure("--source", world.dest)


def test_folder_of_someone_else_is_not_replaced(world: World, failure: Failure) -> None:
    world.dest.mkdir(parents=True)
    (world.dest / "thesis.txt").write_text("precious")
    assert "not replaced" in failure()
    assert "not replaced" in failure("--archive", world.archive, "--force")
    assert (world.dest / "thesis.txt").read_text() == "precious"


def test_unwritable_destination(world: World, failure: Failure) -> None:
    assert "lock" in failure("--archive", world.archive, "--dest", world.lock / "below")


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


def test_runs_at_once_take_turns(world: World) -> None:
    world.patch("0001", REPLACE_3)
    command = [sys.executable, str(SYNC), *world.flags(), "--archive", str(world.archive)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    said = [run.communicate(timeout=60)[0] for run in runs]
    assert [run.returncode for run in runs] == [0] * 6
    assert sum("up to date" in text for text in said) == 5
    assert world.hot().splitlines()[2] == "three"


def test_print_changes_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.run("--print") == 0
    state = json.loads(capsys.readouterr().out)
    assert state["package"] == "made-up-engine" and state["current"] is False
    assert not world.dest.parent.exists()


def test_every_patch_of_ours_says_why() -> None:
    for path in sorted((SYNC.parent / "patches").glob("*.patch")):
        title, blank, *rest = path.read_text(encoding="utf-8").split("\n--- ")[0].split("\n")
        assert title and not blank and any(rest), f"{path.name} has no header"
