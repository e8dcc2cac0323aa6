"""llama-server's own tests against our server, by tools/upstream_server_tests.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.upstream.run import ROOT


@pytest.mark.release
def test_upstreams_tests_pass(tmp_path: Path) -> None:
    """Templates, tool calls and Anthropic's messages; takes some minutes."""
    out = tmp_path / "ended.json"
    files = ["test_template.py", "test_tool_call.py", "test_compat_anthropic.py"]
    command = [sys.executable, "-m", "tools.upstream_server_tests", *files, "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    ended = json.loads(out.read_text())
    assert done.returncode == 0, done.stdout
    assert sum(one["state"] == "passed" for one in ended) >= 0.9 * len(ended) > 50, done.stdout
