"""Files with bytes changed, each used in a process of its own; the counts by how they end.

    python -m tests.fuzz.mutated [--n 20000] [--seed 0] [--keep FOLDER]

Over all architectures and the drafts. Prints each forbidden end; --keep keeps its file. A mutation:
flipped bits, bytes with extreme values, a range removed, doubled or moved, a number in the header,
the end cut off.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pyllama_spec import Llama
from pyllama_spec.errors import PyllamaSpecError
from tests.fuzz import runner
from tests.fuzz.by_key import base_file
from tests.fuzz.engine_source import keys_of
from tests.models import model_path
from tests.robust.tools import generate_greedily, tiny

_EDGES = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)
DRAFTS = {"eagle3": {"target_layers": (0, 1, 2)}, "dflash": {}}


def mutate(data: bytearray, draw: random.Random) -> bytearray:
    """One to four changes, most of them in the header, since weights may have any value."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        most = len(data) if draw.random() < 0.2 else min(len(data), 24_000)
        at = draw.randrange(most)
        kind = draw.randrange(8)
        n = draw.choice((1, 1, 2, 4, 8, 32, 300))
        if kind <= 1:
            data[at] ^= 1 << draw.randrange(8)
        elif kind <= 3:
            data[at : at + n] = bytes([draw.choice(_EDGES)] * len(data[at : at + n]))
        elif kind == 4:
            del data[at : at + n]
        elif kind == 5:
            data[at:at] = data[at : at + n]
        elif kind == 6:
            other = draw.randrange(most)
            data[at : at + n] = data[other : other + n]
        else:
            del data[draw.randrange(len(data) // 4, len(data)) :]
        if not data:
            data.append(0)
    return data


def _draft_with(path: Path) -> None:
    with Llama(tiny(), draft=path, n_ctx=64, n_threads=1) as llm:
        llm.create_completion([1, 2, 3, 4], max_tokens=4, temperature=0)


def _target_with(path: Path) -> None:
    generate_greedily(path, 3, 1)


def bases(folder: Path) -> Iterator[tuple[str, bytes]]:
    """A file of each kind."""
    for arch in sorted(keys_of()):
        if arch not in DRAFTS:
            yield arch, base_file(arch, folder).write(folder / "base.gguf").read_bytes()
    for kind, options in DRAFTS.items():
        yield kind, model_path(kind, **options).read_bytes()


def sweep(n: int, seed: int, keep: Path | None = None) -> Counter[str]:
    """Runs n mutated files; prints those that ended as none may."""
    draw = random.Random(f"mutated {seed}")
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="pyllama-spec-mutated-") as name:
        path = Path(name) / "case.gguf"
        files = list(bases(Path(name)))
        for i in range(n):
            kind, data = files[i % len(files)]
            path.write_bytes(mutate(bytearray(data), draw))
            use = _draft_with if kind in DRAFTS else _target_with
            ending = runner.run(partial(_quietly, use, path))
            counts[ending.kind] += 1
            if not ending.is_allowed:
                print(f"{ending.kind}\t{i} {kind}\t{ending.said[-300:]!r}", flush=True)
                if keep is not None:
                    shutil.copy(path, keep / f"{kind}-{seed}-{i}.gguf")
    return counts


def _quietly(use: Callable[[Path], None], path: Path) -> None:
    try:
        use(path)
    except PyllamaSpecError as error:
        if not str(error):
            raise AssertionError("an error without a reason") from error
        raise


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    print(dict(sweep(options.n, options.seed, options.keep)), file=sys.stderr)


if __name__ == "__main__":
    main()
