"""llama.pyi describes Llama as llama.py does, with the keywords of OpenOptions."""

from __future__ import annotations

import ast
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest

import pyllama_spec.llama.llama as llama_module
from pyllama_spec import Llama
from pyllama_spec.llama.open_options import KEYWORDS, OpenOptions, with_arguments

STUB = Path(inspect.getfile(llama_module)).with_suffix(".pyi")


def class_of(path: Path) -> ast.ClassDef:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Llama")


def functions(path: Path) -> dict[str, list[ast.FunctionDef]]:
    """The functions of Llama by name; setters and overloads share one."""
    out: dict[str, list[ast.FunctionDef]] = {}
    for node in class_of(path).body:
        if isinstance(node, ast.FunctionDef):
            out.setdefault(node.name, []).append(node)
    return out


def parameters(node: ast.FunctionDef) -> list[tuple[str, str, str]]:
    """(name, type, default) of each, as they are written; None where there is no default."""
    args, written = node.args, ast.unparse
    n_without = len(args.args) - len(args.defaults)
    defaults = [*[None] * n_without, *args.defaults, *args.kw_defaults]
    listed = [
        (one.arg, written(one.annotation) if one.annotation else "", written(d) if d else "")
        for one, d in zip([*args.args, *args.kwonlyargs], defaults, strict=True)
    ]
    stars = [star for star in (args.vararg, args.kwarg) if star is not None]
    return listed + [(f"*{one.arg}", written(one.annotation or one), "") for one in stars]


def is_overload(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(one) == "overload" for one in node.decorator_list)


WRITTEN, STUBBED = functions(STUB.with_suffix(".py")), functions(STUB)


def test_both_have_the_same_names() -> None:
    public = {name for name in WRITTEN if not name.startswith("_")}
    assert public == {name for name in STUBBED if not name.startswith("_")}
    assert set(STUBBED) <= set(WRITTEN)
    assert "__call__ = create_completion" in STUB.read_text(encoding="utf-8")
    bases = [ast.unparse(base) for base in class_of(STUB).bases]
    assert bases == [base.__name__ for base in Llama.__bases__]  # their calls are not in the stub


@pytest.mark.parametrize("name", [name for name in STUBBED if name != "__init__"])
def test_signatures_are_the_same(name: str) -> None:
    if not is_overload(STUBBED[name][0]):
        for stub, written in zip(STUBBED[name], WRITTEN[name], strict=True):
            assert parameters(stub) == parameters(written)
            assert ast.unparse(stub.returns or stub) == ast.unparse(written.returns or written)
        return
    (written,) = WRITTEN[name]
    whole, stream, _ = STUBBED[name]  # the last one takes anything
    order = [one for one, _, _ in parameters(written)]
    assert [one for one, _, _ in parameters(whole)] == order
    assert [one for one, _, _ in parameters(stream)] == order
    types = {one: kind for one, kind, _ in parameters(written)}
    for overload, literal in ((whole, "Literal[False]"), (stream, "Literal[True]")):
        kinds = {one: kind for one, kind, _ in parameters(overload)}
        assert kinds.pop("stream") == literal
        assert {one for one in kinds if kinds[one] not in ("Any", types[one])} == set()


def test_keywords_are_those_of_open_options() -> None:
    (stub,) = STUBBED["__init__"]
    seen = inspect.signature(Llama.__init__).parameters
    assert [one for one, _, _ in parameters(stub)] == ["self", *KEYWORDS, "*unknown"]
    assert list(seen) == ["self", *KEYWORDS, "unknown"]
    for name, kind, default in parameters(stub)[1:-1]:
        parameter = seen[name]
        assert kind == parameter.annotation, name
        written: Any = ast.literal_eval(default) if default else inspect.Parameter.empty
        assert written == parameter.default, name
        assert type(written) is type(parameter.default), name


def test_every_keyword_is_told_of() -> None:
    assert OpenOptions.__doc__ is not None
    assert Llama.__doc__ is not None
    head, _, _ = inspect.cleandoc(OpenOptions.__doc__).partition("Raises:")
    told = {
        word.strip()
        for line in head.splitlines()
        if line.startswith("    ") and not line.startswith("     ") and ":" in line
        for word in line.partition(":")[0].split(",")
    }
    assert set(KEYWORDS) - told == set()
    assert head[head.index("Args:") :].strip() in Llama.__doc__


def test_options_are_kept_as_they_were_given() -> None:
    options, unknown = OpenOptions.from_keywords("m.gguf", {"split_mode": 1, "f16_kv": True})
    assert unknown == ["f16_kv"]
    assert options.keywords()["split_mode"] == 1
    assert options.attributes()["split_mode"] == "layer"
    again = OpenOptions(**pickle.loads(pickle.dumps(options.keywords())))
    assert again.keywords() == options.keywords()


def test_docstrings_without_indentation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the compiler of Python 3.13 leaves them."""
    assert OpenOptions.__doc__ is not None
    monkeypatch.setattr(OpenOptions, "__doc__", inspect.cleandoc(OpenOptions.__doc__))
    told = with_arguments("Opens.\n\nRaises:\n    ArgumentError: no.\n")
    assert told is not None
    assert told.startswith("Opens.\n\nArgs:\n    model_path: ")
    assert told.endswith("\n\nRaises:\n    ArgumentError: no.")
