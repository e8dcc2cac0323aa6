"""Several drafts in one run: each beside the same plain texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyllama_spec import bench
from pyllama_spec.cli.entry import main
from pyllama_spec.errors import ArgumentError
from tests.bench.tools import tiny_config, write_prompts
from tests.models import model_path


def test_each_draft_has_figures_of_its_own(tmp_path: Path) -> None:
    """On PERM: a head and a block draft that are always right, and none."""
    config = tiny_config(
        tmp_path, model_path=model_path("perm"), draft=model_path("perm_eagle3"),
        also=(model_path("perm_dflash"), "none"), n_draft=3, repeats=2, lookup=0,
    )  # fmt: skip
    chain = bench.to_json(bench.run(config))
    block, nothing = chain["others"]
    assert [one["settings"]["drafter"] for one in (chain, block, nothing)] == [
        "eagle3", "dflash", "none",
    ]  # fmt: skip
    for one in (chain, block):
        assert one["summary"]["acceptance_rate"] == 1.0
        assert one["files"]["draft"]["name"].endswith(".gguf")
    assert nothing["summary"]["tokens_per_round"] == 1.0
    assert "draft" not in nothing["files"]
    plain = [one["summary"]["plain_tps"] for one in (chain, block, nothing)]
    assert plain[0] == plain[1] == plain[2], "one plain run serves all"
    assert all(one["summary"]["same_text"] for one in (chain, block, nothing))
    assert "others" not in block


def test_the_command_line_takes_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    args = ["bench", "-m", str(model_path("llama")), "-d", "prompt-lookup", "-d", "none", "-n", "4"]
    args += ["--prompts", str(write_prompts(tmp_path)), "--repeat", "1", "--json", str(out)]
    assert main(args) == 0
    shown = capsys.readouterr().out
    assert shown.count("tokens per second of decoding") == 2
    last = shown[shown.index("drafts, beside the same plain texts") :].splitlines()
    assert [line.split()[0] for line in last[1:3]] == ["prompt-lookup", "none"]
    report = json.loads(out.read_text())
    assert "-d prompt-lookup -d none" in report["command"]


def test_made_up_acceptance_is_of_one_draft(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="one draft"):
        tiny_config(tmp_path, also=("none",), synthetic_acceptance=(0.5,))
