"""Builds the engine's test of recurrent rollbacks against the patched engine, and runs it.

    python -m tests.upstream.run [--work DIR] [--only REGEX]

The tests and the `common` library that they need are in the source package that vendor/sync.py
downloaded. A build takes some 20 minutes on two cores; a second run builds only changes.
"""

from __future__ import annotations

import argparse
import configparser
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# By the names that test-llama-archs gives the files; each writes snapshots.
ARCHS = (
    "qwen35", "qwen35moe", "qwen3next", "qwen4exp", "mamba", "mamba2", "falcon-h1", "granitehybrid",
    "nemotron_h", "nemotron_h_moe", "lfm2", "lfm2moe", "jamba", "plamo2", "kimi-linear", "kimi-k3",
    "bailingmoe3", "glm5-next", "deepseek4",
)  # fmt: skip


def archive() -> tuple[Path, str]:
    """The downloaded source package, and the engine's folder in it."""
    lock = configparser.ConfigParser(interpolation=None)
    lock.read(ROOT / "vendor" / "llama.cpp.lock")
    pin = lock["llama.cpp"]
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = os.environ.get("PYLLAMA_SPEC_CACHE") or Path(home) / "pyllama_spec"
    return Path(cache) / pin["archive"], pin["folder"]


def build(work: Path) -> Path:
    """The whole tree, with the patched parts over it; the folder of the built tests."""
    full = work / "full"
    if not full.exists():
        file, folder = archive()
        with tarfile.open(file) as package:
            package.extractall(work / "package", filter="data")
        shutil.move(work / "package" / folder, full)
    for part in ("src", "ggml", "include"):
        for source in (ROOT / "vendor" / "llama.cpp" / part).rglob("*"):
            target = full / part / source.relative_to(ROOT / "vendor" / "llama.cpp" / part)
            if source.is_file() and (
                not target.exists() or target.read_bytes() != source.read_bytes()
            ):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
    out = work / "build"
    configure = ["cmake", "-G", "Ninja", "-S", str(Path(__file__).parent), "-B", str(out)]
    subprocess.run([*configure, f"-DFULL_DIR={full}"], check=True)
    tests = ["test-recurrent-state-rollback", "test-llama-archs"]
    subprocess.run(["ninja", "-j2", "-C", str(out), *tests], check=True)
    return out


def main() -> int:
    """The number of architectures that failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "pls-upstream")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    out, n_failed = build(args.work), 0
    for arch in ARCHS:
        if not re.search(args.only, arch):
            continue
        models = args.work / "models" / arch
        models.mkdir(parents=True, exist_ok=True)
        write = [str(out / "test-llama-archs"), "-a", f"^{arch}$", "-o", str(models)]
        subprocess.run(write, check=True, capture_output=True)
        (model,) = models.glob("*.gguf")
        test = [str(out / "test-recurrent-state-rollback"), "-m", str(model)]
        test += ["-t", "1", "-tb", "1"]
        done = subprocess.run(test, check=False, capture_output=True, text=True)
        log = done.stdout + done.stderr
        # Twice, over caches of different content; skipped parts are not counted as passed.
        is_right = done.returncode == 0 and log.count("restored successfully") == 2
        print(f"{arch:<16} {'passed' if is_right else 'FAILED'}", flush=True)
        n_failed += not is_right
    return n_failed


if __name__ == "__main__":
    sys.exit(main())
