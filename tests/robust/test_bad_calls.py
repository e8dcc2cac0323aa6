"""Every bad call raises one of our exceptions with the reason: no signal, hang, or print."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from .harness import Case, Outcome, cases_of, run_module

MODULES = ("cases_files", "cases_dflash", "cases_engine", "cases_llama")
TABLE = [(module, case) for module in MODULES for case in cases_of(module)]


Running = dict[str, Future[dict[str, Outcome]]]


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    """The modules that the session's tests need, two at a time: the test machine has two cores."""
    items = [item for item in request.session.items if item.path == request.path]
    wanted = {item.callspec.params["module"] for item in items if hasattr(item, "callspec")}
    with ThreadPoolExecutor(2) as pool:
        order = [module for module in MODULES if module in wanted]
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
    assert case.parameter in outcome.param, outcome
