"""tools/upstream_server_tests.py: its command lines, and its verdicts on tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.upstream.run import ROOT
from tools.upstream_server_tests import Outcome, known_reason, with_stand_ins


@pytest.mark.parametrize("asked, file", [
    (["--hf-repo", "ggml-org/test-model-stories260K"], "texts.gguf"),
    (["--hf-repo", "ggml-org/models", "--hf-file", "bert-bge-small/f16.gguf"], "bert.gguf"),
    (["--hf-repo", "ggml-org/tinygemma3-GGUF:Q8_0"],
     "no-stand-in-for:ggml-org/tinygemma3-GGUF:Q8_0"),
])  # fmt: skip
def test_a_model_of_the_hub_becomes_a_file(asked: list[str], file: str) -> None:
    models = {"stories260K": "texts.gguf", "bert-bge-small": "bert.gguf"}
    rest = ["--port", "1", "--temp", "0.8"]
    assert with_stand_ins([*rest, *asked], models) == [*rest, "--model", file]
    assert with_stand_ins(["--models-dir", "x"], models) == ["--models-dir", "x"]


def test_a_failure_has_its_reason_or_none() -> None:
    def reason(file: str, name: str) -> str | None:
        return known_reason(Outcome(file, name, "failed", ""))

    assert "tools" in str(reason("test_mcp_servers.py", "test_mcp_empty_tool_list"))
    assert reason("test_tool_call.py", "test_anything") is None
    assert reason("test_compat_anthropic.py", "test_anthropic_tool_use_basic") is None


@pytest.mark.release
def test_upstreams_tests_pass_or_are_explained(tmp_path: Path) -> None:
    """Templates, tool calls and Anthropic's messages; takes some minutes."""
    out = tmp_path / "ended.json"
    files = ["test_template.py", "test_tool_call.py", "test_compat_anthropic.py"]
    command = [sys.executable, "-m", "tools.upstream_server_tests", *files, "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    ended = json.loads(out.read_text())
    assert done.returncode == 0, done.stdout
    assert sum(one["state"] == "passed" for one in ended) >= 0.9 * len(ended) > 50, done.stdout
