"""Runs one app: ``python -m tools.comparison.app_child APP theirs|ours|draft MODEL OUT ENGINE``.

ENGINE is the compiled module of this tree: the libraries' environments import our sources.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tools.comparison.app_calls import APPS
from tools.comparison.engine import find_engine
from tools.comparison.shapes import shape_of


def main(app: str, side: str, model: str, path: str, engine: str) -> int:
    """Writes JSON: name -> the call's value, or its error."""
    extra: dict[str, Any] = {}
    if side != "theirs":
        find_engine(engine)
        from pyllama_spec import llama_cpp

        llama_cpp.install()
        extra = {"draft": "prompt-lookup"} if side == "draft" else {}
    results: dict[str, Any] = {}
    try:
        calls = APPS[app][0](model, extra)
    except Exception as error:  # noqa: BLE001 - any error is a result
        results["opening"] = _failed(error)
        calls = {}
    for name, call in calls.items():
        start = time.perf_counter()
        try:
            results[name] = {"value": shape_of(call())}
        except Exception as error:  # noqa: BLE001 - the same
            results[name] = _failed(error)
        results[name]["seconds"] = round(time.perf_counter() - start, 3)
    Path(path).write_text(json.dumps(results))
    return 0


def _failed(error: Exception) -> dict[str, Any]:
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind is not object]
    return {"error": kinds, "says": str(error)[:400]}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
