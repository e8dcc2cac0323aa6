"""The command line's messages for wrong options and options without effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyllama_spec.cli import main
from pyllama_spec.engine import supports_gpu
from tests.models import model_path


def said(args: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and stderr; MODEL, HEAD and 0 stand for files, and no GPU."""
    files = {"MODEL": model_path("llama"), "HEAD": model_path("eagle3")}
    code = main([str(files.get(arg, arg)) for arg in args])
    return code, capsys.readouterr().err


RUN = ["generate", "-m", "MODEL", "-p", "x", "-n", "2", "-t", "1"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([*RUN, "-d", "gone.gguf"], "the draft gone.gguf does not exist"),
        (["doctor", "-m", "MODEL", "-d", "gone.gguf"], "the draft gone.gguf does not exist"),
        (["bench", "-m", "MODEL", "-d", "gone.gguf"], "the draft gone.gguf does not exist"),
        (["generate", "-m", "gone.gguf", "-p", "x"], "gone.gguf does not exist; check the path"),
        (["generate", "-m", "MODEL", "--n-ctx", "8", "-p", "x" * 50], "choose a larger --n-ctx"),
        (["generate", "-m", "HEAD", "-p", "x"], "as --model and give this file as --draft"),
        ([*RUN, "-d", "prompt-lookup", "--p-min", "0.5"], "--p-min 0.5 applies to a draft that is"),
        (["bench", "-m", "MODEL", "-d", "none"], "compares plain decoding with itself"),
        *(
            ([*RUN, option, value], f"{option} is for a draft: add -d")
            for option, value in (
                ("--n-draft", "3"), ("--p-min", "0.5"), ("--lookup", "3"),
                ("--controller", "fixed"), ("--draft-gpu-layers", "1"),
                ("--draft-n-ctx", "64"),
            )
        ),
        ([*RUN, "-d", "suffix", "-ngld", "3"], "--draft-gpu-layers is for a draft with a model"),
        ([*RUN, "-d", "suffix", "--draft-n-ctx", "9"], "--draft-n-ctx is for a draft with a model"),
        ([*RUN, "-d", "suffix", "--controller", "off", "--n-draft", "3"], "--n-draft does nothing"),
        ([*RUN, "--rpc-timeout", "3"], "--rpc-timeout is for --rpc-servers"),
        (["serve", "-m", "MODEL", "--cache-size", "5"], "--cache-size is for --cache-dir"),
        (["serve", "-m", "MODEL", "--pooling", "mean"], "--pooling is for --embeddings"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_as_it_was_given(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = said(args, capsys)
    assert code == 1
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert "[Errno" not in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (
            [*RUN, "--tempp", "0"],
            "pyllama-spec generate: unrecognized arguments: --tempp 0; did you mean --temp or ",
        ),
        ([*RUN, "-n", "x"], "pyllama-spec generate: argument -n/--max-tokens: invalid int value"),
        (["train", "eagle3", "-m", "x"], "pyllama-spec train eagle3: the following arguments are"),
        (["bogus"], "pyllama-spec: argument COMMAND: invalid choice: 'bogus'"),
        ([], "pyllama-spec: the following arguments are required: COMMAND"),
    ],
)
def test_bad_usage_is_one_line(
    args: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = said(args, capsys)
    assert code == 2
    assert err.startswith(line)
    assert err.endswith(" --help tells all options\n") and err.count("\n") == 1


def test_layers_for_a_gpu_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, err = said([*RUN, "-ngl", "2"], capsys)
    assert code == 0
    if not supports_gpu():  # what a GPU took, it took
        assert "[note: --n-gpu-layers 2 puts 2 layers" in err
    assert "n_gpu_layers=" not in err
    assert "UserWarning" not in err and "warnings.warn" not in err


def test_a_role_that_the_template_does_not_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [
        {"id": role, "category": "c", "messages": [{"role": role, "content": "hello"}]}
        for role in ("user", "wizard")
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = ["--prompts", str(prompts), "--repeat", "1"]
    code, err = said(
        ["bench", "-m", "MODEL", "-d", "prompt-lookup", "-n", "2", "-t", "1", *files], capsys
    )
    assert code == 0
    assert "the role 'wizard' does not occur" in err
    assert "'user'" not in err
