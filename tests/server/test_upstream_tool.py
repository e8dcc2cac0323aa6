"""tools/upstream_server_tests.py: its command lines, and its verdicts on tests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import model_path
from tests.upstream.run import ROOT
from tools.upstream_server_tests import Outcome, comes, known_reason, with_stand_ins


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


def test_nothing_is_run_before_the_server_waits(tmp_path: Path) -> None:
    """It waits for the process that makes the file, and not for one that has ended."""

    def process(code: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code])

    made, never = tmp_path / "made", tmp_path / "never"
    slow = f"import time; time.sleep(0.3); open({str(made)!r}, 'w').close(); time.sleep(60)"
    with process(slow) as one:
        assert comes(one, made)
        one.kill()
    with process("raise SystemExit(3)") as one:
        assert not comes(one, never)
        assert one.returncode == 3


def test_a_socket_that_is_there_answers(tmp_path: Path) -> None:
    """A socket file of a killed run does not count."""
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(tmp_path / "waiting.part"))
    code = (
        "import sys; from pathlib import Path; from tools.upstream_server_tests import *; "
        "wait_for_launches(Path(sys.argv[1]), None)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT) as waiting:
        assert comes(waiting, tmp_path / "waiting.sock")
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(tmp_path / "waiting.sock"))
        waiting.kill()


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
