"""What 256 weights of 16 rows cost the ARM64 kernels, by type and number of activation rows.

    python3 tools/arm64_counts.py build/arm64-dotprod/rows neoverse-n1 [MODEL ...]

First the instructions, as qemu's emulation of that processor counts them. With names of processors
that llvm-mca knows ($LLVM_MCA: 19 or later), then the cycles that these instructions take there
with all data in the first-level cache.
"""

from __future__ import annotations

import collections
import functools
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_WIDTHS = (1, 2, 3, 4, 5, 8)
_N_BLOCKS = 4
# How the symbols of tiles name their blocks.
_TYPES = {
    "q8_0": "BlockOf32<8, 16>, AsTheyAre", "q5_0": "BlockOf32<5, 16>, AsTheyAre",
    "q4_0": "BlockOf32<4, 16>, AsTheyAre", "iq4_nl": "BlockOf32<4, 16>, Iq4",
    "mxfp4": "BlockOfPowers<16>", "q4_1": "BlockWithMin<4, 16>", "q5_1": "BlockWithMin<5, 16>",
    "q2_K": "SuperOfTwoBits<16>", "q3_K": "SuperOfThreeBits<16>", "q4_K": "SuperWithMins<4, 16>",
    "q5_K": "SuperWithMins<5, 16>", "q6_K": "SuperWithScales<6, 16, 16>",
    "iq4_xs": "SuperWithScales<4, 8, 16>",
}  # fmt: skip


def said(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def tiles(program: str) -> dict[tuple[str, int], tuple[int, int]]:
    """The first address of each tile's function and its end, by type and width."""
    out = {}
    for line in said("nm", "-C", "-S", program).splitlines():
        match = re.match(r"(\w+) (\w+) \w void .*\btile<(.*), (\d)>\(", line)
        if match is not None:
            name = match[3].replace("pyllama_spec::", "").replace("(anonymous namespace)::", "")
            kind = next(kind for kind, text in _TYPES.items() if text in name)
            begin = int(match[1], 16)
            out[kind, int(match[4])] = begin, begin + int(match[2], 16)
    return out


def paths(program: str, cpu: str) -> dict[tuple[str, int], list[int]]:
    """The addresses that each tile runs through for one block."""
    functions = {key: span for key, span in tiles(program).items() if key[1] in _WIDTHS}
    key_of = {at: key for key, span in functions.items() for at in range(*span, 4)}
    ranges = ",".join(f"0x{begin:x}..0x{end - 1:x}" for begin, end in functions.values())
    runs: dict[tuple[str, int], list[int]] = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        said("qemu-aarch64", "-cpu", cpu, "-singlestep", "-d", "exec,nochain", "-dfilter", ranges,
             "-D", str(log), program, str(_N_BLOCKS))  # fmt: skip
        with log.open(encoding="ascii") as lines:
            for line in lines:
                at = int(line.split("/")[1], 16)
                runs[key_of[at]].append(at)
    out = {}
    for key, run in runs.items():
        counted = collections.Counter(run)
        # The loop over blocks begins where the tile comes once for each of them.
        head = next(at for at in run if counted[at] == _N_BLOCKS)
        visits = [i for i, at in enumerate(run) if at == head]
        out[key] = run[visits[1] : visits[2]]
    return out


def cycles(path: list[int], text: dict[int, str], model: str) -> float:
    """Cycles that llvm-mca gives for a run through these addresses."""
    n_runs = 20
    code = "\n".join(text[at] for at in path)
    done = subprocess.run(
        [os.environ.get("LLVM_MCA", "llvm-mca"), "-mtriple=aarch64", f"-mcpu={model}",
         "-mattr=+i8mm,+dotprod", f"-iterations={n_runs}", "-instruction-info=false",
         "-resource-pressure=false"],
        input=code, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(re.search(r"Total Cycles:\s+(\d+)", done.stdout)[1]) / n_runs  # type: ignore[index]


def code(program: str) -> dict[int, str]:
    """The instructions of a program by address, for an assembler."""
    out = {}
    for line in said("aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", program).splitlines():
        match = re.match(r"\s+(\w+):\s+(.*)", line)
        if match is not None:
            # The target of a branch is not known there, and does not matter.
            words = re.sub(r"\b[0-9a-f]+ <.*>", "0", match[2])
            out[int(match[1], 16)] = re.sub(r"\s+//.*", "", words)
    return out


def table(name: str, of: dict[tuple[str, int], float]) -> None:
    """Prints a line for each type, by width, and five rows over one."""
    print(name, *_WIDTHS, "5/1", sep="\t")
    for kind in _TYPES:
        # Blocks of 32: eight of them are 256 numbers.
        factor = 1 if kind[-2:] in {"_K", "xs"} else 8
        by = {n: of[kind, n] * factor for n in _WIDTHS}
        print(kind, *(round(x) for x in by.values()), f"{by[5] / by[1]:.2f}", sep="\t")


def main() -> None:
    """Prints the tables."""
    program, cpu, *models = sys.argv[1:]
    ways = paths(program, cpu)
    table("count", {key: len(path) for key, path in ways.items()})
    text = code(program) if models else {}
    for model in models:
        with ThreadPoolExecutor(2) as threads:
            found = threads.map(functools.partial(cycles, text=text, model=model), ways.values())
            table(model, dict(zip(ways, found, strict=True)))


if __name__ == "__main__":
    main()
