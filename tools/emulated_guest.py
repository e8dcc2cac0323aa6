"""Compares rows of batches with single rows, on the processor that tools/emulated_rows.py emulates.

    python emulated_guest.py LEVEL FEATURE,... FILE...

For each file and KV cache it prints how many rows of a batch differ from rows decoded one by one.
The last line is "equal" or "unequal".
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import types
from pathlib import Path
from typing import Any

_N_BEFORE, _N_ROWS = 16, 12
_WIDTHS = (2, 6, 12)
_CACHES: dict[str, dict[str, Any]] = {
    "f32": {"type_k": "f32", "type_v": "f32", "flash_attn": False},
    "f16": {"flash_attn": False},
    "f16, flash attention": {"flash_attn": True},
}


def _force(level: str, features: str) -> None:
    """Selects the engine of a level despite CPUID: the emulated model does not report all of it."""
    found = importlib.util.find_spec("pyllama_spec")
    assert found is not None and found.submodule_search_locations is not None
    folder = Path(found.submodule_search_locations[0])
    module = types.ModuleType("pyllama_spec._processor")
    module.__file__ = str(next(folder.glob("_processor*.so")))
    vars(module)["features"] = lambda: features.replace(",", " ")
    sys.modules[module.__name__] = module
    os.environ["PYLLAMA_SPEC_LEVEL"] = level


def _rows(model: Any, tokens: list[int], width: int, params: dict[str, Any]) -> list[bytes]:
    from pyllama_spec.engine import Batch, Context

    rows: list[bytes] = []
    sizes: dict[str, Any] = {
        "n_ctx": len(tokens),
        "n_batch": 33,
        "n_ubatch": 32,
        "n_outputs_max": 32,
    }
    with Context(model, n_threads=1, **sizes, **params) as context:
        batch = Batch(64)
        batch.extend(tokens[:_N_BEFORE], 0)
        context.decode(batch)
        for start in range(_N_BEFORE, len(tokens), width):
            batch.clear()
            part = tokens[start : start + width]
            batch.extend(part, start, output_all=True)
            context.decode(batch)
            rows += [context.logits(i).tobytes() for i in range(len(part))]
    return rows


def main() -> None:
    """Compares the rows for each file, KV cache and batch width, and prints the result."""
    level, features, *files = sys.argv[1:]
    _force(level, features)
    from pyllama_spec.engine import Model
    from pyllama_spec.errors import ContextOpenError

    rng, n_unequal = random.Random(1), 0
    for file in files:
        with Model(file) as model:
            tokens = [rng.randrange(model.info.n_vocab) for _ in range(_N_BEFORE + _N_ROWS)]
            for cache, params in _CACHES.items():
                try:
                    alone = _rows(model, tokens, 1, params)
                except ContextOpenError:
                    continue
                found = {
                    width: sum(a != b for a, b in zip(alone, rows, strict=True))
                    for width in _WIDTHS
                    for rows in [_rows(model, tokens, width, params)]
                }
                n_unequal += sum(found.values())
                words = ", ".join(f"{n} in batches of {width}" for width, n in found.items())
                print(f"{Path(file).stem}, {cache}: of {_N_ROWS} rows {words} differ", flush=True)
    print("unequal" if n_unequal else "equal", flush=True)


if __name__ == "__main__":
    main()
