"""Every key of every architecture with every value that it should not have.

    python -m tests.fuzz.by_key [--only ARCH ...] [--share N] > report

Prints a line for each case with a forbidden end, and the counts of the others.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.fuzz import runner
from tests.fuzz.architectures import N_LAYER, NO_FILE, NoFileError, first_header, of_architecture
from tests.fuzz.engine_source import keys_of
from tests.fuzz.gguf_bytes import GgufFile, Value
from tests.robust.tools import generate_greedily

_NAN, _INF = float("nan"), float("inf")
VALUES: dict[str, Value | None] = {
    "absent": None,
    "0": Value("u32", 0),
    "1": Value("u32", 1),
    "3": Value("u32", 3),
    "-1": Value("i32", -1),
    "2^31": Value("u32", 2**31),
    "2^32-1": Value("u32", 2**32 - 1),
    "2^63": Value("u64", 2**63),
    "0.0": Value("f32", 0.0),
    "nan": Value("f32", _NAN),
    "inf": Value("f32", _INF),
    "-1.0": Value("f32", -1.0),
    "true": Value("bool", True),
    "text": Value("str", "x"),
    "[]": Value("[u32]", []),
    "[0]*n": Value("[u32]", [0] * N_LAYER),
    "[0..]": Value("[u32]", [2, 0, 2, 0]),
    "[..0]": Value("[u32]", [0, 2, 0, 2]),
    "[huge]": Value("[u32]", [2**32 - 1] * N_LAYER),
    "[-1]": Value("[i32]", [-1] * N_LAYER),
    "[600]": Value("[i32]", [1] * 600),
    "[text]": Value("[str]", ["x"] * N_LAYER),
    "[nan]": Value("[f32]", [_NAN] * N_LAYER),
    "[true]": Value("[bool]", [True] * N_LAYER),
}


def with_value(file: GgufFile, key: str, value: Value | None) -> GgufFile:
    """The file with one key changed, or without it."""
    keys = dict(file.keys)
    if value is None:
        keys.pop(key, None)
    else:
        keys[key] = value
    return GgufFile(keys, dict(file.tensors))


def under_name(file: GgufFile, arch: str) -> GgufFile:
    """The file under the name of another architecture, its keys too."""
    old = file.keys["general.architecture"].value
    keys = {}
    for name, value in file.keys.items():
        is_own = name.startswith(f"{old}.")
        keys[f"{arch}.{name[len(old) + 1 :]}" if is_own else name] = value
    keys["general.architecture"] = Value("str", arch)
    return GgufFile(keys, dict(file.tensors))


def base_file(arch: str, folder: Path) -> GgufFile:
    """A file that loads, or the header where none is known."""
    try:
        return first_header(arch) if arch in NO_FILE else of_architecture(arch, folder)
    except NoFileError:
        return first_header(arch)


def cases(archs: list[str], folder: Path) -> Iterator[tuple[str, GgufFile]]:
    """Each key of each architecture with each value."""
    for arch in archs:
        file = base_file(arch, folder)
        yield f"{arch} as it is", file
        for key in keys_of()[arch]:
            name = key.replace("%s", arch)
            for label, value in VALUES.items():
                yield f"{name} {label}", with_value(file, name, value)


def sweep(archs: list[str], share: float, folder: Path) -> Counter[str]:
    """Runs the cases; prints those that ended as none may."""
    counts: Counter[str] = Counter()
    draw = random.Random(share)
    for name, file in cases(archs, folder):
        if draw.random() > share:
            continue
        path = file.write(folder / "case.gguf")
        ending = runner.run(partial(generate_greedily, path, 3, 1))
        counts[ending.kind] += 1
        if not ending.is_allowed:
            print(f"{ending.kind}\t{name}\t{ending.said[-300:]!r}", flush=True)
    return counts


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--share", type=float, default=1.0)
    options = parser.parse_args()
    archs = options.only or sorted(keys_of())
    with tempfile.TemporaryDirectory(prefix="pyllama-spec-fuzz-") as name:
        counts = sweep(archs, options.share, Path(name))
    print(dict(counts), file=sys.stderr)


if __name__ == "__main__":
    main()
