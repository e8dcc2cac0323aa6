"""Runs a case in a process of its own, with limits of time and memory, and says how it ended."""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyllama_spec.errors import PyllamaSpecError

# A tiny model takes tens of milliseconds.
CPU_LIMIT_S = 30
# Of a case that waits for nothing; other programs may keep the machine busy.
WALL_LIMIT_S = 300.0
# What a case maps beyond what its parent had: threads' stacks, a tiny model.
MEMORY_LIMIT_BYTES = 6 << 30
_MAX_SAID = 2000


class Ending(NamedTuple):
    """How a case ended.

    Attributes:
        kind: "fine"; the name of one of our errors; "worker" for an assertion of a kernel, which
            other threads of the engine would meet as well; "SIG..." for a signal; "hang",
            "untyped", "printed" or "exit N".
        said: the error's text, or the output.

    """

    kind: str
    said: str

    @property
    def is_allowed(self) -> bool:
        """Whether it ended in an allowed way."""
        return self.kind == "fine" or self.kind.endswith("Error")


def run(case: Callable[[], object], cpu_limit_s: int = CPU_LIMIT_S) -> Ending:
    """Forks, runs the case in the child, waits for its end."""
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _be_the_case(case, write, cpu_limit_s)
    os.close(write)
    data, limit, hung = b"", time.monotonic() + WALL_LIMIT_S, False
    readable = select.poll()  # select() takes no descriptor above 1,023
    readable.register(read, select.POLLIN)
    while not hung:
        left = max(limit - time.monotonic(), 0.0)
        hung = not readable.poll(1e3 * left)
        part = b"" if hung else os.read(read, 65536)
        if not part:
            break
        data = (data + part)[: _MAX_SAID * 4]
    if hung:
        os.kill(pid, signal.SIGKILL)
    os.close(read)
    _, status = os.waitpid(pid, 0)
    return _read(os.waitstatus_to_exitcode(status), data.decode(errors="replace"), hung=hung)


def _read(code: int, said: str, *, hung: bool) -> Ending:
    if hung or code == -signal.SIGXCPU:
        return Ending("hang", said[-_MAX_SAID:])
    if code < 0:
        return Ending(signal.Signals(-code).name, said[-_MAX_SAID:])
    before, mark, after = said.partition("\0")
    if code != 0 or not mark:
        return Ending(f"exit {code}", said[-_MAX_SAID:])
    if before:
        return Ending("printed", before[-_MAX_SAID:])
    kind, _, text = after.partition(": ")
    if re.search(r"ggml-cpu/[\w/.-]+:\d+: ", text):
        return Ending("worker", text[-_MAX_SAID:])
    return Ending(kind, text[-_MAX_SAID:])


def mapped_bytes() -> int:
    """The mapped bytes of the process: a pytest worker after thousands of tests has gigabytes."""
    with Path("/proc/self/statm").open(encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _be_the_case(case: Callable[[], object], write: int, cpu_limit_s: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit_s, cpu_limit_s + 5))
    limit = mapped_bytes() + MEMORY_LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(write, 1)
    os.dup2(write, 2)
    end = "fine: "
    try:
        case()
    except PyllamaSpecError as error:
        end = f"{type(error).__name__}: {error}"
    except BaseException as error:  # noqa: BLE001 - whatever it is, it has no type of ours
        end = f"untyped: {type(error).__name__}: {error}"
    os.write(write, b"\0" + end.encode(errors="replace"))
    # No shutdown of the interpreter: tests/robust looks at that, and it takes longer than a case.
    os._exit(0)
