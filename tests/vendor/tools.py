"""A made-up engine in a made-up archive: for the tests of vendor/sync.py."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
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


def write_archive(path: Path, files: dict[str, str]) -> None:
    members = {f"{FOLDER}/{name}": text for name, text in files.items()}
    members |= {f"{NAME}/pyproject.toml": PYPROJECT, f"{NAME}/backend.py": BACKEND}
    members[f"{NAME}/PKG-INFO"] = "Metadata-Version: 2.1\nName: made-up-engine\nVersion: 1.0\n"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))


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
