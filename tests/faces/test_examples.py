"""The examples run as documented, with the output that they promise."""

from __future__ import annotations

import csv
import io
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import open_draft
from tests.faces.tools import cli
from tests.models import model_path
from tests.server.world import served

ROOT = Path(__file__).resolve().parents[2]
EAGLE3 = ROOT / "examples/drafts/smollm2-135m-eagle3.gguf"


def run(name: str, *words: str | Path) -> str:
    """The output of an example, which must end well."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name, *words],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("[a-z]*.py")), ids=lambda p: p.stem
)
def test_an_example_without_arguments_says_what_it_takes(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(path)])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(path), run_name="__main__")
    said = f"{stop.value.code}{capsys.readouterr().err}"
    assert re.search(rf"python examples/{path.name} |usage: {path.name} ", said)


def test_loop_by_hand_gives_the_plain_text(smollm2_bf16: Path) -> None:
    text, _, figures = run("loop_by_hand.py", smollm2_bf16).rpartition("\n[")
    with Llama(smollm2_bf16, n_ctx=512) as llama:
        result = llama.create_completion("cat dog cow pig " * 4, max_tokens=64, temperature=0)
    plain = result["choices"][0]["text"]
    assert text.startswith(plain)
    n_tokens, n_rounds = (int(word) for word in figures.split() if word.isdigit())
    assert n_tokens > 2 * n_rounds


def test_custom_drafter_is_accepted(smollm2_bf16: Path) -> None:
    output = run("custom_drafter.py", smollm2_bf16)
    assert "13, 14, 15, 16, 17" in output
    assert "'drafter': 'phrase'" in output
    assert "'accepted': 0" not in output


def test_wrapped_drafter_halves_the_drafts_of_any_file() -> None:
    draft = model_path("eagle3")
    with open_draft(draft) as bare:
        longest = bare.max_draft
    *_, accepted, said = run("wrapped_drafter.py", model_path("llama"), draft).splitlines()
    assert len(json.loads(accepted)) <= 1 + (longest + 1) // 2
    assert said.startswith("<Halved") and ": 0 proposed" not in said
    assert said.endswith(" 48 chosen by the target")


def test_drop_in_answers_twice(smollm2_bf16: Path) -> None:
    lines = run("drop_in.py", smollm2_bf16).splitlines()
    assert [line for line in lines if line.startswith("1. 1")]
    assert len(lines) > 10


def test_drop_in_extract_reads_letters_into_a_table(smollm2_bf16: Path) -> None:
    table = list(csv.DictReader(io.StringIO(run("drop_in_extract.py", smollm2_bf16))))
    numbers = [int(row["number_of_articles_ordered"]) for row in table]
    assert len(numbers) == 3
    assert all(1 <= number <= 99 for number in numbers)
    # What a model of 135 million parameters is sure of.
    assert table[0]["full_name_of_the_customer"] == "Maria Lopez"


def test_drop_in_notes_finds_the_note_and_quotes_it(smollm2_bf16: Path) -> None:
    lines = run("drop_in_notes.py", smollm2_bf16).splitlines()
    notes = [line for line in lines if line.startswith("  note:")]
    answers = [line for line in lines if line.startswith("  answer:")]
    assert "bicycle cellar" in notes[0]
    assert "kitchen" in answers[0]
    assert "coffee machine" in notes[1]
    assert "Friday" in answers[1]


def test_auto_draft_takes_the_head_in_the_file() -> None:
    text = run("auto_draft.py", model_path("perm_mtp", arch="qwen35"))
    assert "mtp: auto chose mtp: the file has an MTP head" in text


@pytest.mark.release
def test_auto_draft_copies_where_there_is_no_head(smollm2_q4_0: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(smollm2_q4_0)  # no draft lies beside it there
    text, _, figures = run("auto_draft.py", tmp_path / "model.gguf").rpartition("suffix: ")
    assert "6, 7, 8" in text
    assert "no MTP head" in figures


def test_hybrid_rollback_has_a_snapshot_for_each_row() -> None:
    said = run("hybrid_rollback.py", model_path("perm_mtp", arch="qwen35"))
    assert "qwen35: 0 bytes" not in said
    assert "\n5 snapshots: 0 bytes" not in said and "\n5 snapshots: " in said


@pytest.mark.release
def test_small_draft_model_drafts_for_a_large_one(smollm2_bf16: Path, smollm2_q4_0: Path) -> None:
    said = run("small_draft_model.py", smollm2_bf16, smollm2_q4_0)
    assert "Wednesday" in said
    assert "same text: True" in said
    assert "draft-model: " in said


@pytest.mark.release
def test_remembered_requests_are_copied_in_the_next_run(smollm2_q4_0: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for _ in range(2):
        assert run("remembered_requests.py", smollm2_q4_0, store).count(" tokens copied, ") == 3
    shown = cli("memory", "show", store, "--texts", 9, "-m", smollm2_q4_0).stdout
    assert "Order: 3 lamps" in shown and "password" not in shown
    # How many tokens a run copies is the controller's choice; that they are there is not.
    with Llama(
        smollm2_q4_0, draft="suffix", draft_memory=store, controller="fixed", n_ctx=512
    ) as llm:
        prompt = "Order: 3 lamps for Maria Lopez\nConfirmation:"
        result = llm.create_completion(prompt, max_tokens=32, temperature=0.0)
    assert result["speculation"]["accepted"] > 16


@pytest.mark.release
def test_coloured_stream_colours_by_who_drafted(smollm2_q4_0: Path) -> None:
    plain = run("coloured_stream.py", smollm2_q4_0)
    assert "\033[36m" in plain and "\033[32m" not in plain
    drafted = run("coloured_stream.py", smollm2_q4_0, EAGLE3)
    assert "\033[32m" in drafted

    def text(said: str) -> str:
        return re.sub(r"\033\[\d+m", "", said.rpartition("\n")[0].rpartition("\n")[0])

    assert text(plain) == text(drafted)


@pytest.mark.release
def test_many_requests_get_the_same_texts_from_threads(smollm2_q4_0: Path) -> None:
    said = run("many_requests.py", smollm2_q4_0)
    assert "the same texts from threads: True" in said
    assert len([line for line in said.splitlines() if line.startswith("'")]) == 8


@pytest.mark.release
def test_server_client_streams_and_reads_what_was_drafted(smollm2_q4_0: Path) -> None:
    llm = Llama(smollm2_q4_0, draft="prompt-lookup", controller="fixed", n_ctx=512)
    with served(llm) as client:
        said = run("server_client.py", f"{client.url}/v1")
    assert "5. 5" in said
    assert re.search(r"^\d+ tokens of .+\ndrafted and accepted: [1-9]", said, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "examples").glob("[a-z]*.py")))
def test_every_example_is_tested_here(name: str) -> None:
    tests = (Path(__file__), ROOT / "tests/train/test_newcomer.py")
    assert any(f'("{name}"' in path.read_text(encoding="utf-8") for path in tests)


# ---- the draft in examples/drafts does what its README says, on its target


PROMPT = "Write a list of ten fruits, one per line."


@pytest.mark.slow
def test_the_shipped_draft_is_accepted_and_changes_nothing(smollm2_bf16: Path) -> None:
    assert EAGLE3.stat().st_size <= 25_000_000
    texts = []
    for draft in (None, EAGLE3):
        with Llama(smollm2_bf16, draft=draft, n_ctx=512, controller="fixed") as llm:
            answer = llm.create_chat_completion(
                [{"role": "user", "content": PROMPT}], max_tokens=96, temperature=0.0
            )
        texts.append(answer["choices"][0]["message"]["content"])
    assert texts[0] == texts[1]
    figures = answer["speculation"]
    assert figures["drafter"] == "eagle3"
    assert figures["tokens_per_round"] >= 2.0
