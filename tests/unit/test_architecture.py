"""check_architecture.py refuses forbidden imports, and rooms above their budgets."""

from __future__ import annotations

import ast

import pytest

from tests.check_architecture import (
    BUDGETS,
    DOCS_BUDGET,
    budget_faults,
    circle_faults,
    import_faults,
    listed_files,
    module_name,
    modules_named,
)

MODULES = {module_name(path) for path in listed_files() if path.endswith(".py")}
CHAT, REQUESTS = "pyllama_spec/chat/tools.py", "pyllama_spec/requests/job.py"


def faults(path: str, source: str) -> list[str]:
    """The checker's faults for the imports of a file with this text."""
    return list(import_faults(path, ast.parse(source), MODULES))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (CHAT, "from pyllama_spec.requests.options import RequestOptions"),
        (CHAT, "import pyllama_spec.requests.options"),
        (CHAT, "from pyllama_spec.requests import options"),
        (CHAT, "from ..requests.options import RequestOptions"),
        (CHAT, "def later():\n    from pyllama_spec.requests import job"),
        (CHAT, "if TYPE_CHECKING:\n    from pyllama_spec.requests.job import Job"),
        (REQUESTS, "from pyllama_spec.chat.template import ChatTemplate"),
        (REQUESTS, "from ..chat import template"),
        (CHAT, "from pyllama_spec.llama.llama import Llama"),
        ("pyllama_spec/speculative/round.py", "from pyllama_spec.requests import job"),
        ("pyllama_spec/bench/harness.py", "from pyllama_spec.train.config import TrainConfig"),
    ],
)
def test_nothing_imports_up_or_sideways(path: str, source: str) -> None:
    """Chat and requests are on one level: an import is refused as one upwards is."""
    assert len(faults(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (CHAT, "from pyllama_spec.chat.messages import check_messages"),
        (CHAT, "from pyllama_spec.constraints import schema_grammar"),
        (REQUESTS, "from pyllama_spec.speculative import Round"),
        ("pyllama_spec/llama/llama.py", "from pyllama_spec.chat import template, tools"),
    ],
)
def test_imports_go_down_or_stay_in_their_folder(path: str, source: str) -> None:
    assert faults(path, source) == []


FOR_TYPES = "if TYPE_CHECKING:\n    from pyllama_spec.engine.model import Model"


@pytest.mark.parametrize(
    "second",
    [
        "from pyllama_spec.engine.model import Model",
        "def later():\n    from pyllama_spec.engine import model",
        FOR_TYPES,
    ],
)
@pytest.mark.parametrize("third", ["", "from pyllama_spec.engine.identity import digest_of"])
def test_a_circle_is_found_where_an_import_is_for_types_alone(second: str, third: str) -> None:
    """A cycle of two modules, and one of three."""
    between = "identity" if not third else "adapter"
    sources = {
        "model": f"from pyllama_spec.engine.{between} import name",
        "adapter": third,
        "identity": second,
    }
    graph = {}
    for name, source in sources.items():
        path = f"pyllama_spec/engine/{name}.py"
        graph[module_name(path)] = modules_named(path, ast.parse(source), MODULES)
    (fault,) = circle_faults(graph)
    assert fault.startswith("a circle of imports: ")
    graph["pyllama_spec.engine.identity"] = set()
    assert list(circle_faults(graph)) == []


def test_a_room_above_its_budget_is_found() -> None:
    full = dict(BUDGETS)
    assert list(budget_faults(full, DOCS_BUDGET)) == []
    over = full | {"tests": full["tests"] + 1, "pyllama_spec/new": 1}
    rooms = [fault.partition(":")[0] for fault in budget_faults(over, DOCS_BUDGET + 1)]
    assert rooms == ["pyllama_spec/new", "tests", "docs"]
