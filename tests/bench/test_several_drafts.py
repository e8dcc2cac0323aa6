"""Several drafts in one run, each against the same plain texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyllama_spec import bench
from pyllama_spec.cli.entry import main
from tests.bench.tools import tiny_config, write_prompts
from tests.models import model_path


def test_each_draft_has_figures_of_its_own(tmp_path: Path) -> None:
    """On PERM: a head and a block draft that are always right, and no draft."""
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


@pytest.mark.parametrize("beside", ["perm_eagle3", ""])
def test_auto_is_named_with_what_it_chose(tmp_path: Path, beside: str) -> None:
    """The tables and the object name its choice, a file or none."""
    target = tmp_path / "target.gguf"
    target.symlink_to(model_path("perm"))
    if beside:
        (tmp_path / "draft.gguf").symlink_to(model_path(beside))
    config = tiny_config(
        tmp_path, model_path=target, draft="auto", also=("none",), n_tokens=4, repeats=1
    )
    result = bench.run(config)
    chosen, kind = ("draft.gguf", beside[5:]) if beside else ("suffix", "suffix")
    shown = bench.table(result)
    assert f"drafter {kind} (chosen by auto)" in shown
    assert f"NOTE: auto chose {kind}: " in shown
    last = shown[shown.index("drafts, beside the same plain texts") :].splitlines()
    assert [line.split("  ")[0] for line in last[1:3]] == [f"auto: {chosen}", "none"]
    report = bench.to_json(result)
    assert report["settings"]["drafter"] == kind
    assert ("draft" in report["files"]) == bool(beside)
    assert "draft" not in report["others"][0]["files"]
