"""The examples run as a reader would run them, and do what they claim."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest

from pyllama_spec import Llama

ROOT = Path(__file__).resolve().parents[2]


def run(name: str, model: Path) -> str:
    """The output of an example, which must end well."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name, model],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_loop_by_hand_is_short_and_gives_the_plain_text(smollm2_bf16: Path) -> None:
    source = (ROOT / "examples" / "loop_by_hand.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 40
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
    assert "'drafter': 'phrase-book'" in output
    assert "'accepted': 0" not in output


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


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "examples").glob("[a-z]*.py")))
def test_every_example_is_tested_here(name: str) -> None:
    assert f'"{name}"' in Path(__file__).read_text(encoding="utf-8")
