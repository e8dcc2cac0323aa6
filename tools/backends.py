"""With which sources the backends beside the CPU passed last: tests/gpu/passed.json.

To build and test them takes longer than all the rest, and what they are made of changes rarely. So
`make test-vulkan` and `make build-cuda` write down what they passed with, to be committed with the
change, and CI runs them where that is not what is there. Needs the standard library alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent.parent
RECORD = _HERE / "tests" / "gpu" / "passed.json"
_ENGINE = ("CMakeLists.txt", "csrc/devices", "vendor/llama.cpp.lock", "vendor/patches")
# Of CUDA it is looked whether it compiles and loads: our own sources are compiled everywhere.
SOURCES: dict[str, tuple[str, ...]] = {
    "vulkan": (*_ENGINE, "csrc", "tests/gpu"),
    "cuda": (*_ENGINE, "tools/check_cuda_build.py"),
}
_NEVER = 2
_SUFFIXES = frozenset((".txt", ".lock", ".patch", ".cpp", ".c", ".h", ".map", ".cmake", ".py"))


def fingerprint(backend: str) -> str:
    """A hash over names and contents of what the backend is made of."""
    files: set[Path] = set()
    for name in SOURCES[backend]:
        path = _HERE / name
        inside = path.rglob("*") if path.is_dir() else (path,)
        # csrc/fuzz is a project of its own; no backend is made of it.
        files.update(f for f in inside if f.suffix in _SUFFIXES and f.parent.name != "fuzz")
    total = hashlib.sha256()
    for file in sorted(files):
        data = file.read_bytes()
        total.update(f"{file.relative_to(_HERE).as_posix()} {len(data)}\n".encode())
        total.update(data)
    return total.hexdigest()


def main() -> int:
    """Answers, or writes down.

    Returns:
        0 where the backend passed with these sources, 1 where it did with others, 2 where it never
        has.

    """
    parser = argparse.ArgumentParser(description="what a backend passed with")
    parser.add_argument("backend", choices=SOURCES)
    parser.add_argument("--record", action="store_true", help="it has passed just now")
    args = parser.parse_args()
    passed = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    now = fingerprint(args.backend)
    if args.record:
        passed[args.backend] = now
        RECORD.write_text(json.dumps(passed, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if args.backend not in passed:
        return _NEVER
    return int(passed[args.backend] != now)


if __name__ == "__main__":
    sys.exit(main())
