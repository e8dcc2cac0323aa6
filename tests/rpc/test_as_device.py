"""The tests of a GPU (tests/gpu) hold for a server over RPC, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys


def test_the_tests_of_a_device() -> None:
    """Every placement, transferred bytes, numbers beside the CPU's, and freed memory."""
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-p", "tests.rpc.as_device", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d\d+ passed in", done.stdout, re.MULTILINE), done.stdout
