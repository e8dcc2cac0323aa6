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


def test_doctor(perm: Path, tmp_path: Path) -> None:
    quick = ("--max-rows", 4, "--repeat", 1, "-t", 1)
    done = cli("doctor", "-m", perm, "-d", "mtp", *quick, "--json")
    assert done.returncode == 0, done.stderr
    draft = json.loads(done.stdout)["draft"]
    assert draft["is_stepwise"]
    assert draft["weights"] == "f32"
    assert 0 < draft["size_bytes"] < perm.stat().st_size
    assert draft["target_layers"] == []
    none = cli("doctor", "-m", copy_alone(tmp_path), "-d", "auto", *quick)
    assert none.returncode == 0, none.stderr
    assert "auto chose suffix" in none.stdout
