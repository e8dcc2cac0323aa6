"""Costs kept between programs: a start value for the controller; a bad file is no error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.speculative.controller import KnownCosts, ProfitController
from tests.oracles import tiny


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYLLAMA_SPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PYLLAMA_SPEC_COSTS", raising=False)
    return tmp_path / "cache" / "costs"


def run(n_tokens: int = 100, **options: Any) -> tuple[dict[str, Any], KnownCosts | None]:
    """Generates; what the statistics say, and what the controller had to begin with."""
    seen: list[KnownCosts] = []

    class Watched(ProfitController):
        def begin_with(self, known: KnownCosts) -> None:
            seen.append(known)
            super().begin_with(known)

    values = {"draft": "prompt-lookup", "n_ctx": 256, "n_threads": 1, "controller": Watched()}
    with Llama(tiny("llama").path, **{**values, **options}) as llm:
        out = llm.create_completion("abab", max_tokens=n_tokens, temperature=0.9, seed=1)
    return out, seen[0] if seen else None


def the_file(folder: Path) -> Path:
    [found] = folder.iterdir()
    return found


def test_what_one_program_learns_the_next_begins_with(folder: Path) -> None:
    first, known = run()
    assert known is None
    written = json.loads(the_file(folder).read_text())
    assert written["verify"]["1"] > 0.0
    second, known = run()
    assert known is not None
    assert known.verify == {int(key): value for key, value in written["verify"].items()}
    assert second["choices"][0]["text"] == first["choices"][0]["text"]


def test_other_settings_have_other_files(folder: Path) -> None:
    run()
    run(n_draft=3)  # the same drafter, with the same costs
    n_same = len(list(folder.iterdir()))
    run(type_k="f32", type_v="f32")
    assert len(list(folder.iterdir())) == n_same + 1


def test_little_is_not_kept(folder: Path) -> None:
    run(n_tokens=5)
    assert not folder.exists()


def test_the_switch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLLAMA_SPEC_COSTS", "off")
    run()
    assert not folder.exists()


def curves(**parts: Any) -> bytes:
    good: dict[str, Any] = {"format": 1, "verify": {"1": 0.01}, "draft": {}, "rest": {}}
    return json.dumps({**good, **parts}).encode()


HOSTILE = {
    "empty": b"", "no JSON": b"\xff\x00{", "a list": b"[]", "deep": b"[" * 9000,
    "large": b" " * 20_000 + b"{}", "another version": curves(format=2),
    "no curve": curves(draft=[1, 2]), "negative": curves(verify={"1": -1.0}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_sound_file_is_as_good_as_none(folder: Path, name: str) -> None:
    run()
    path = the_file(folder)
    path.write_bytes(HOSTILE[name])
    out, known = run()
    assert known is None
    assert out["choices"][0]["finish_reason"] in ("length", "stop")
    assert json.loads(path.read_text())["format"] == 1, "and it is written anew"


def test_a_folder_that_cannot_be_is_no_error(folder: Path) -> None:
    folder.parent.write_text("a file where the folder should be")
    run()
    assert folder.parent.is_file()
