"""The command `train`: usage and bad input, without PyTorch."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pyllama_spec.cli.train as cli_train
from pyllama_spec.cli.entry import main
from pyllama_spec.errors import ArgumentError
from pyllama_spec.train import (
    CorpusConfig,
    DFlashFitConfig,
    DFlashHeadConfig,
    DFlashTrainConfig,
    Eagle3TrainConfig,
    FitConfig,
    HeadConfig,
    UseConfig,
)
from pyllama_spec.train.config import RunConfig
from pyllama_spec.train.progress import Reporter
from pyllama_spec.train.run.provenance import command
from pyllama_spec.train.run.target_weights import block_layers, default_layers
from tests.models import model_path


def train(*args: object) -> int:
    return main(["train", "eagle3", *map(str, args)])


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["-m", "x.gguf"],
        ["-m", "x.gguf", "-o", "y.gguf", "--type", "q2_k"],
        ["-m", "x.gguf", "-o", "y.gguf", "--target-layers", "1,two"],
        ["-m", "x.gguf", "-o", "y.gguf", "--tokens", "many"],
    ],
)
def test_bad_usage_is_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert train(*args) == 2
    assert "pyllama-spec train eagle3 --help tells all" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--tokens", "0"], "--tokens 0 is outside"),
        (["--lr", "-1"], "--lr -1.0 is not a finite number"),
        (["--lr", "nan"], "--lr nan is not a finite number"),
        (["--greedy-share", "1.5"], "--greedy-share 1.5 is outside 0 .. 1"),
        (["--copied-share", "1.5"], "--copied-share 1.5 is outside 0 .. 1"),
        (["--missed-share", "-0.1"], "--missed-share -0.1 is outside 0 .. 1"),
        (["--max-disk", "-1"], "--max-disk -1 is below 0"),
        (["--epochs", "0"], "--epochs 0.0: give a number above 0"),
        (["--lr", "0"], "--lr 0.0: give a number above 0"),
        (["--n-ctx", "1"], "--n-ctx 1 has no room for a prompt and an answer of at least 16"),
        (["--n-ctx", "16"], "give more than 16, 384 for example"),
        (["--steps", "0"], "--steps 0 is outside"),
        (["--target-layers", "1,99"], "99"),
        (["--prompts", "none.jsonl"], "cannot read the prompts file none.jsonl"),
    ],
)
def test_bad_settings_are_told_in_one_line(
    args: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("-m", model_path("llama"), "-o", tmp_path / "d.gguf", *args) == 1
    err = capsys.readouterr().err
    assert reason in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_bad_settings_of_an_mtp_head_are_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "d.gguf"
    command = ["train", "mtp", "-m", str(model_path("qwen35", n_heads=1)), "-o", str(out)]
    for args, reason in (
        (["--loss-vocab", "0"], "--loss-vocab 0 is outside"),
        (["--steps", "0"], "--steps 0 is outside"),
    ):
        assert main([*command, *args]) == 1
        err = capsys.readouterr().err
        assert reason in err
        assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("below", ["", "inner", "inner/more"])
def test_a_work_folder_that_is_a_file_is_named(
    below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also for the default folder, and for a folder above it."""
    file = tmp_path / "d.gguf.train"
    file.write_text("not a folder")
    more = ["--work", file / below] if below else []
    assert train("-m", model_path("llama"), "-o", tmp_path / "d.gguf", *more) == 1
    err = capsys.readouterr().err
    assert f"--work {file / below}: {file} is a file; give a folder" in err
    assert err.count("\n") == 1
    assert file.read_text() == "not a folder"


def test_bad_files_are_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, empty = model_path("llama"), tmp_path / "empty.jsonl"
    empty.touch()
    out = tmp_path / "d.gguf"
    for args, reason in (
        (["-m", tmp_path / "none.gguf", "-o", out], "none.gguf does not exist"),
        (["-m", empty, "-o", out], "is empty"),
        (["-m", target, "-o", tmp_path], "is a folder"),
        (["-m", target, "-o", tmp_path / "a" / "d.gguf"], "does not exist"),
        (["-m", target, "-o", target], "is the target itself"),
        (["-m", target, "-o", out, "--prompts", empty], "empty.jsonl is empty"),
        (["-m", model_path("bert"), "-o", out], "bert"),
        (["-m", model_path("eagle3"), "-o", out], "is a draft of kind 'eagle3'"),
    ):
        assert train(*args) == 1
        err = capsys.readouterr().err
        assert reason in err, err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--type", "f32"], "--type f32: a draft from use keeps its type"),
        (["--work", "w"], "has no work folder"),
        (["--restart"], "cannot restart"),
        (["--plain"], "a run that continues d.gguf has its shape"),
        (["--n-ff", "64"], "a run that continues d.gguf has its shape"),
        (["--tokens", "0"], "--tokens 0 is outside"),
        (["--prompts", "none.jsonl"], "cannot read the prompts file none.jsonl"),
        ([], "d.gguf: the draft to train further does not exist"),
        (["--init", "other.gguf"], "other.gguf: the draft to train further does not exist"),
    ],
)
def test_what_does_not_go_with_use_is_told_in_one_line(
    args: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["-m", model_path("llama"), "-o", tmp_path / "d.gguf"]
    assert train(*files, "--from-use", tmp_path / "s.memory", *args) == 1
    err = capsys.readouterr().err
    assert reason in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_a_run_from_use_is_told_its_store(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RunConfig] = []

    def stop(config: RunConfig, _: object) -> None:
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
        own = ["--from-use", "s", *more]
        assert command(seen[-1]) == " ".join(["pyllama-spec", *words[:-2], *own])


def test_without_pytorch_the_way_to_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> object:
        return None if name == "torch" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert train("-m", model_path("llama"), "-o", tmp_path / "d.gguf") == 1
    err = capsys.readouterr().err
    assert "training needs torch" in err
    assert "pip install 'pyllama_spec[train]'" in err
    # Not the gigabytes that pip takes by itself.
    assert err.index("PyTorch's CPU build first") < err.index("pip install 'pyllama_spec[train]'")
    assert err.count("\n") == 1


def test_the_recorded_command_has_no_folders_and_no_defaults(tmp_path: Path) -> None:
    config = Eagle3TrainConfig(
        tmp_path / "target model.gguf",
        tmp_path / "draft.gguf",
        corpus=CorpusConfig(prompts=tmp_path / "p.jsonl", n_tokens=1000),
        head=HeadConfig(fc_norm=False, norm_output=False, target_layers=(1, 2, 3)),
        fit=FitConfig(lr=0.002, copied_share=0.5, train_output=True),
    )
    assert command(config) == (
        "pyllama-spec train eagle3 -m 'target model.gguf' -o draft.gguf --plain --train-output "
        "--tokens 1000 --prompts p.jsonl --target-layers 1,2,3 --copied-share 0.5 --lr 0.002"
    )


def test_the_recorded_command_of_a_block_draft_names_its_own_options(tmp_path: Path) -> None:
    config = DFlashTrainConfig(
        tmp_path / "target.gguf",
        tmp_path / "draft.gguf",
        head=DFlashHeadConfig(block_size=6, markov_rank=32, sample_from_anchor=True),
        fit=DFlashFitConfig(weights="decay", hard_share=0.25),
    )
    assert command(config) == (
        "pyllama-spec train dflash -m target.gguf -o draft.gguf --from-anchor --block 6 "
        "--markov 32 --weights decay --hard-share 0.25"
    )


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("eagle3", "--steps 3"),
        (
            "dflash",
            (
                "--causal --confidence --from-mask --layers 3 --block 6 --markov 32 "
                "--weights decay --anchor-share 0.3 --dpace-alpha 0.4 --hard-share 0.2"
            ),
        ),
    ],
)
def test_every_option_reaches_the_run(
    kind: str, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run records the command and all its options."""
    seen: list[RunConfig] = []

    def stop(config: RunConfig, _: object) -> None:
        seen.append(config)
        raise ArgumentError("enough")

    monkeypatch.setattr(cli_train, f"train_{kind}", stop)
    shared = (
        "--train-output --tokens 9 --prompts p.jsonl --n-ctx 99 --parallel 3 --greedy-share 0.5 "
        "--temperature 0.7 --seed 4 --target-layers 1,2 --n-head 8 --n-head-kv 2 --n-ff 88 "
        "--draft-vocab 77 --epochs 1.5 --step-decay 0.7 --missed-share 0.6 --copied-share 0.4 "
        "--batch-tokens 128 --lr 0.002 --weight-decay 0.02 --patience 3 --precision fp32 "
        "--type bf16 --ngrams 55"
    )
    given = [*shared.split(), *own.split()]
    files = ["-m", str(tmp_path / "t.gguf"), "-o", str(tmp_path / "d.gguf")]
    assert main(["train", kind, *files, *given]) == 1
    known = set(given) | {"pyllama-spec", "train", kind, "-m", "t.gguf", "-o", "d.gguf"}
    assert set(command(seen[0]).split()) == known


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--block", "1"], "--block 1 is outside"),
        (["--layers", "0"], "--layers 0 is outside"),
        (["--confidence", "--markov", "0"], "confidence needs a markov_rank"),
        (["--from-anchor", "--markov", "0"], "--sample-from-anchor needs a markov_rank"),
        (["--anchor-share", "0"], "--anchor-share 0"),
        (["--dpace-alpha", "2"], "--dpace-alpha 2.0 is outside 0 .. 1"),
        (["--target-layers", "1,99"], "99"),
    ],
)
def test_bad_settings_of_a_block_draft_are_told_in_one_line(
    args: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "dflash", "-m", str(model_path("llama")), "-o", str(tmp_path / "d.gguf")]
    assert main([*words, *args]) == 1
    err = capsys.readouterr().err
    assert reason in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_every_kind_has_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, own, other in (("eagle3", "--plain", "--block"), ("dflash", "--block", "--plain")):
        assert main(["train", kind, "--help"]) == 0
        text = capsys.readouterr().out
        assert own in text
        assert other not in text
        assert "--tokens" in text


@pytest.mark.parametrize(
    ("run", "more", "left"),
    [
        (
            "train_eagle3", [],
            "; what was made so far is kept, and the same command resumes the run",
        ),
        ("train_from_use", ["--from-use", "s"], "; the draft is as it was"),
    ],
)  # fmt: skip
def test_an_interrupted_command_says_what_is_left(
    run: str,
    more: list[str],
    left: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_train, run, interrupted)
    assert train("-m", "t.gguf", "-o", tmp_path / "d.gguf", *more) == 130
    assert capsys.readouterr().err == f"pyllama-spec: interrupted{left}\n"


def test_contradictory_settings_are_refused() -> None:
    with pytest.raises(ArgumentError, match="n_top=65 is more than n_candidates=64"):
        Eagle3TrainConfig(Path("a"), Path("b"), n_top=65)
    with pytest.raises(ArgumentError, match="target_layers is empty"):
        HeadConfig(target_layers=())
    with pytest.raises(ArgumentError, match="precision='fp8'"):
        FitConfig(precision="fp8")
    with pytest.raises(ArgumentError, match="step_decay"):
        FitConfig(step_decay=0.0)


@pytest.mark.parametrize("value", [None, "a tenth", float("nan"), -0.1, 1.5])
def test_a_share_that_is_none_is_refused_by_name(value: Any) -> None:
    makers: list[tuple[Callable[..., object], list[str]]] = [
        (CorpusConfig, ["greedy_share", "prompt_seed_share"]),
        (partial(UseConfig, Path("store")), ["held_out", "right_share", "max_loss"]),
        (FitConfig, ["missed_share", "copied_share"]),
        (DFlashFitConfig, ["anchor_share", "dpace_alpha", "hard_share", "missed_share"]),
    ]
    for make, names in makers:
        for name in names:
            if (name, value) == ("copied_share", None):  # the kind's own
                make(copied_share=None)
                continue
            with pytest.raises(ArgumentError, match=f"^{name}="):
                make(**{name: value})


@pytest.mark.parametrize("n_layer", range(1, 40))
def test_default_layers_exist_and_differ(n_layer: int) -> None:
    plain, layers = default_layers(n_layer, is_plain=True), default_layers(n_layer)
    assert len(plain) == (3 if n_layer > 1 else 2)
    assert plain == ((2, n_layer // 2, n_layer - 3) if n_layer >= 7 else layers)
    assert len(layers) >= len(plain)
    for some in (plain, layers):
        assert list(some) == sorted(set(some))
        assert all(0 <= layer <= n_layer for layer in some)
    if n_layer >= 14:
        assert len(layers) == 6
        assert layers[0] == 1
        assert layers[-1] == n_layer
    # Stock llama.cpp takes no last layer's output in a block's draft.
    blocks = block_layers(n_layer)
    assert list(blocks) == sorted(set(blocks))
    assert all(0 <= layer < n_layer for layer in blocks)
    assert len(blocks) >= min(len(layers) - 1, n_layer)


def test_a_corpus_is_known_by_the_keys_that_it_always_had() -> None:
    """Index files of earlier versions must fit: a field may be renamed, its key may not."""
    assert CorpusConfig().identity() == {
        "n_ctx": 384, "n_candidates": 64, "greedy_share": 0.75, "temperature": 0.8,
        "user_temperature": 1.0, "opening_share": 0.75, "min_user": 2, "max_user": 64,
        "min_answer": 16, "max_passes": 8, "seed": 1,
    }  # fmt: skip


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyboardInterrupt(), "pyllama-spec: interrupted"),
        (ArgumentError("no more"), "pyllama-spec: no more"),
    ],
)
def test_what_ends_a_run_does_not_stand_in_its_bar(
    error: BaseException, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(config: RunConfig, reporter: Reporter) -> None:
        reporter.progress("writing text", 0.4, "7 tokens")
        raise error

    monkeypatch.setattr(cli_train, "train_eagle3", stop)
    monkeypatch.setattr(sys, "stderr", terminal := _Terminal())
    assert train("-m", model_path("llama"), "-o", tmp_path / "d.gguf") != 0
    shown = terminal.getvalue()
    assert "writing text [" in shown
    # Back to the beginning of the line, and nothing of the bar left there.
    assert shown.rpartition("\r\x1b[K")[2].startswith(said)


@pytest.mark.parametrize(("before", "after", "is_noted"), [(1.24, 1.15, True), (1.1, 2.0, False)])
def test_a_draft_that_training_made_no_better_is_called_weak(
    before: float, after: float, is_noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def acceptance(n: float) -> Any:
        return SimpleNamespace(n_rounds=60, tokens_per_round=n, by_depth=(n - 1,))

    report: Any = SimpleNamespace(
        untrained=acceptance(before), trained=acceptance(after), path=Path("draft.gguf"),
        n_bytes=1, why_not="", seconds={}, n_answer_tokens=1, n_tokens_seen=1, notes=(),
    )  # fmt: skip
    cli_train._print_report(report, Path("work"))
    shown = " ".join(capsys.readouterr().out.split())
    assert f"(untrained {before:.2f})" in shown
    assert ("no better than it was before the first step" in shown) == is_noted
