"""The command line's interface for scripts: JSON keys, exit codes, colours."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec.cli.entry import main
from pyllama_spec.engine import Model
from tests.faces.tools import Screen, cli
from tests.models import model_path

SPECULATION = {
    "drafter", "note", "rounds", "drafted", "accepted", "acceptance_rate", "tokens_per_round",
    "accepted_histogram", "state",
    "by_source",
    "reason_off", "controller", "asked", "proposed",
    "saved_s", "saved_error_s", "acceptance", "why_exact",
}  # fmt: skip
TIMING = {
    "load_s", "draft_load_s", "queue_s", "first_token_s", "prompt_s", "decode_s", "draft_s",
    "verify_s",
    "overhead_s", "decode_tps",
}  # fmt: skip


def generate(model: Path, *args: object) -> dict[str, Any]:
    done = cli("generate", "-m", model, "-t", 1, "--json", *args)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "silence when not asked for more"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def perm() -> Path:
    return model_path("perm")


def test_generate_json_has_the_documented_shape(perm: Path) -> None:
    result = generate(perm, "-p", "abc", "-n", 24, "-d", "prompt-lookup")
    assert set(result) == {
        "text", "tokens", "token_sources", "finish_reason", "speculation", "timing",
    }  # fmt: skip
    assert "".join(one["text"] for one in result["token_sources"]) == result["text"]
    assert {one["source"] for one in result["token_sources"]} <= {"target", "copy"}
    assert set(result["speculation"]) == SPECULATION
    assert set(result["timing"]) == TIMING
    assert result["finish_reason"] == "length"
    assert len(result["tokens"]) == 24
    speculation, timing = result["speculation"], result["timing"]
    assert speculation["drafter"] == "prompt-lookup"
    assert 1 + speculation["accepted"] + speculation["rounds"] == 24
    assert sum(speculation["accepted_histogram"]) == speculation["rounds"]
    rest = timing["decode_s"] - timing["draft_s"] - timing["verify_s"]
    assert timing["overhead_s"] == pytest.approx(rest, abs=1e-9)


def test_prompt_from_a_file_and_from_stdin(perm: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("abc", encoding="utf-8")
    expected = generate(perm, "-p", "abc", "-n", 8)["tokens"]
    assert generate(perm, "-f", path, "-n", 8)["tokens"] == expected
    done = cli("generate", "-m", perm, "-f", "-", "-n", 8, "--json", stdin="abc")
    assert json.loads(done.stdout)["tokens"] == expected


def test_drafted_tokens_have_another_colour_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    path = model_path("perm", n_vocab=320, seed=3, n_cycles=79)  # whose text repeats itself
    words = ("generate", "-m", path, "-n", 40, "-d", "prompt-lookup", "-p", "Hel", "-t", 1)
    done = cli(*words, "--controller", "fixed", out=Screen())
    assert done.returncode == 0
    copied = re.findall(r"\x1b\[36m(.*?)\x1b\[0m", done.stdout, re.DOTALL)
    assert 4 < len("".join(copied)) < len(done.stdout), "the target's own tokens are not cyan"
    assert "cyan: copied from this text" in done.stderr


def test_quantize_writes_a_model_that_runs(tmp_path: Path) -> None:
    source = model_path("llama")
    out = tmp_path / "small.gguf"
    done = cli("quantize", source, out, "q8_0")
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size < source.stat().st_size
    assert Model(out).description == "llama 189K Q8_0"
    assert len(generate(out, "-p", "abc", "-n", 4)["tokens"]) == 4
    assert "; 99% Q8_0" in done.stdout or "; 100% Q8_0" in done.stdout


def test_doctor_reports_versions_and_verify_costs() -> None:
    done = cli("doctor", "-m", model_path("llama"), "--max-rows", 4, "-t", 1, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["devices"]
    assert result["backends"]["CPU"] == 1
    assert result["model"]["architecture"] == "llama"
    rows = result["verify_cost"]
    assert [row["n_rows"] for row in rows] == [1, 2, 3, 4]
    assert rows[0]["ratio"] == 1.0
    assert all(row["ms"] > 0 for row in rows)
    assert 0.0 < result["own_share"] < 1.5
    plain = cli("doctor")
    assert plain.returncode == 0
    assert "pyllama_spec" in plain.stdout
    kernels = ", ".join(f"{kind} {name}" for kind, name in result["row_kernels"].items())
    assert f"row kernels   {kernels or 'none'}" in plain.stdout


RUN = "generate -m PERM -p x -n 2"


@pytest.mark.parametrize(
    ("line", "code", "named"),
    [
        ("generate -m missing.gguf -p x", 1, "missing.gguf"),
        ("generate -m HEAD -p x", 1, "--draft"),
        ("generate -m PERM -f missing.txt", 1, "missing.txt"),
        (f"{RUN} -d BERT", 1, "not a model"),
        (f"{RUN} -c -1", 1, "--n-ctx -1"),
        (f"{RUN} --grammar missing.gbnf", 1, "missing.gbnf"),
        # Options that would do nothing.
        (f"{RUN} --system y", 1, "--chat"),
        (f"{RUN} --n-draft 3", 1, "--n-draft"),
        (f"{RUN} --controller fixed", 1, "--controller"),
        (f"{RUN} -d prompt-lookup --p-min 0.5", 1, "--p-min 0.5"),
        (f"{RUN} -d suffix --controller off --n-draft 3", 1, "--n-draft"),
        (f"{RUN} --rpc-timeout 3", 1, "--rpc-timeout"),
        ("serve -m PERM --cache-size 5", 1, "--cache-size"),
        ("doctor -m PERM --max-rows 99", 1, "from 2 to 64"),
        ("generate -m PERM", 2, "--prompt"),
        (f"{RUN} -n many", 2, "many"),
        (f"{RUN} --tempp 0", 2, "--temp "),
        ("", 2, "COMMAND"),
    ],
)
def test_exit_codes(
    perm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, code: int, named: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One line names what is wrong as it was given."""
    monkeypatch.chdir(tmp_path)
    files = {"PERM": perm, "BERT": model_path("bert"), "HEAD": model_path("eagle3")}
    assert main([str(files.get(arg, arg)) for arg in line.split()]) == code
    said = capsys.readouterr().err
    assert named in said
    assert said.startswith("pyllama-spec") and said.count("\n") == 1
