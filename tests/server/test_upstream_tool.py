"""tools/upstream_server_tests.py: what it makes of a command line, and what it says of a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import model_path
from tests.upstream.run import ROOT
from tools.upstream_server_tests import Outcome, known_reason, with_stand_ins


@pytest.mark.parametrize("asked, kind", [
    (["--hf-repo", "ggml-org/test-model-stories260K"], "llama"),
    (["--hf-repo", "ggml-org/models", "--hf-file", "tinyllamas/stories260K.gguf"], "llama"),
    (["--hf-repo", "ggml-org/models", "--hf-file", "bert-bge-small/ggml-model-f16.gguf"], "bert"),
    (["--hf-repo", "ggml-org/stories15M_MOE", "--hf-file", "x.gguf"], "qwen3moe"),
])  # fmt: skip
def test_a_model_of_the_hub_becomes_a_file(asked: list[str], kind: str) -> None:
    rest = ["--port", "1", "--temp", "0.8"]
    assert with_stand_ins([*rest, *asked]) == [*rest, "--model", str(model_path(kind))]
    own = Path("own.gguf")
    expected = own if kind == "llama" else model_path(kind)
    assert with_stand_ins(asked, own) == ["--model", str(expected)]


def test_a_model_without_a_stand_in_is_named() -> None:
    (_, path) = with_stand_ins(["--hf-repo", "ggml-org/tinygemma3-GGUF:Q8_0"])
    assert "tinygemma3" in path
    assert with_stand_ins(["--models-dir", "x"]) == ["--models-dir", "x"]


def test_a_failure_has_its_reason_or_none() -> None:
    def reason(file: str, name: str) -> str | None:
        return known_reason(Outcome(file, name, "failed", ""))

    assert "tools" in str(reason("test_mcp_servers.py", "test_mcp_empty_tool_list"))
    assert reason("test_tool_call.py", "test_anything") is None
    assert reason("test_compat_anthropic.py", "test_anthropic_tool_use_basic") is None


@pytest.mark.release
def test_upstreams_tests_pass_or_are_explained(tmp_path: Path) -> None:
    """Templates, calls of tools and Anthropic's messages: some minutes."""
    out = tmp_path / "ended.json"
    files = ["test_template.py", "test_tool_call.py", "test_compat_anthropic.py"]
    command = [sys.executable, "-m", "tools.upstream_server_tests", *files, "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    ended = json.loads(out.read_text())
    assert done.returncode == 0, done.stdout
    assert sum(one["state"] == "passed" for one in ended) >= 0.9 * len(ended) > 50, done.stdout
