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
REPEATED = "one two three four one two three four one two"


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


def test_n_draft_limits_the_draft(perm: Path) -> None:
    prompt = "".join(chr(97 + i % 26) for i in range(200))
    result = generate(perm, "-p", prompt, "-n", 40, "-d", "prompt-lookup", "--n-draft", 2)
    speculation = result["speculation"]
    assert speculation["drafted"] <= 2 * speculation["rounds"]
    assert len(speculation["accepted_histogram"]) <= 3


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


def test_doctor_lists_what_a_block_can_draft_and_no_more() -> None:
    target, head = model_path("llama"), model_path("dflash", block_size=4)
    quick = ("--max-rows", 8, "--repeat", 1, "-t", 1)
    done = cli("doctor", "-m", target, "-d", head, *quick, "--json")
    assert done.returncode == 0, done.stderr
    draft = json.loads(done.stdout)["draft"]
    assert draft["block_size"] == 4
    assert draft["max_draft"] == len(draft["draft_ms"]) == 3
    assert not draft["is_stepwise"]
    assert all(ms > 0 for ms in draft["draft_ms"])
    done = cli("doctor", "-m", target, "-d", head, *quick)
    assert "one call for up to 3 tokens" in done.stdout
    table = done.stdout[done.stdout.index("drafted  draft ms") :]
    assert "\n       3 " in table
    assert "\n       4 " not in table


def test_doctor_prices_a_small_model_of_another_vocabulary(tmp_path: Path) -> None:
    small, target = tmp_path / "small.gguf", model_path("llama", n_vocab=640)
    quantize(model_path("llama", seed=9), small, "Q4_0")
    quick = ("--max-rows", 3, "--repeat", 1, "-t", 1)
    draft = json.loads(cli("doctor", "-m", target, "-d", small, *quick, "--json").stdout)["draft"]
    assert (draft["shared_tokens"], draft["target_tokens"]) == (320, 640)
    assert draft["weights"] == "Q4_0"
    assert "below 6 bits" in draft["note"]
    assert draft["step_ms"] > 0
    said = " ".join(cli("doctor", "-m", target, "-d", small, *quick).stdout.split())
    assert "vocabulary another one, 320 of 640 tokens (50%) shared" in said
    assert "note the weights of the draft are Q4_0: below 6 bits" in said
    assert "ms for each drafted token" in said


def test_doctor_tells_whether_a_draft_fits() -> None:
    target, head = model_path("llama"), model_path("eagle3")
    quick = ("--max-rows", 4, "--repeat", 1, "-t", 1)
    done = cli("doctor", "-m", target, "-d", head, *quick, "--json")
    assert done.returncode == 0, done.stderr
    draft = json.loads(done.stdout)["draft"]
    assert draft["target_layers"] == [1, 2, 3]
    assert draft["step_ms"] > 0
    done = cli("doctor", "-m", target, "-d", head, *quick)
    assert done.returncode == 0, done.stderr
    assert "fits" in done.stdout
    other = cli("doctor", "-m", target, "-d", model_path("eagle3", n_vocab=512), *quick)
    assert other.returncode == 1
    assert "a vocabulary of 512, this one has 320" in other.stderr
    assert cli("doctor", "-d", head).returncode == 2


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["generate", "-m", "missing.gguf", "-p", "x"], 1, "does not exist"),
        (["generate", "-m", "/", "-p", "x"], 1, "folder"),
        (["generate", "-m", "PERM", "-p", "x", "-d", "missing.gguf"], 1, "missing.gguf"),
        (["generate", "-m", "PERM", "-p", "x", "-d", "BERT"], 1, "is not a model"),
        (["generate", "-m", "PERM", "-p", "x", "-c", "-1"], 1, "--n-ctx -1"),
        (["generate", "-m", "PERM", "-p", "x" * 600, "-c", "32"], 1, "larger --n-ctx"),
        (["generate", "-m", "PERM", "-p", "x", "--repeat-penalty", "-1"], 1, "--repeat-penalty -1"),
        (["generate", "-m", "PERM", "-p", "x", "--system", "y"], 1, "add --chat"),
        (["generate", "-m", "PERM", "-f", "missing.txt"], 1, "missing.txt: No such file"),
        (["doctor", "-m", "PERM", "--max-rows", "99"], 2, "from 2 to 64"),
        (["generate", "-m", "PERM", "-p", "x", "--grammar", "missing.gbnf"], 1, "missing.gbnf"),
        (["quantize", "PERM", "out.gguf", "Q77"], 1, "Q77"),
        (["generate", "-m", "PERM"], 2, "--prompt"),
        (["generate", "-p", "x"], 2, "--model"),
        (["generate", "-m", "PERM", "-p", "x", "-n", "many"], 2, "many"),
        (["fly"], 2, "fly"),
        ([], 2, "COMMAND"),
    ],
)
def test_exit_codes(
    perm: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    monkeypatch.chdir(tmp_path)
    files = {"PERM": perm, "BERT": model_path("bert")}
    done = cli(*[files.get(arg, arg) for arg in args])
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    if code == 1:
        assert len(done.stderr.strip().splitlines()) == 1, "one line that says why"
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "state", "said"),
    [
        (("-d", "none"), "none", ""),
        # A cycle of as many tokens as there are, and once more.
        (("-d", "prompt-lookup", "--controller", "fixed", "-n", "400"), "used", ""),
        (("-d", "prompt-lookup", "--controller", "fixed"), "idle", "it proposed nothing"),
        (("-d", "prompt-lookup", "--controller", "off"), "disabled", "from the beginning: the con"),
    ],
)
def test_the_state_of_the_drafter_is_said(
    options: tuple[str, ...], state: str, said: str, perm: Path
) -> None:
    options = ("-p", "abc", "-n", "6", *options)
    speculation = generate(perm, *options)["speculation"]
    assert speculation["state"] == state
    assert (speculation["reason_off"] is None) == (state != "disabled")
    done = cli("generate", "-m", perm, "-t", 1, *options)
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stderr.split())
    assert ("was idle" in shown or "was disabled" in shown) == bool(said)
    assert said in shown


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


def test_the_time_to_the_first_token_is_told(perm: Path) -> None:
    timing = generate(perm, "-p", "abc" * 40, "-n", 4)["timing"]
    assert 0 <= timing["queue_s"] <= timing["first_token_s"]
    assert timing["first_token_s"] >= timing["prompt_s"]


def test_drafts_may_be_accepted_by_distribution() -> None:
    """For a drafter that does not draw, a text notes that it accepts exactly."""
    target, draft = (model_path("markov", chances=((p, 1.0 - p), (1.0 - p, p))) for p in (0.7, 0.6))
    asked = ("-p", "aa", "-n", 20, "--temp", 1.0, "--controller", "fixed", "--acceptance")
    drawn = generate(target, "-d", draft, "--lookup", 0, *asked, "distribution")
    assert drawn["speculation"]["acceptance"] == "distribution"
    assert drawn["speculation"]["accepted"] > 0 and len(drawn["tokens"]) == 20
    copied = ("generate", "-m", target, "-t", 1, "-d", "prompt-lookup", *asked, "distribution")
    done = cli(*copied)
    assert done.returncode == 0
    assert "accepted exactly: the drafter 'prompt-lookup' does not draw" in done.stderr
    done = cli("generate", "-m", target, *asked[:-3], "--acceptance", "exact")
    assert done.returncode != 0 and "--acceptance is for a draft" in done.stderr
