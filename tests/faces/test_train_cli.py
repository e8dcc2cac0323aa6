"""The command `train`: usage and bad input, without PyTorch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NoReturn

import pytest

import pyllama_spec.cli.train as cli_train
from pyllama_spec.cli.entry import main
from pyllama_spec.errors import ArgumentError
from pyllama_spec.options import options_of
from pyllama_spec.train import CorpusConfig
from pyllama_spec.train.config import RunConfig
from tests.models import model_path


def train(*args: object) -> int:
    return main(["train", "eagle3", *map(str, args)])


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_a_run_from_use_is_told_its_store(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RunConfig] = []

    def stop(config: RunConfig, _: object) -> NoReturn:
        seen.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_train, "train_from_use", stop)
    words = ["train", kind, "-m", "t.gguf", "-o", "d.gguf", "--from-use", str(tmp_path / "s")]
    for more, n_tokens in (([], 40_000), (["--tokens", "9"], 9)):
        assert main([*words, *more]) == 130
        use = seen[-1].use
        assert use is not None and (use.store, use.n_tokens) == (tmp_path / "s", n_tokens)
        assert seen[-1].corpus == CorpusConfig()
        assert seen[-1].begun_with == Path("d.gguf")


def test_without_pytorch_the_way_to_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> object:
        return None if name == "torch" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert train("-m", model_path("llama"), "-o", tmp_path / "d.gguf") == 1
    err = capsys.readouterr().err
    assert "pip install 'pyllama_spec[train]'" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("eagle3", {"--steps": "3"}),
        ("dflash", {"--layers": "3", "--block": "6"}),
    ],
)
def test_every_option_reaches_the_run(
    kind: str, own: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RunConfig] = []

    def stop(config: RunConfig, _: object) -> NoReturn:
        seen.append(config)
        raise ArgumentError("enough")

    known_kind = cli_train._KINDS[kind]
    monkeypatch.setitem(cli_train._KINDS, kind, known_kind._replace(train=stop))
    shared = (
        "--tokens 9 --prompts p.jsonl --n-ctx 99 --parallel 3 --seed 4 --n-ff 88 --draft-vocab 77 "
        "--epochs 1.5 --batch-tokens 128 --lr 0.002 --precision fp32 --type bf16"
    )
    pairs = shared.split()
    words = {**dict(zip(pairs[::2], pairs[1::2], strict=True)), **own}
    files = ["-m", str(tmp_path / "t.gguf"), "-o", str(tmp_path / "d.gguf")]
    assert main(["train", kind, *files, *(w for pair in words.items() for w in pair)]) == 1
    parts = (seen[0], seen[0].corpus, seen[0].head, seen[0].fit)
    found = {
        one.cli: str(getattr(part, one.name))
        for part in parts for one in options_of(type(part)).values() if one.cli
    }  # fmt: skip
    assert found.items() >= words.items()
    # It reads no pictures.
    assert main(["train", kind, *files, "--mmproj", "a.gguf"]) == 2
