"""check_architecture.py refuses forbidden imports, and rooms above their budgets."""

from __future__ import annotations

import ast

import pytest

from tests.check_architecture import (
    circle_faults,
    import_faults,
    listed_files,
    module_name,
    modules_named,
)

MODULES = {module_name(path) for path in listed_files() if path.endswith(".py")}
CHAT, REQUESTS = "pyllama_spec/chat/tools.py", "pyllama_spec/requests/run.py"


def faults(path: str, source: str) -> list[str]:
    """The checker's faults for the imports of a file with this text."""
    return list(import_faults(path, ast.parse(source), MODULES))


@pytest.mark.parametrize(
    ("path", "source", "n_faults"),
    [
        (CHAT, "from pyllama_spec.requests import options", 1),
        (CHAT, "from ..requests.options import RequestOptions", 1),
        (CHAT, "def later():\n    from pyllama_spec.requests import job", 1),
        (CHAT, "if TYPE_CHECKING:\n    from pyllama_spec.requests.run import Run", 1),
        (REQUESTS, "from ..chat import template", 1),
        ("pyllama_spec/speculative/round.py", "from pyllama_spec.requests import job", 1),
        (CHAT, "from pyllama_spec.chat.template import check_messages", 0),
        (REQUESTS, "from pyllama_spec.speculative import Round", 0),
    ],
)
def test_nothing_imports_up_or_sideways(path: str, source: str, n_faults: int) -> None:
    """Chat and requests are on one level: an import is refused as one upwards is."""
    assert len(faults(path, source)) == n_faults


def test_a_circle_is_found_where_an_import_is_for_types_alone() -> None:
    """A cycle of three modules."""
    sources = {
        "model": "from pyllama_spec.engine.adapter import name",
        "adapter": "def later():\n    from pyllama_spec.engine import identity",
        "identity": "if TYPE_CHECKING:\n    from pyllama_spec.engine.model import Model",
    }
    graph = {}
    for name, source in sources.items():
        path = f"pyllama_spec/engine/{name}.py"
        graph[module_name(path)] = modules_named(path, ast.parse(source), MODULES)
    assert len(list(circle_faults(graph))) == 1
    graph["pyllama_spec.engine.identity"] = set()
    assert list(circle_faults(graph)) == []
