"""A forked child gets a typed error for inherited objects: no hang, crash or busy thread."""

from __future__ import annotations

import pytest

from .test_exit import python

JOBS = (
    "while_idle", "while_decoding", "with_a_llama", "with_requests_that_compute",
    "by_multiprocessing",
)  # fmt: skip


@pytest.mark.parametrize("job", JOBS)
def test_a_fork(job: str) -> None:
    done = python("-W", "ignore::DeprecationWarning", "-m", "tests.robust.fork_jobs", job)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
