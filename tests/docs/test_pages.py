"""The blocks of README, CONTRIBUTING and docs/ run unchanged, beside the files they name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from tests.docs import kit
from tests.docs.blocks import ROOT, blocks_of, pages
from tests.models import model_path

# Pages that a toy is enough for; the others run SmolLM2.
TOY = frozenset((
    "README.md", "CONTRIBUTING.md", "start.md", "train.md", "convert.md", "command-line.md",
    "embeddings.md", "index.md",
))  # fmt: skip


def with_code(language: str) -> list[Path]:
    """Pages with such blocks that run."""
    return [
        page for page in pages()
        if any(block.language == language and not block.mark for block in blocks_of(page))
    ]  # fmt: skip


def name(page: Path) -> str:
    return page.name


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest, smollm2_q4_0: Path) -> Iterator[Path]:
    """A folder with the files for the test's page; the originals stay unchanged."""
    page: Path = request.node.callspec.params["page"]
    toy = page.name in TOY
    sources = (kit.toys() if toy else kit.shipped(smollm2_q4_0)).values()
    before = [source.stat().st_mtime_ns for source in sources]
    yield kit.tiny(tmp_path) if toy else kit.real(tmp_path, smollm2_q4_0)
    assert [source.stat().st_mtime_ns for source in sources] == before


def one_core() -> None:
    """One core per worker: the engine's threads wait for each other."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
        os.sched_setaffinity(0, {cores[int(worker[2:]) % len(cores)]})


def run(command: list[str], folder: Path, code: str = "") -> str:
    """The output; the exit code must be 0."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, input=code, capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}, preexec_fn=one_core,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.parametrize("page", with_code("bash"), ids=name)
def test_bash(page: Path, folder: Path) -> None:
    for block in blocks_of(page):
        if block.language == "bash" and not block.mark:
            run(["bash", "-euo", "pipefail"], folder, block.code)


@pytest.mark.parametrize("page", with_code("python"), ids=name)
def test_python(page: Path, folder: Path) -> None:
    said = run([sys.executable, "-m", "tests.docs.run_page", str(page)], folder)
    n = sum(block.language == "python" and not block.mark for block in blocks_of(page))
    assert said.count("-- line ") == n


def test_the_drafter_of_the_walk_through(tmp_path: Path) -> None:
    """The class in CONTRIBUTING.md drafts, unchanged, and the text stays the same."""
    [block] = [one for one in blocks_of(ROOT / "CONTRIBUTING.md") if one.language == "python"]
    module: dict[str, Any] = {"__name__": "suffix"}
    exec(compile(block.code, str(block), "exec"), module)
    with Llama(model_path("llama", n_layer=2), n_ctx=256, verbose=False) as llm:
        plain = llm.create_completion("abc", max_tokens=64, temperature=0.0)
    with Llama(
        model_path("llama", n_layer=2), n_ctx=256, verbose=False, draft=module["LastToken"](),
        controller="fixed",
    ) as llm:  # fmt: skip
        drafted = llm.create_completion("abc", max_tokens=64, temperature=0.0)
    assert drafted["choices"][0]["text"] == plain["choices"][0]["text"]
    assert drafted["speculation"]["drafted"] > 0
