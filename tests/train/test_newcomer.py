"""docs/start.md alone leads a newcomer from a model to an own draft and a plot.

The commands are the page's, unchanged and in its order; the results of a clone and an install exist
already. The model is a toy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, blocks_of
from tests.docs.test_pages import one_core
from tests.faces.test_examples import run
from tests.models import model_path

START = ROOT / "docs" / "start.md"
SECTIONS = ("Prompt lookup (n-gram lookup)", "Your own draft", "Compare drafts")


def commands() -> list[Block]:
    """The commands of the sections that lead to an own draft."""
    return [
        block for block in blocks_of(START)
        if block.language == "bash" and block.section in SECTIONS and block.mark != "not run"
    ]  # fmt: skip


def test_from_a_model_to_a_draft_and_a_plot(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(model_path("llama", n_layer=3))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in commands():
        done = subprocess.run(
            ["bash", "-euo", "pipefail"], cwd=tmp_path, input=block.code, capture_output=True,
            text=True, timeout=900, check=False, env={**os.environ, "PATH": path},
            preexec_fn=one_core,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}: {done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    figures = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert figures["settings"]["drafter"] == "eagle3"
    assert figures["summary"]["same_text"] is True
    assert figures["summary"]["rounds"] > 0
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "rehearsal.gguf").stat().st_size > 10_000


@pytest.mark.release
def test_the_example_trains_a_head_that_is_used(tmp_path: Path) -> None:
    target, draft = model_path("llama", n_layer=3), tmp_path / "draft.gguf"
    said = run("train_head.py", target, draft, "500")
    assert f"{draft.stat().st_size} bytes, " in said
    assert "tokens per round" in said
    assert said.rstrip().endswith("drafted and accepted")
