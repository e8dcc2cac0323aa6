"""Every bad call ends in an exception of ours that says why: never a signal, a hang, or a print."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from .harness import Case, Outcome, cases_of, run_module

MODULES = (
    "cases_files", "cases_decode", "cases_state", "cases_sampling", "cases_llama", "cases_cli",
)  # fmt: skip
FUZZ = ("cases_fuzz",)
TABLE = [(module, case) for module in MODULES for case in cases_of(module)]
FUZZ_TABLE = [(module, case) for module in FUZZ for case in cases_of(module)]

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
    for part in case.says:
        assert part in outcome.message


@pytest.mark.parametrize(("module", "case"), FUZZ_TABLE, ids=_ids(FUZZ_TABLE))
def test_damaged_file(running: Running, module: str, case: Case) -> None:
    """A flipped byte may be harmless; what is generated then ends as any other text does."""
    outcome = running[module].result()[case.name]
    assert outcome.problem() is None


def test_there_are_enough_cases() -> None:
    assert len(TABLE) >= 70
    assert len(FUZZ_TABLE) >= 200


def test_command_ends_with_its_exit_code(tmp_path: Path) -> None:
    """The program itself, from the shell's side."""
    for words, code in ((["generate", "-m", str(tmp_path / "no.gguf"), "-p", "a"], 1), ([], 2)):
        done = subprocess.run(
            [sys.executable, "-m", "pyllama_spec.cli", *words],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"NO_COLOR": "1"},
            timeout=60,
        )
        assert done.returncode == code
        assert "Traceback" not in done.stderr
