"""What holds of a GPU holds of a server: tests/gpu over RPC, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys


def test_the_tests_of_a_device() -> None:
    """Every placement, bytes that cross, numbers beside the CPU's, and what is given back."""
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-p", "tests.rpc.as_device", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d\d+ passed in", done.stdout, re.MULTILINE), done.stdout
