"""Runs the calls of calls.txt in the environment of its interpreter.

``python -m tools.comparison.child ours|theirs MODELS OUT ENGINE``: MODELS is JSON of name -> path,
ENGINE the compiled module of this tree. The side `theirs` must not import pyllama_spec.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.util
import inspect
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.comparison.calls import CALLS, SETTING
from tools.comparison.shapes import shape_of

PARTS = (
    "llama", "llama_cache", "llama_chat_format", "llama_grammar", "llama_speculative",
    "llama_tokenizer", "llama_types",
)  # fmt: skip
OPEN: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "verbose": False}


class _Engine(importlib.abc.MetaPathFinder):
    """Finds the compiled module where an editable install has put it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of that one module; None for others."""
        if name != "pyllama_spec._engine":
            return None
        return importlib.util.spec_from_file_location(name, self.path)


class World:
    """The names that the calls use."""

    def __init__(self, llama_cpp: Any, models: dict[str, str]) -> None:
        self.llama_cpp, self.models = llama_cpp, models
        self._opened: list[Any] = []
        self._lasting: dict[str, Any] = {}

    def open(self, model: str = "target", **keywords: Any) -> Any:
        """A Llama for one call."""
        opened = self.llama_cpp.Llama(self.models[model], **{**OPEN, **keywords})
        self._opened.append(opened)
        return opened

    def kept(self, model: str = "target", **keywords: Any) -> Any:
        """A Llama that all calls with the same keywords share."""
        key = repr((model, sorted(keywords.items())))
        if key not in self._lasting:
            self._lasting[key] = self.llama_cpp.Llama(self.models[model], **{**OPEN, **keywords})
        return self._lasting[key]

    def tidy(self) -> None:
        """Closes the models that a call opened, and resets the shared ones."""
        while self._opened:
            self._opened.pop().close()
        for one in self._lasting.values():
            with contextlib.suppress(Exception):
                one.set_cache(None)
                one.set_seed(1)
                one.reset()

    def names(self) -> dict[str, Any]:
        """The namespace of the calls."""
        namespace: dict[str, Any] = {
            "llama_cpp": self.llama_cpp, "open": self.open, "kept": self.kept,
            "models": self.models, "folder": tempfile.mkdtemp(),
        }  # fmt: skip
        for part in PARTS:
            namespace[part] = importlib.import_module(f"{self.llama_cpp.__name__}.{part}")
        exec(SETTING, namespace)
        return namespace


def run(code: str, names: dict[str, Any]) -> Any:
    """The value of the last expression of a call."""
    tree = ast.parse(code)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr), code
    scope = dict(names)
    exec(compile(tree, "<call>", "exec"), scope)
    return eval(compile(ast.Expression(last.value), "<call>", "eval"), scope)


def attempt(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """The result of a call, or its error."""
    start = time.perf_counter()
    try:
        outcome: dict[str, Any] = {"value": shape_of(run(code, names))}
    except Exception as error:  # noqa: BLE001 - any error is a result
        kinds = [kind.__name__ for kind in type(error).__mro__ if kind is not object]
        outcome = {"error": kinds, "says": str(error)[:300]}
    outcome["seconds"] = round(time.perf_counter() - start, 3)
    return outcome


def signatures(names: dict[str, Any]) -> dict[str, list[list[str]]]:
    """The parameters of every public function, with their kinds and defaults."""
    parameters: dict[str, list[list[str]]] = {}
    for part in PARTS:
        module = names[part]
        for name, thing in vars(module).items():
            own = getattr(thing, "__module__", "") or ""
            if name.startswith("_") or not own.startswith(("llama_cpp.", "pyllama_spec.")):
                continue
            if inspect.isfunction(thing):
                parameters[f"{part}.{name}"] = _parameters(thing)
            elif inspect.isclass(thing) and not hasattr(thing, "__total__"):
                parameters.update(_of_class(f"{part}.{name}", thing))
    return parameters


def _of_class(path: str, kind: type) -> Iterator[tuple[str, list[list[str]]]]:
    for name in dir(kind):
        if name.startswith("_") and name not in ("__init__", "__call__"):
            continue
        member = inspect.getattr_static(kind, name)
        member = getattr(member, "__func__", member)
        if inspect.isfunction(member):
            yield f"{path}.{name}", _parameters(member)
        elif isinstance(member, property):
            yield f"{path}.{name}", []


def _parameters(function: Any) -> list[list[str]]:
    parameters = []
    for one in inspect.signature(function).parameters.values():
        default = "" if one.default is one.empty else repr(one.default)
        if one.name != "self":
            parameters.append([one.name, one.kind.name, default])
    return parameters


def done_before(out: Path) -> set[str]:
    """The calls of earlier processes; a call that ended its process is recorded as a failure."""
    if not out.is_file():
        return set()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    done = {line["call"] for line in lines if "outcome" in line}
    ended = [line["call"] for line in lines if line["call"] not in done]
    for code in ended:
        died = {"error": ["ProcessEnded"], "says": "the whole process ended", "seconds": 0.0}
        note(out, {"call": code, "outcome": died})
    return {*done, *ended}


def note(out: Path, line: dict[str, Any]) -> None:
    """Appends a line at once, because the next call may end the process."""
    with out.open("a") as file:
        file.write(json.dumps(line) + "\n")


def main(side: str, models: str, path: str, engine: str) -> int:
    """Writes JSON lines to a file, because engines print; the last line has the signatures."""
    warnings.simplefilter("ignore")
    out = Path(path)
    done = done_before(out)
    kernels: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    if side == "ours":
        sys.meta_path.insert(0, _Engine(engine))
        kernels = importlib.import_module("pyllama_spec.engine.system").stock_kernels
    name = "llama_cpp" if side == "theirs" else "pyllama_spec.llama_cpp"
    world = World(importlib.import_module(name), json.loads(models))
    names = world.names()
    only = os.environ.get("COMPARISON_ONLY", "")
    # The calls are compared, not the kernels.
    with kernels():
        for _, code, _ in CALLS:
            if only in code and code not in done:
                note(out, {"call": code})
                note(out, {"call": code, "outcome": attempt(code, names)})
                world.tidy()
    note(out, {"call": "", "outcome": signatures(names)})
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
