"""A pytest plugin for CI, loaded by ``-p tests.no_skips``.

A skipped test proves nothing, so it is a failure; an expected failure counts as skipped.

"""

from __future__ import annotations

from typing import Any

import pytest

_skipped: list[str] = []


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped:
        reason = report.longrepr
        text = reason[2] if isinstance(reason, tuple) else getattr(report, "wasxfail", reason)
        _skipped.append(f"{report.nodeid}: {text}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Sees every test."""
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Sees whole modules, which importorskip() leaves out."""
    _note(report)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Collects the skips of a `pytest -n` process when it ends."""
    new = getattr(node, "workeroutput", {}).get("skipped", ())
    _skipped.extend(line for line in new if line not in _skipped)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Turns a passed session with skips into a failed one."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["skipped"] = list(_skipped)
    if _skipped and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names them, above the closing line."""
    if _skipped:
        terminalreporter.section("skipped: a failure here", red=True)
        for line in _skipped:
            terminalreporter.write_line(line)
