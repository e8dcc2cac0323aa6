"""The MTP head in the model's own file, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faces.test_cli import cli, generate
from tests.faces.tools import copy_alone
from tests.models import model_path

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def perm() -> Path:
    return model_path("perm_mtp", arch="qwen35")


@pytest.mark.parametrize("draft", ["mtp", "auto"])
def test_generate(perm: Path, draft: str) -> None:
    options = ("-p", "abc", "-n", 24, "--temp", 0, "--lookup", 0, "--controller", "fixed")
    result = generate(perm, *options, "-d", draft)
    found = result["speculation"]
    assert found["accepted"] == found["drafted"] > 10
    assert found["drafter"] == "mtp"
    why = None if draft == "mtp" else "auto chose mtp: the file has an MTP head"
    assert found["note"] == why
    plain = generate(perm, "-p", "abc", "-n", 24, "--temp", 0)
    assert plain["text"] == result["text"]


def test_a_file_without_a_head() -> None:
    done = cli("generate", "-m", model_path("llama"), "-d", "mtp", "-p", "a", "-t", 1)
    assert done.returncode == 1
    assert "(llama) has no MTP head" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout


def test_doctor(perm: Path, tmp_path: Path) -> None:
    quick = ("--max-rows", 4, "--repeat", 1, "-t", 1)
    done = cli("doctor", "-m", perm, "-d", "mtp", *quick, "--json")
    assert done.returncode == 0, done.stderr
    draft = json.loads(done.stdout)["draft"]
    assert draft["is_stepwise"]
    assert draft["weights"] == "f32"
    assert 0 < draft["size_bytes"] < perm.stat().st_size
    assert draft["target_layers"] == []
    text = cli("doctor", "-m", perm, "-d", "auto", *quick).stdout
    words = " ".join(text.split())
    assert "the rows that the target's graph has for its MTP head" in words
    assert "MB of weights of type f32, qwen35" in words
    none = cli("doctor", "-m", copy_alone(tmp_path), "-d", "auto", *quick)
    assert none.returncode == 0, none.stderr
    assert "auto chose suffix: the file has no MTP head" in " ".join(none.stdout.split())
    assert "A verify batch" in none.stdout


def test_doctor_advises_only_what_it_takes() -> None:
    """It measures no draft without weights, so it does not advise prompt-lookup."""
    done = cli("doctor", "-m", model_path("llama"), "-d", "mtp")
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "(llama) has no MTP head; give a draft's file, or leave -d out" in said
    assert "prompt-lookup" not in said


def test_bench(perm: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "a", "category": "b", "prompt": "abc"}) + "\n")
    out = tmp_path / "out.json"
    done = cli(
        "bench", "-m", perm, "-d", "mtp", "-d", "auto", "--prompts", prompts, "-n", 16, "--repeat",
        1, "-t", 1, "--temp", 0, "--json", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(run["same_text"] for run in json.loads(out.read_text())["prompts"])
    assert "mtp" in done.stdout
