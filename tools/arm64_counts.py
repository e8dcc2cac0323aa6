"""Instructions of the ARM64 kernels for 256 weights of 16 rows, by type and width, as qemu counts them.

    python3 tools/arm64_counts.py build/arm64-dotprod/rows neoverse-n1
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_WIDTHS = (1, 2, 3, 4, 5, 8)
# How the symbols of tiles name their blocks.
_TYPES = {
    "q8_0": "BlockOf32<8, 16>, AsTheyAre", "q5_0": "BlockOf32<5, 16>, AsTheyAre",
    "q4_0": "BlockOf32<4, 16>, AsTheyAre", "iq4_nl": "BlockOf32<4, 16>, Iq4",
    "mxfp4": "BlockOfPowers<16>", "q4_1": "BlockWithMin<4, 16>", "q5_1": "BlockWithMin<5, 16>",
    "q2_K": "SuperOfTwoBits<16>", "q3_K": "SuperOfThreeBits<16>", "q4_K": "SuperWithMins<4, 16>",
    "q5_K": "SuperWithMins<5, 16>", "q6_K": "SuperWithScales<6, 16, 16>",
    "iq4_xs": "SuperWithScales<4, 8, 16>",
}  # fmt: skip


def tiles(program: str) -> list[tuple[int, int, str, int]]:
    """The tiles' functions: first address, end, type, width."""
    listed = subprocess.run(
        ["nm", "-C", "-S", program], capture_output=True, text=True, check=True
    ).stdout
    out = []
    for line in listed.splitlines():
        match = re.match(r"(\w+) (\w+) \w void .*\btile<(.*), (\d)>\(", line)
        if match is None:
            continue
        name = match[3].replace("pyllama_spec::", "").replace("(anonymous namespace)::", "")
        kind = next(kind for kind, text in _TYPES.items() if text in name)
        out.append((int(match[1], 16), int(match[1], 16) + int(match[2], 16), kind, int(match[4])))
    return out


def counts(program: str, cpu: str, n_blocks: int) -> dict[tuple[str, int], int]:
    """The instructions that each tile takes for so many blocks."""
    functions = tiles(program)
    of_address = {
        at: (kind, width)
        for begin, end, kind, width in functions
        for at in range(begin, end, 4)
    }  # fmt: skip
    ranges = ",".join(f"0x{begin:x}..0x{end - 1:x}" for begin, end, _, _ in functions)
    total: dict[tuple[str, int], int] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        subprocess.run(
            ["qemu-aarch64", "-cpu", cpu, "-singlestep", "-d", "exec,nochain", "-dfilter", ranges,
             "-D", str(log), program, str(n_blocks)],
            check=True,
        )  # fmt: skip
        with log.open(encoding="ascii") as lines:
            for line in lines:
                total[of_address[int(line.split("/")[1], 16)]] += 1
    return total


def main() -> None:
    """Prints a line for each type: the counts, and five rows over one."""
    program, cpu = sys.argv[1:]
    one, two = counts(program, cpu, 1), counts(program, cpu, 2)
    print("type", *_WIDTHS, "5/1", sep="\t")
    for kind in _TYPES:
        # Blocks of 32: eight of them are 256 numbers.
        factor = 1 if kind[-2:] in {"_K", "xs"} else 8
        by = {n: (two[kind, n] - one[kind, n]) * factor for n in _WIDTHS}
        print(kind, *by.values(), f"{by[5] / by[1]:.2f}", sep="\t")


if __name__ == "__main__":
    main()
