"""`pyllama-spec bench`: files, exit codes, plots, and the lines about machine and weights."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import gguf
import pytest

from pyllama_spec import bench
from pyllama_spec.bench.figures import Pair
from pyllama_spec.bench.report import FORMAT
from pyllama_spec.bench.sides import Run, Side
from pyllama_spec.cli.entry import main
from pyllama_spec.drafters.small_model import weight_bytes
from pyllama_spec.engine import Model
from pyllama_spec.errors import EngineError
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

    def interrupted(self: Side, *args: Any) -> Run:
        nonlocal n
        n += 1
        if n == 6:
            raise error
        return run(self, *args)

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


# --- machine and weights


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
