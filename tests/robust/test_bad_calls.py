"""Every bad call raises one of our exceptions with the reason: no signal, hang, or print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from pyllama_spec import errors
from pyllama_spec.errors import CancelledError, ConversionError, ForkedError, PyllamaSpecError

from .cases_fuzz import ARCHS, N_FLIPS
from .harness import Case, Outcome, cases_of, run_module

MODULES = ("cases_files", "cases_dflash", "cases_engine", "cases_llama")
FUZZ = ("cases_fuzz",)
TABLE = [(module, case) for module in MODULES for case in cases_of(module)]
FUZZ_TABLE = [(module, case) for module in FUZZ for case in cases_of(module)]

_HERE = Path(__file__).parent
# Errors that have tests of their own: of conversion, interruptions, and forks.
_ELSEWHERE = (ConversionError, CancelledError, ForkedError)

# What to do, or what would be right instead.
REMEDY = re.compile(
    r"\b(?:add|allow|ask|call|change|check|choose|clear|close|convert|correct|create|decode|delete|"
    r"download|enable|give|gives|leave|load|make|name|open|pass|put|quantize|remove|reset|return|"
    r"set|shorten|start|try|update|use|wait|write)\b|"
    r"\b(?:applies to|at (?:least|most)|between|do(?:es)? not fit|expected|more than|must|needs?|"
    r"one of|only|outside|takes|such as|did you mean)\b|, not |is not |; there are | are$|--help",
    re.IGNORECASE,
)  # fmt: skip
Running = dict[str, Future[dict[str, Outcome]]]


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    """The modules that the session's tests need, two at a time: the test machine has two cores."""
    items = [item for item in request.session.items if item.path == request.path]
    wanted = {item.callspec.params["module"] for item in items if hasattr(item, "callspec")}
    with ThreadPoolExecutor(2) as pool:
        order = [module for module in (*FUZZ, *MODULES) if module in wanted]
        yield {module: pool.submit(run_module, module) for module in order}


def _ids(table: list[tuple[str, Case]]) -> list[str]:
    return [f"{module.removeprefix('cases_')}-{case.name}" for module, case in table]


@pytest.mark.parametrize(("module", "case"), TABLE, ids=_ids(TABLE))
def test_bad_call(running: Running, module: str, case: Case) -> None:
    outcome = running[module].result()[case.name]
    assert outcome.problem() is None
    if case.raises is None:
        assert outcome.kinds == ()
        return
    assert outcome.kinds, "nothing was raised"
    assert case.raises.__name__ in outcome.kinds, outcome.message
    assert re.search(rf"\b{re.escape(case.parameter)}", outcome.message), outcome.message
    assert REMEDY.search(outcome.message), outcome.message


@pytest.mark.parametrize(("module", "case"), FUZZ_TABLE, ids=_ids(FUZZ_TABLE))
def test_damaged_file(running: Running, module: str, case: Case) -> None:
    """A flipped byte may be harmless; the generated text then ends as usual."""
    outcome = running[module].result()[case.name]
    assert outcome.problem() is None


def test_every_error_of_the_engine_is_met() -> None:
    met = {case.raises for _, case in TABLE if case.raises is not None}
    assert {kind for kind in _kinds() if not issubclass(kind, _ELSEWHERE)} <= met


def _kinds() -> list[type[PyllamaSpecError]]:
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, PyllamaSpecError)
    ]


def test_each_part_of_a_file_is_damaged() -> None:
    """Keys, the texts of tokens, and weights, for each kind of model."""
    names = [case.name for _, case in FUZZ_TABLE]
    for arch in ARCHS:
        assert sum(name.startswith(f"{arch}_") for name in names) == N_FLIPS


def test_command_ends_with_its_exit_code(tmp_path: Path) -> None:
    """The program's own exit code, as the shell sees it."""
    for words, code in ((["generate", "-m", str(tmp_path / "no.gguf"), "-p", "a"], 1), ([], 2)):
        done = subprocess.run(
            [sys.executable, "-m", "pyllama_spec.cli", *words],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"NO_COLOR": "1"},
            timeout=300,
        )
        assert done.returncode == code
        assert "Traceback" not in done.stderr
