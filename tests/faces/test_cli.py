"""The command line's interface for scripts: JSON keys, exit codes, colours."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec.cli.entry import main
from pyllama_spec.engine import Model, quantize
from tests.models import model_path

SPECULATION = {
    "drafter", "note", "rounds", "drafted", "accepted", "acceptance_rate", "tokens_per_round",
    "accepted_histogram", "state", "disabled_since",
    "by_source",
    "reason_off", "controller", "asked", "asked_copies", "copied", "probes", "proposed",
    "expected", "verified_histogram", "gain_expected", "gain_realised", "probe_s", "drafted_by",
    "forced", "forced_accepted", "acceptance", "why_exact",
}  # fmt: skip
TIMING = {
    "load_s", "draft_load_s", "queue_s", "first_token_s", "prompt_s", "decode_s", "draft_s",
    "verify_s",
    "overhead_s", "decode_tps",
}  # fmt: skip


def cli(*args: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyllama_spec.cli", *map(str, args)],
        input=stdin, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


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


def test_p_min_reaches_the_draft() -> None:
    files = ("-d", model_path("eagle3", output_scale=0.1), "-n", 20, "--controller", "fixed")
    free = generate(model_path("llama"), "-p", "abc", *files)["speculation"]
    held = generate(model_path("llama"), "-p", "abc", *files, "--p-min", 0.9)["speculation"]
    assert free["drafted"] > 0
    assert held["drafted"] == 0


def test_prompt_from_a_file_and_from_stdin(perm: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("abc", encoding="utf-8")
    expected = generate(perm, "-p", "abc", "-n", 8)["tokens"]
    assert generate(perm, "-f", path, "-n", 8)["tokens"] == expected
    done = cli("generate", "-m", perm, "-f", "-", "-n", 8, "--json", stdin="abc")
    assert json.loads(done.stdout)["tokens"] == expected


def test_drafted_tokens_have_another_colour_on_a_terminal(smollm2_bf16: Path) -> None:
    main, side = pty.openpty()
    prompt = "cat dog cow pig " * 4
    options = ["-m", str(smollm2_bf16), "-n", "32", "-d", "prompt-lookup", "-p", prompt]
    options += ["--controller", "fixed"]
    done = subprocess.Popen(
        [sys.executable, "-m", "pyllama_spec.cli", "generate", *options],
        stdout=side,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": ""},
    )
    os.close(side)
    shown = b""
    while True:
        try:
            data = os.read(main, 4096)
        except OSError:
            break
        if not data:
            break
        shown += data
    assert done.wait(60) == 0
    figures = (done.stderr.read() if done.stderr else b"").decode()
    accepted = re.search(r"(\d+) of \d+ drafted", figures)
    assert accepted is not None
    assert int(accepted.group(1)) > 4
    copied = re.findall(rb"\x1b\[36m(.*?)\x1b\[0m", shown, re.DOTALL)
    assert copied
    assert len(b"".join(copied)) < len(shown), "the target's own tokens are not cyan"
    assert "cyan: copied from this text" in figures


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
    done = cli(
        "doctor", "-m", model_path("llama"), "--max-rows", 4, "--repeat", 1, "-t", 1, "--json"
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["devices"]
    assert result["backends"]["CPU"] == 1
    assert result["model"]["architecture"] == "llama"
    rows = result["verify_cost"]
    assert [row["n_rows"] for row in rows] == [1, 2, 3, 4]
    assert rows[0]["ratio"] == 1.0
    assert all(row["ms"] > 0 for row in rows)
    assert all(row["lowest"] <= row["ratio"] <= row["highest"] for row in rows)
    assert all(0.0 < row["own_share"] < 1.5 for row in rows)
    plain = cli("doctor")
    assert plain.returncode == 0
    assert "pyllama_spec" in plain.stdout
    kernels = ", ".join(f"{kind} {name}" for kind, name in result["row_kernels"].items())
    assert f"row kernels   {kernels or 'none'}" in plain.stdout


def test_doctor_prices_a_small_model_of_another_vocabulary(tmp_path: Path) -> None:
    small, target = tmp_path / "small.gguf", model_path("llama", n_vocab=640)
    quantize(model_path("llama", seed=9), small, "Q4_0")
    quick = ("--max-rows", 3, "--repeat", 1, "-t", 1)
    draft = json.loads(cli("doctor", "-m", target, "-d", small, *quick, "--json").stdout)["draft"]
    assert (draft["shared_tokens"], draft["target_tokens"]) == (320, 640)
    assert draft["weights"] == "Q4_0"
    assert "below 6 bits" in draft["note"]
    assert draft["step_ms"] > 0


def test_doctor_tells_whether_a_draft_fits() -> None:
    target, head = model_path("llama"), model_path("eagle3")
    quick = ("--max-rows", 4, "--repeat", 1, "-t", 1)
    done = cli("doctor", "-m", target, "-d", head, *quick, "--json")
    assert done.returncode == 0, done.stderr
    draft = json.loads(done.stdout)["draft"]
    assert draft["target_layers"] == [1, 2, 3]
    assert draft["step_ms"] > 0
    other = model_path("eagle3", n_vocab=512)
    assert cli("doctor", "-m", target, "-d", other, *quick).returncode == 1
    assert cli("doctor", "-d", head).returncode == 2


RUN = "generate -m PERM -p x -n 2"


@pytest.mark.parametrize(
    ("line", "code", "named"),
    [
        ("generate -m missing.gguf -p x", 1, "missing.gguf"),
        ("generate -m HEAD -p x", 1, "--draft"),
        ("generate -m PERM -f missing.txt", 1, "missing.txt"),
        (f"{RUN} -d missing.gguf", 1, "missing.gguf"),
        ("bench -m PERM -d missing.gguf", 1, "missing.gguf"),
        ("bench -m PERM -d none", 1, "none"),
        (f"{RUN} -d BERT", 1, "not a model"),
        (f"{RUN} -c -1", 1, "--n-ctx -1"),
        (f"{RUN} -c 32 -f LONG", 1, "--n-ctx"),
        (f"{RUN} --repeat-penalty -1", 1, "--repeat-penalty -1"),
        (f"{RUN} --grammar missing.gbnf", 1, "missing.gbnf"),
        ("quantize PERM out.gguf Q77", 1, "Q77"),
        # Options that would do nothing.
        (f"{RUN} --system y", 1, "--chat"),
        (f"{RUN} --n-draft 3", 1, "--n-draft"),
        (f"{RUN} --controller fixed", 1, "--controller"),
        (f"{RUN} --draft-n-ctx 64", 1, "--draft-n-ctx"),
        (f"{RUN} -d prompt-lookup --p-min 0.5", 1, "--p-min 0.5"),
        (f"{RUN} -d suffix -ngld 3", 1, "--draft-gpu-layers"),
        (f"{RUN} -d suffix --controller off --n-draft 3", 1, "--n-draft"),
        (f"{RUN} --rpc-timeout 3", 1, "--rpc-timeout"),
        ("serve -m PERM --cache-size 5", 1, "--cache-size"),
        ("serve -m PERM --pooling mean", 1, "--pooling"),
        ("doctor -m PERM --max-rows 99", 2, "from 2 to 64"),
        ("generate -m PERM", 2, "--prompt"),
        ("generate -p x", 2, "--model"),
        (f"{RUN} -n many", 2, "many"),
        (f"{RUN} --tempp 0", 2, "--temp "),
        ("fly", 2, "fly"),
        ("", 2, "COMMAND"),
    ],
)
def test_exit_codes(
    perm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, code: int, named: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One line names what is wrong as it was given."""
    monkeypatch.chdir(tmp_path)
    long = tmp_path / "long.txt"
    long.write_text("x" * 600)
    files = {
        "PERM": perm, "BERT": model_path("bert"), "HEAD": model_path("eagle3"), "LONG": long,
    }  # fmt: skip
    if "LONG" in line:
        line = line.replace("-p x ", "")
    assert main([str(files.get(arg, arg)) for arg in line.split()]) == code
    said = capsys.readouterr().err
    assert named in said
    assert said.startswith("pyllama-spec") and said.count("\n") == 1


def test_a_disabled_drafter_is_said(perm: Path) -> None:
    options = ("-p", "abc", "-n", 6, "-d", "prompt-lookup", "--controller", "off")
    assert generate(perm, *options)["speculation"]["state"] == "disabled"
    done = cli("generate", "-m", perm, "-t", 1, *options)
    assert done.returncode == 0 and "was disabled" in done.stderr


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_text_that_is_cut_says_so_and_figures_can_be_silenced(command: str, perm: Path) -> None:
    base = ("-m", perm, "-t", 1, *(("-p", "abc") if command == "generate" else ()))
    cut = cli(command, *base, "-n", 5, stdin="hello\nagain\n")
    assert "cut at 5 tokens: -n takes another number" in cut.stderr
    assert cut.stderr.count("load ") == 1  # a chat loads once
    quiet = cli(command, *base, "-n", 5, "-q", stdin="hello\nagain\n")
    assert quiet.stdout == cut.stdout
    assert {line for line in quiet.stderr.split("\n") if line} == {
        line for line in cut.stderr.split("\n") if "cut at" in line or "note" in line
    }
    full = cli(command, *base, "-n", 0, "-c", 64, stdin="hello\n")
    assert "cut where the context ends: -c takes a longer one" in full.stderr
