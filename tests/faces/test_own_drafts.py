"""-d MODULE:FUNCTION: commands accept a user's drafter; nothing else runs its code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pyllama_spec import ArgumentError, Llama
from pyllama_spec.cli.entry import main
from tests.models import model_path

SOURCE = '''
from pyllama_spec import Draft, Drafter

class Echo(Drafter):
    """The last token, again and again."""
    name = "echo"
    max_draft = 3
    def propose_one(self, request):
        return Draft([request.tokens[-1]] * request.n_requested)

def make():
    return Echo()
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of the user's that was never imported."""
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / name


def generated(capsys: pytest.CaptureFixture[str], draft: str, *more: str) -> dict[str, object]:
    """The output of generate with a draft."""
    words = ["generate", "-m", str(model_path("perm")), "-t", "1", "-p", "abc", "-n", "12"]
    assert main([*words, "--controller", "fixed", "--json", "-d", draft, *more]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_generate_drafts_with_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = generated(capsys, "prompt-lookup")
    for function in ("make", "Echo"):
        found = generated(capsys, f"{folder.name}:{function}")
        speculation = found["speculation"]
        assert isinstance(speculation, dict)
        assert (speculation["drafter"], speculation["reason_off"]) == ("echo", None)
        assert speculation["proposed"] > 6
        assert found["text"] == plain["text"]


def test_llama_runs_no_code_of_a_text(folder: Path) -> None:
    """A server's model list passes such a text; the message gives the Python alternative."""
    module = folder.name
    with pytest.raises(ArgumentError):
        Llama(model_path("perm"), draft=f"{module}:make")
    assert folder.name not in sys.modules
