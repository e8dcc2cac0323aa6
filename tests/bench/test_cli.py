"""`pyllama-spec bench`: files, exit codes, plots, and the lines about machine and weights."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest

from pyllama_spec import bench
from pyllama_spec.bench import machine
from pyllama_spec.bench.figures import Pair
from pyllama_spec.bench.report import FORMAT
from pyllama_spec.bench.sides import Run, Side
from pyllama_spec.cli.entry import main
from pyllama_spec.drafters.model_drafter import weight_bytes
from pyllama_spec.engine import Model
from pyllama_spec.errors import EngineError, UnsupportedError
from pyllama_spec.gguf.sizes import bytes_per_token, tensor_bytes
from tests.bench.tools import made_up_result, made_up_run, one_prompt, write_prompts
from tests.models import model_path


def arguments(folder: Path, *more: object) -> list[str]:
    target = model_path("perm", n_cycles=20)
    words = ["bench", "-m", target, "-d", "prompt-lookup", "-t", 1, "-n", 16, "--repeat", 2]
    return [str(word) for word in (*words, "--prompts", write_prompts(folder), *more)]


def test_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main(arguments(tmp_path, "--json", out)) == 0
    shown = capsys.readouterr()
    assert "same text" in shown.out
    # No terminal draws a bar here.
    lines = shown.err.splitlines()
    assert len(lines) == 2 * len(json.loads(out.read_text())["prompts"])
    assert all("tokens per second" in line for line in lines)
    assert lines[0].startswith("chat, repeat 1: ") and "one repeat" not in shown.out
    report = json.loads(out.read_text())
    assert report["format"] == FORMAT
    assert report["command"] == shlex.join(["pyllama-spec", *arguments(tmp_path, "--json", out)])
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["-d", "nix"], "--draft nix"),
        (["--json", "no/such/folder/x.json"], "does not exist"),
        (["--json", "/dev/full"], "is a"),
        (["--plot", "x.doc"], "--plot x.doc"),
    ],
)
def test_failures_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    assert main(arguments(tmp_path, *more)) == 1
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.err.count("\n") == 1 and not shown.out


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [(KeyboardInterrupt(), 130, "interrupted"), (EngineError("the device is gone"), 1, "is gone")],
)
def test_an_end_in_the_middle_writes_what_there_is(
    error: BaseException, code: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run, n = Side.run, 0

    def interrupted(self: Side, prompt: Sequence[int], n_tokens: int) -> Run:
        nonlocal n
        n += 1
        if n == 6:
            raise error
        return run(self, prompt, n_tokens)

    monkeypatch.setattr(Side, "run", interrupted)
    out = tmp_path / "out.json"
    assert main(arguments(tmp_path, "--json", out)) == code
    report = json.loads(out.read_text())
    assert report["interrupted"] is (code == 130)
    assert [prompt["id"] for prompt in report["prompts"]] == ["chat"]
    assert told in capsys.readouterr().err


# --- pictures


def a_result(**options: Any) -> bench.BenchResult:
    runs = made_up_run([(0, 0)] * 8, 1.0), made_up_run([(3, 3), (3, 1), (1, 0)], 0.5)
    return made_up_result([one_prompt(Pair(*runs), Pair(*runs))], **options)


def test_the_plot_has_the_speedups(tmp_path: Path) -> None:
    """Matplotlib notes each text of an SVG in a comment."""
    path = tmp_path / "out.svg"
    bench.plot(a_result(), path)
    shown = path.read_text(encoding="utf-8")
    assert "speed-up per prompt" in shown
    bench.plot(a_result(is_interrupted=True), path)
    assert "NOT COMPLETE" in path.read_text(encoding="utf-8")
    bench.plot(made_up_result([]), path)


def test_without_matplotlib_nothing_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnsupportedError, match=r"pip install pyllama_spec\[bench\]"):
        bench.check_plot(tmp_path / "out.png")
    assert main(arguments(tmp_path, "--plot", tmp_path / "out.png")) == 1
    shown = capsys.readouterr()
    assert "pip install pyllama_spec[bench]" in shown.err and not shown.out


# --- machine and weights


def test_a_file_is_described_by_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    data = bytes(range(256)) * 4096 * 3
    path.write_bytes(data)
    whole = machine.describe_file(path)
    assert whole == {
        "name": "model.gguf", "size_bytes": len(data), "sha256_of": "the whole file",
        "sha256": hashlib.sha256(data).hexdigest(),
    }  # fmt: skip
    monkeypatch.setattr(machine, "_WHOLE_FILE_BYTES", 2**21)
    ends = machine.describe_file(path)
    assert ends["sha256"] == hashlib.sha256(data[: 2**20] + data[-(2**20) :]).hexdigest()
    assert "first and the last" in ends["sha256_of"]


def test_tensor_sizes_are_those_of_the_file() -> None:
    path = model_path("llama")
    sizes = tensor_bytes(path)
    expected = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
    assert set(sizes) == set(expected)
    assert all(0 <= sizes[name] - n < 32 for name, n in expected.items()), "padding only"
    with Model(path) as model:
        n = weight_bytes(model)
    without = sum(sizes.values()) - (sizes["token_embd.weight"] if "output.weight" in sizes else 0)
    assert n == without


def test_what_a_token_does_not_read_is_not_counted() -> None:
    sizes = {"token_embd.weight": 1000, "blk.0.ffn_down.weight": 10}
    metadata = {"general.architecture": "qwen3moe"}
    assert bytes_per_token(sizes, metadata) == 1010, "the output reads the embeddings"
    assert bytes_per_token({**sizes, "output.weight": 500}, metadata) == 510
    experts = {"blk.0.ffn_up_exps.weight": 800, "blk.0.ffn_gate_shexp.weight": 7}
    of_eight = {**metadata, "qwen3moe.expert_count": "8", "qwen3moe.expert_used_count": "2"}
    assert bytes_per_token(experts, of_eight) == 207


def test_the_file_has_each_prompt_as_soon_as_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, run = tmp_path / "out.json", Side.run
    found: list[list[str] | None] = []

    def watched(self: Side, prompt: Sequence[int], n_tokens: int) -> Run:
        report = json.loads(out.read_text()) if out.exists() else None
        assert report is None or report["interrupted"] is True
        found.append(report and [prompt["id"] for prompt in report["prompts"]])
        return run(self, prompt, n_tokens)

    monkeypatch.setattr(Side, "run", watched)
    assert main(arguments(tmp_path, "--json", out)) == 0
    # The warm-up and the first prompt are two texts each, and so on.
    assert found[:4] == [None] * 4
    assert found[4:6] == [["chat"]] * 2
    assert json.loads(out.read_text())["interrupted"] is False
