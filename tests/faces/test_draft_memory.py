"""draft="suffix" and draft_memory=: the same text, faster if seen before, and private."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.cli.entry import main
from pyllama_spec.drafters import Eagle3, LookupFirst
from pyllama_spec.drafters.suffix.store import Store
from tests.faces.tools import copy_alone, open_tiny, text_of
from tests.models import model_path

PROMPT = "abcdefghijklmnopqrstuvw"
OPTIONS: dict[str, Any] = {"max_tokens": 48, "temperature": 0.0, "return_token_ids": True}


def ask(llm: Llama, prompt: str = PROMPT, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = llm.create_completion(prompt, **{**OPTIONS, **options})
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.memory"


def plain(prompt: str = PROMPT, **options: Any) -> str:
    with open_tiny() as llm:
        return text_of(ask(llm, prompt, **options))


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 5}])
@pytest.mark.parametrize("n_parallel", [1, 3])
def test_the_second_time_is_copied(n_parallel: int, options: dict[str, Any]) -> None:
    expected = plain(**options)
    with open_tiny("suffix", n_parallel=n_parallel) as llm:
        first = ask(llm, **options)
        second = ask(llm, **options)
    assert text_of(first) == text_of(second) == expected
    assert second["speculation"]["drafter"] == "suffix"
    assert second["speculation"]["accepted"] > first["speculation"]["accepted"] + 20
    assert second["speculation"]["rounds"] < 16
    assert second["speculation"]["reason_off"] is None


def test_nothing_is_written_that_was_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "PYLLAMA_SPEC_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with open_tiny("suffix") as llm:
        ask(llm)
        assert llm.draft_memory is None
    assert list(tmp_path.rglob("*")) == []
    with open_tiny("suffix") as llm:
        assert ask(llm)["speculation"]["accepted"] < 20


@pytest.mark.parametrize("kind", ["suffix", "eagle3"])
def test_a_store_outlives_the_program(store: Path, kind: str) -> None:
    draft = "suffix" if kind == "suffix" else str(model_path("eagle3"))
    expected = plain()
    accepted = []
    for _ in range(3):
        with open_tiny(draft, draft_memory=store) as llm:
            found = ask(llm)
        assert text_of(found) == expected
        accepted.append(found["speculation"]["accepted"])
    assert accepted[0] + 15 < accepted[1] == accepted[2]
    assert found["speculation"]["by_source"].keys() & {"copy", "memory"}


# ---- whose tokens they were


def remembered(store: Path) -> list[tuple[list[int], list[int]]]:
    texts = Store(store, None, is_read_only=True).texts()
    return [(one.ids.tolist(), one.origins.tolist()) for one in texts]


def said(found: dict[str, Any]) -> list[int]:
    """The ids of a prompt and its answer."""
    choice = found["choices"][0]
    return [*choice["prompt_token_ids"], *choice["token_ids"]]


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_a_store_says_which_tokens_the_target_chose(store: Path, n_parallel: int) -> None:
    drafter = LookupFirst(Eagle3(model_path("eagle3"), 4), store=store)
    with open_tiny(drafter, n_parallel=n_parallel) as llm:
        found = ask(llm, return_token_ids=True)["choices"][0]
    (ids, origins), = remembered(store)  # fmt: skip
    prompt, answer = found["prompt_token_ids"], found["token_ids"]
    assert ids[: len(prompt) + len(answer)] == prompt + answer
    assert origins == [0] * len(prompt) + [1] * (len(ids) - len(prompt))


def test_nothing_is_noted_of_what_is_not_remembered(store: Path) -> None:
    """The store gets no note of a private turn, nor of the next turn's repetition of it."""
    draft = str(model_path("eagle3"))
    with open_tiny(draft, draft_memory=store) as llm:
        before = store.read_bytes()
        private = said(ask(llm, remember=False))
        assert store.read_bytes() == before
        llm.create_completion([*private, *b"0123456789"], max_tokens=9, temperature=0.0)
    (ids, origins), = remembered(store)  # fmt: skip
    assert len(ids) < 20 + 9
    assert origins == [0] * (len(ids) - 9) + [1] * 9


# ---- whose guess each token was


def sources_of(choice: dict[str, Any]) -> set[str]:
    assert "".join(one["text"] for one in choice["token_sources"]) == choice["text"]
    return {one["source"] for one in choice["token_sources"]}


def test_an_answer_says_whose_guess_each_token_was() -> None:
    wanted: dict[str, Any] = {"max_tokens": 40, "return_token_sources": True}
    with open_tiny("suffix") as llm:
        first = ask(llm, **wanted)
        second = ask(llm, **wanted)
        form = {"type": "regex", "pattern": "(abcdefgh){3}"}
        forced = ask(llm, response_format=form, **wanted)
    assert "memory" not in sources_of(first["choices"][0])
    assert sources_of(second["choices"][0]) >= {"target", "memory"}
    assert second["speculation"]["by_source"]["memory"]["accepted"] > 0
    assert "grammar" in sources_of(forced["choices"][0])


def test_auto_copies_from_earlier_requests_only_with_a_store(store: Path, tmp_path: Path) -> None:
    alone: dict[str, Any] = {"model_path": copy_alone(tmp_path), "n_ctx": 256, "n_threads": 1}
    with Llama(draft="auto", draft_memory=store, **alone) as llm:
        assert ask(llm)["speculation"]["drafter"] == "suffix"
    head = str(model_path("eagle3"))
    for draft in ("suffix", "auto", head):
        with Llama(draft=draft, controller="fixed", **alone) as llm:
            found = [ask(llm)["speculation"] for _ in range(2)]
            assert {one["drafter"] for one in found} == {"eagle3" if draft == head else "suffix"}
            assert ("memory" in found[1]["by_source"]) == (draft != "auto")


# ---- the command line


def memory(*words: object) -> int:
    return main(["memory", *map(str, words)])


def test_the_command(tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, folder = model_path("llama"), tmp_path / "notes"
    (folder / ".git").mkdir(parents=True)
    secret = "the secret word is swordfish, and nobody may know it"
    for i in range(30):
        text = f"note {i}: " + "".join(chr(97 + (7 * i + k * k) % 26) for k in range(300))
        (folder / f"{i:02}.txt").write_text(text + (secret if i in (4, 9) else ""))
    (folder / "binary").write_bytes(b"\0\1\2" * 100)
    (folder / ".git" / "hidden").write_text("hidden text " * 20)
    assert memory("build", store, folder, "-m", model, "--max-size", 2) == 0
    said = capsys.readouterr().out
    assert "30 files with text" in said
    assert memory("show", store, "--json", "--texts", 40, "-m", model) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["texts"] == len(facts["newest"]) == 30
    minutes = [one["minute"] for one in facts["newest"]]
    assert (facts["oldest_minute"], facts["newest_minute"]) == (min(minutes), max(minutes))
    assert facts["bytes"] == store.stat().st_size <= 2e6
    assert not any("hidden" in one["text"] for one in facts["newest"])
    assert sum("swordfish" in one["text"] for one in facts["newest"]) == 2
    assert memory("forget", store, "word is swordfish", "-m", model) == 0
    assert "texts removed: 2" in capsys.readouterr().out
    assert b"".join(t.to_bytes(4, "little") for t in b"swordfish") not in store.read_bytes()
    other = tmp_path / "other.memory"
    assert memory("merge", other, store) == 0
    assert "28 texts came in" in capsys.readouterr().out
    assert memory("prune", other, "--max-size", 0.1) == 0
    assert other.stat().st_size <= 1e5
    assert memory("prune", store, "--days", 1) == 0
    assert "texts removed: 0" in capsys.readouterr().out
    assert memory("forget", store, "--all") == 0
    assert "texts removed: 28" in capsys.readouterr().out
    assert memory("show", store) == 0
    assert "0 texts of 0 tokens" in capsys.readouterr().out


SYSTEM = "You answer in one short sentence, and you name no colour that was not asked for."


def chat_into(store: Path, said: Sequence[str], n_kept: int = 9) -> None:
    """A conversation of some turns; its answers are kept up to so many characters."""
    with open_tiny("suffix", draft_memory=store, n_ctx=2048) as llm:
        messages = [{"role": "system", "content": SYSTEM}]
        for one in said:
            messages.append({"role": "user", "content": one})
            # Answers that differ: a toy says the same to all.
            seed = sum(said[0].encode())
            answer = llm.create_chat_completion(messages, max_tokens=24, temperature=1.5, seed=seed)
            text = str(answer["choices"][0]["message"]["content"])
            messages.append({"role": "assistant", "content": text[:n_kept]})


@pytest.mark.parametrize("n_kept", [1000, 3], ids=["whole answers", "answers that were cut"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_forget_takes_the_whole_conversation(
    store: Path, capsys: pytest.CaptureFixture[str], place: int, n_kept: int
) -> None:
    """The whole conversation with TEXT goes; another one with the same system prompt stays."""
    model = model_path("llama")
    chat_into(store, ["What can I paint on a wall?", "And on a door?"], n_kept)
    turns = ["Is my bicycle here?", "Which one is mine then?", "Thank you, that is a great help."]
    turns[place] += " I mean the crimson one."
    chat_into(store, turns, n_kept)
    memory("show", store, "--json", "--texts", 99, "-m", model)
    before = json.loads(capsys.readouterr().out)["newest"]
    mine = [one["text"] for one in before if "paint" not in one["text"]]
    assert len(before) >= 5 and sum("crimson" in text for text in mine) >= 1
    assert memory("forget", store, "crimson", "-m", model) == 0
    said = capsys.readouterr().out
    memory("show", store, "--json", "--texts", 99, "-m", model)
    after = [one["text"] for one in json.loads(capsys.readouterr().out)["newest"]]
    assert not any("crimson" in text for text in after)
    assert any("paint" in text for text in after) and any("door" in text for text in after)
    assert f"texts removed: {len(before) - len(after)} (" in said
    assert "other parts of the same conversations)" in said
    assert not [word for word in ("bicycle", "Which one", "great help") if word in "".join(after)]


def newest(store: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """All that a store holds."""
    capsys.readouterr()
    memory("show", store, "--json", "--texts", 99, "-m", model_path("llama"))
    return "".join(one["text"] for one in json.loads(capsys.readouterr().out)["newest"])


def test_forget_keeps_who_only_began_alike(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A TEXT of one conversation removes that one; a TEXT that all begin with removes all."""
    model = model_path("llama")
    for said in (["What is red?", "And blue?"], ["What is warm?", "And cold?"]):
        chat_into(store, said)
    assert memory("forget", store, "And cold", "-m", model) == 0
    left = newest(store, capsys)
    assert "What is red" in left and "And blue" in left and SYSTEM[-20:] in left
    assert "warm?" not in left and "cold" not in left
    chat_into(store, ["What is warm?", "And cold?"])
    assert memory("forget", store, SYSTEM[-20:], "-m", model) == 0
    assert newest(store, capsys) == ""
