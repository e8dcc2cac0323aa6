"""Training from its owner's use improves a draft for it, or leaves the file unchanged."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.cli.entry import main
from pyllama_spec.gguf.reader import read_gguf, read_keys
from pyllama_spec.train import (
    DFlashTrainConfig,
    Eagle3TrainConfig,
    TrainError,
    UseConfig,
    train_dflash,
    train_eagle3,
    train_from_use,
)
from pyllama_spec.train.files import keep_old
from pyllama_spec.train.run.from_use import UseReport, why_no_better
from pyllama_spec.train.run.objective import Acceptance
from tests.tiers import release_except
from tests.train.tools import perm, quick_block_config, quick_config

Config = Eagle3TrainConfig | DFlashTrainConfig
# Letters that the first draft has hardly seen anything of: text of a kind of its own.
PROMPTS = [f"{a}{b}" for a in "ABCDEFGH" for b in "xz"]


def _first(folder: Path, kind: str) -> Path:
    if kind == "eagle3":
        return train_eagle3(quick_config(folder, epochs=2)).path
    return train_dflash(quick_block_config(folder, epochs=2)).path


def _use(draft: Path, store: Path) -> None:
    """Sends requests that the store remembers."""
    options: dict[str, Any] = {"n_ctx": 128, "n_threads": 1, "controller": "fixed"}
    with Llama(perm(), draft=draft, draft_memory=store, **options) as llm:
        for prompt in PROMPTS:
            llm.create_completion(prompt, max_tokens=40, temperature=0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes for a kind a folder with a hardly trained draft, and a store of its use."""

    @cache
    def make(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        _use(_first(folder, kind), folder / "use.memory")
        return folder

    return make


def _copied(made: Path, folder: Path) -> None:
    for name in ("draft.gguf", "use.memory"):
        shutil.copy(made / name, folder / name)


@pytest.fixture
def eagle3(made: Callable[[str], Path], tmp_path: Path) -> Config:
    """A run of the one kind, in a folder of its own."""
    _copied(made("eagle3"), tmp_path)
    return config_in(tmp_path)


def config_in(folder: Path, kind: str = "eagle3", **changes: Any) -> Config:
    """A run from use that lasts seconds and continues draft.gguf in a folder."""
    make = quick_config if kind == "eagle3" else quick_block_config
    found = make(folder, **{
        "init": folder / "draft.gguf", "epochs": 10, "n_ctx": 64, "prompts": None, **changes,
    })  # fmt: skip
    (folder / "prompts.jsonl").unlink()
    use = UseConfig(folder / "use.memory", n_other_tokens=150)
    return replace(found, init=None, use=use)


def whole(config: Config) -> dict[str, bytes]:
    """All files of the folder."""
    return {path.name: path.read_bytes() for path in config.out.parent.iterdir()}


def check_untouched(config: Config, before: dict[str, bytes]) -> None:
    after = whole(config)
    assert sorted(after) == sorted(before)
    assert after == before


def per_round(draft: Path) -> float:
    """Tokens per round of decoding on what was asked, by the draft alone."""
    options: dict[str, Any] = {
        "n_ctx": 128, "n_threads": 1, "controller": "fixed", "lookup": 0, "n_draft": 3,
    }  # fmt: skip
    with Llama(perm(), draft=draft, **options) as llm:
        counts = [
            llm.create_completion(prompt, max_tokens=40, temperature=0)["speculation"]
            for prompt in PROMPTS[::4]
        ]
    rounds = sum(one["rounds"] for one in counts)
    return 1 + float(sum(one["accepted"] for one in counts) / rounds)


@pytest.mark.parametrize("kind", release_except(["eagle3", "dflash"], ["eagle3"]))
def test_a_draft_is_better_where_it_was_used(
    kind: str, made: Callable[[str], Path], tmp_path: Path
) -> None:
    _copied(made(kind), tmp_path)
    config = config_in(tmp_path, kind)
    (tmp_path / "draft.gguf").chmod(0o640)
    before = whole(config)
    report: UseReport = train_from_use(config)
    assert report.is_replaced and not report.why_not
    assert report.after.tokens_per_round > report.before.tokens_per_round + 0.3
    assert report.before.n_rounds > 10
    assert report.others_before.n_rounds > 10
    assert report.n_conversations > 10
    after = whole(config)
    assert sorted(after) == ["draft.gguf", "draft.gguf.bak", "use.memory"]
    assert after["draft.gguf.bak"] == before["draft.gguf"] != after["draft.gguf"]
    assert after["use.memory"] == before["use.memory"]
    assert report.kept == tmp_path / "draft.gguf.bak"
    assert (tmp_path / "draft.gguf").stat().st_mode & 0o777 == 0o640
    assert per_round(config.out) > per_round(report.kept) + 0.3
    # It is of the same type and says what it began with, and nothing of the texts.
    types = [
        {t.name: t.type_id for t in read_gguf(p, lambda _: False).tensors.values()}
        for p in (config.out, report.kept)
    ]
    assert all(types[1][name] == number for name, number in types[0].items() if name in types[1])
    keys = read_keys(config.out, lambda name: name.startswith("pyllama_spec.train."))
    values = {name.removeprefix("pyllama_spec.train."): key.value for name, key in keys.items()}
    assert "corpus_sha256" not in values
    assert values["corpus_tokens_before"] > 0


@pytest.mark.parametrize(
    ("own", "others", "said"),
    [
        ((2.0, 2.3), (2.0, 1.9), ""),
        ((2.0, 2.0), (2.0, 2.5), "held-out text"),
        ((2.0, 2.5), (2.0, 1.7), "other text"),
        ((2.0, 2.5), None, ""),
    ],
)
def test_when_a_draft_is_better(
    own: tuple[float, float], others: tuple[float, float] | None, said: str
) -> None:
    def acceptances(pair: tuple[float, float] | None) -> list[Acceptance]:
        n_rounds, values = (0, (1.0, 1.0)) if pair is None else (50, pair)
        return [Acceptance([], one, n_rounds) for one in values]

    before, after = acceptances(own)
    others_before, others_after = acceptances(others)
    found = why_no_better(before, after, others_before, others_after)
    assert (found == "") == (said == "")
    assert said in found


@pytest.mark.parametrize("act", [train_from_use, lambda config: keep_old(config.out)])
def test_a_full_disk_leaves_the_draft_as_it_was(
    act: Callable[[Config], object], eagle3: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = whole(eagle3)
    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(TrainError, match=r"disk is full.*written\. The draft is as it was; free"):
        act(eagle3)
    check_untouched(eagle3, before)


def test_the_command(eagle3: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """A draft that is no better stays, and the command ends with 1."""
    assert eagle3.use is not None
    words = ["train", "eagle3", "-m", perm(), "-o", eagle3.out, "--from-use", eagle3.use.store,
             "--n-ctx", 64, "--batch-tokens", 256, "-t", 1, "--precision", "fp32",
             "--lr", "1e-12", "--epochs", 0.5]  # fmt: skip
    before = whole(eagle3)
    assert main(list(map(str, words))) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "held-out conversations: " in said and "other text: " in said
    assert "draft.gguf is as it was: held-out" in said
    check_untouched(eagle3, before)
