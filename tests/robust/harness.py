"""Runs cases, each in a process of its own, and says how each process ended.

A server process imports everything once and forks for every case, so that a case does not pay for
an interpreter's start. The forked process ends through the interpreter's shutdown, so that a crash
there is detected too.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyllama_spec.errors import PyllamaSpecError
from tests.fuzz.runner import mapped_bytes

# Far above what a case takes (tens of milliseconds): other programs may keep the machine busy.
WATCHDOG_S = 60.0
# A machine of our users has less memory than the test machine; a case that needs this much failed.
# `make sanitize` says so: what is freed is kept for a while there, and every byte has a shadow.
MAX_RSS_BYTES = (4 if os.environ.get("PYLLAMA_SPEC_SANITIZED") else 1) << 30


_FAILURE = re.compile(
    r"\S+: Note: the drafter \S+ is (?:disabled until|told the tokens) .*: it failed .*\n"
    r"(?:  .*\n?)?"
)


@dataclass(frozen=True, slots=True)
class Case:
    """A call in an empty directory that must raise for a parameter; None: must succeed."""

    name: str
    run: Callable[[Path], object]
    raises: type[PyllamaSpecError] | None
    parameter: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the process of a case ended."""

    status: int  # negative for a signal, as subprocess counts
    hung: bool
    kinds: tuple[str, ...]  # the exception's classes, most special first; () if there was none
    message: str
    param: str
    printed: str
    seconds: float
    max_rss: int  # bytes

    def problem(self) -> str | None:
        """The forbidden behaviour of a case, in words; None if there was none."""
        if self.hung:
            return f"hung for {self.seconds:.0f} s"
        if self.status < 0:
            return f"died by {signal.Signals(-self.status).name}; it printed: {self.printed[-800:]}"
        if self.status != 0:
            return f"exit code {self.status}; it printed: {self.printed[-800:]}"
        # A drafter that fails is said once, on purpose.
        printed = _FAILURE.sub("", self.printed)
        if printed:
            return f"printed: {printed[-800:]}"
        if self.max_rss > MAX_RSS_BYTES:
            return f"used {self.max_rss / 1e9:.1f} GB"
        if self.kinds and "PyllamaSpecError" not in self.kinds:
            return f"raised an untyped {self.kinds[0]}: {self.message[-800:]}"
        return None


class CaseList(list[Case]):
    """Collects the cases of a module."""

    def add(
        self, raises: type[PyllamaSpecError] | None, parameter: str = ""
    ) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
        """Adds the decorated function as a case under its own name."""

        def register(run: Callable[[Path], None]) -> Callable[[Path], None]:
            self.append(Case(run.__name__, run, raises, parameter))
            return run

        return register

    def calls(
        self,
        prefix: str,
        raises: type[PyllamaSpecError] | None,
        rows: dict[str, Callable[[Path], object]],
    ) -> None:
        """Adds one case per row: its name, and the call."""
        self.extend(Case(f"{prefix}_{name}", call, raises) for name, call in rows.items())

    def values(
        self,
        prefix: str,
        make: Callable[..., Callable[[Path], object]],
        raises: type[PyllamaSpecError],
        **values: Any,
    ) -> None:
        """Adds one case per bad value of a parameter, which the error must name.

        A list means several values of a parameter.
        """
        for name, given in values.items():
            for i, value in enumerate(given if isinstance(given, list) else [given]):
                call = make(**{name: value})
                self.append(Case(f"{prefix}_{name}_{i}_{len(self)}", call, raises, name))


def cases_of(module: str) -> list[Case]:
    """The cases of tests.robust.<module>."""
    found: CaseList = importlib.import_module(f"tests.robust.{module}").CASES
    return list(found)


def run_module(module: str) -> dict[str, Outcome]:
    """Runs all cases of a module under one server process, one after the other."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.robust.harness", module],
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S * 10,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the server of {module} failed:\n{done.stderr[-4000:]}")
    found = json.loads(done.stdout)
    return {name: Outcome(**{**o, "kinds": tuple(o["kinds"])}) for name, o in found.items()}


def _serve(module: str) -> None:
    outcomes: dict[str, object] = {}
    cases = cases_of(module)
    # Not under the tests' own folder: a case may give up its rights, and still has to get there.
    root = Path(tempfile.mkdtemp(prefix="pyllama-spec-robust-"))
    root.chmod(0o755)
    for i, case in enumerate(cases):
        folder = root / str(i)
        folder.mkdir()
        outcomes[case.name] = asdict(_run_forked(case, folder))
    # Only here: a forked process must not tidy up on its way out.
    shutil.rmtree(root)
    sys.stdout.write(json.dumps(outcomes))


def _run_forked(case: Case, folder: Path) -> Outcome:
    log, result = folder.with_suffix(".log"), folder.with_suffix(".json")
    start = time.monotonic()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _be_the_case(case, folder, log, result)
    hung = False
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() - start > WATCHDOG_S and not hung:
            hung = True
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.003)
    report = result.read_text() if result.exists() else ""
    raised = json.loads(report or '{"kinds": [], "message": "", "param": ""}')
    return Outcome(
        status=os.waitstatus_to_exitcode(status),
        hung=hung,
        kinds=tuple(raised["kinds"]),
        message=raised["message"],
        param=raised["param"],
        printed=log.read_text(errors="replace") if log.exists() else "",
        seconds=time.monotonic() - start,
        # On Linux in KiB. What the server itself holds is in it: some 60 MB.
        max_rss=usage.ru_maxrss * 1024,
    )


def _be_the_case(case: Case, folder: Path, log: Path, result: Path) -> None:
    """The forked process: it leaves by SystemExit, so that the interpreter shuts down as usual."""
    # Above MAX_RSS_BYTES, so that a case fails by that, and low enough to spare other programs.
    limit = mapped_bytes() + (32 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    report = os.open(result, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    kinds: list[str] = []
    message = param = ""
    try:
        case.run(folder)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test has to hear of it
        kinds = [kind.__name__ for kind in type(error).__mro__]
        is_ours = isinstance(error, PyllamaSpecError)
        message = str(error) if is_ours else traceback.format_exc()
        param = getattr(error, "param", "")
    raised = {"kinds": kinds, "message": message, "param": param}
    os.write(report, json.dumps(raised).encode())
    sys.exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1])
