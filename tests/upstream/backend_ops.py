"""The engine's test of its operations, test-backend-ops, with our kernels and without them.

    python -m tests.upstream.backend_ops [--ops MUL_MAT,MUL_MAT_ID,...] [--work DIR]

It compares the CPU backend with the backend's own reference. The program is linked with the
libraries that `make` built in this tree. Ends with 1 if an operation fails only with our kernels.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.upstream.built import ggml_libraries
from tests.upstream.run import ROOT, archive

# Those that reach our kernels, and those that patches touch.
OPS = "MUL_MAT,MUL_MAT_ID,FLASH_ATTN_EXT,SSM_CONV,SSM_SCAN,GATED_DELTA_NET"
SOURCE = "tests/test-backend-ops.cpp"
# A case and how it ended, without the colours.
LINE = re.compile(r"^\s*([A-Z_0-9]+\(.*\)): (OK|FAIL|not supported.*)$", re.MULTILINE)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def libraries() -> list[Path]:
    """The libraries of the engine's backends, in linker order."""
    built = ggml_libraries()
    backends = sorted(built.glob("ggml-*/lib*.a"))  # in the registry beside the CPU
    return [
        built / "libggml.a", *backends, built / "libggml-cpu.a", built / "libggml-base.a",
    ]  # fmt: skip


def build(work: Path) -> Path:
    """The program."""
    file, folder = archive()
    source = work / Path(SOURCE).name
    if not source.exists():
        with tarfile.open(file) as package:
            member = package.extractfile(f"{folder}/{SOURCE}")
            assert member is not None
            source.write_bytes(member.read())
    engine = ROOT / "vendor/llama.cpp/ggml"
    compile_one = ["g++", "-O1", "-std=c++17", "-w", "-c", f"-I{engine / 'include'}"]
    compile_one += [f"-I{engine / 'src'}", f"-I{ROOT / 'csrc'}"]
    objects = []
    for path in (source, Path(__file__).with_name("stock.cpp")):
        target = work / f"{path.stem}.o"
        if not target.exists() or target.stat().st_mtime < path.stat().st_mtime:
            subprocess.run([*compile_one, str(path), "-o", str(target)], check=True)
        objects.append(str(target))
    program = work / "test-backend-ops"
    wrap = "-Wl,--wrap=pyllama_spec_prepare_pool"
    link = ["g++", wrap, *objects, *map(str, libraries()), "-lpthread", "-ldl", "-o", str(program)]
    subprocess.run(link, check=True)
    return program


def outcomes(program: Path, ops: str, *, is_stock: bool) -> dict[str, str]:
    """How each case ended."""
    variables = {**os.environ, **({"PYLLAMA_SPEC_STOCK": "1"} if is_stock else {})}
    command = [str(program), "test", "-b", "CPU", "-o", ops]
    log = program.with_name(f"{'stock' if is_stock else 'ours'}.log")  # minutes: to be looked at
    with log.open("wb") as out:
        done = subprocess.run(command, check=False, stdout=out, stderr=out, env=variables)
    text = COLOURS.sub("", log.read_text(encoding="utf-8", errors="replace"))
    found = dict(LINE.findall(text))
    if not re.search(r"^\s*\d+/\d+ tests passed", text, re.MULTILINE):
        raise SystemExit(f"{program} ended with {done.returncode} before its end: see {log}")
    return found


def main() -> int:
    """Prints a line for each side, and what fails with our kernels alone."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ops", default=OPS)
    work = Path(tempfile.gettempdir()) / "pls-backend-ops"
    parser.add_argument("--work", type=Path, default=work)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    program = build(args.work)
    sides = {}
    for name, is_stock in (("ours", False), ("stock", True)):
        found = sides[name] = outcomes(program, args.ops, is_stock=is_stock)
        counts = {end: list(found.values()).count(end) for end in sorted(set(found.values()))}
        print(f"{name:<6} {len(found)} cases: {counts}", flush=True)
    worse = [
        case for case, end in sides["ours"].items()
        if end == "FAIL" and sides["stock"].get(case) != "FAIL"
    ]  # fmt: skip
    missing = sides["stock"].keys() - sides["ours"].keys()
    print("\n".join([f"FAILS with ours alone: {case}" for case in worse]))
    return int(bool(worse or missing))


if __name__ == "__main__":
    sys.exit(main())
