"""What the command line says when an option is wrong, or would do nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyllama_spec import Llama
from pyllama_spec.cli import main
from pyllama_spec.engine import supports_gpu
from pyllama_spec.engine.binding import lib
from pyllama_spec.errors import OutOfMemoryError
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
        *(
            (["doctor", "-m", "MODEL", "-d", name], f"{name} needs none, and fits every model; ")
            for name in ("prompt-lookup", "suffix", "grammar", "none")
        ),
        ([*RUN, "--n-ctx", "8", "-p", "x" * 50], "choose a larger --n-ctx"),
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


SERVED = (
    "the KV cache for 4 requests with 4096 tokens each needs {}choose a smaller --n-ctx or "
    "--parallel, or type_k and type_v of fewer bits in a file of --config\n"
)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (RUN, "the KV cache for 4096 tokens needs {}choose a smaller --n-ctx\n"),
        (["serve", "-m", "MODEL", "-t", "1"], SERVED),
    ],
)  # fmt: skip
def test_a_kv_cache_that_does_not_fit_is_told_in_options(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lib.llama_spec_limit_memory(1000)
    try:
        code, err = said(args, capsys)
    finally:
        lib.llama_spec_limit_memory(0)
    assert code == 1
    begin, end = words.split("{}")
    assert begin in err
    assert err.endswith(end)


def test_a_context_that_does_not_fit_is_told_in_keywords() -> None:
    lib.llama_spec_limit_memory(1000)
    try:
        with pytest.raises(OutOfMemoryError, match="a smaller n_ctx or n_parallel, or type_k and"):
            Llama(model_path("llama"), n_ctx=4096, n_parallel=2, n_threads=1)
        with pytest.raises(OutOfMemoryError, match=r"tokens each needs .* a smaller n_ctx"):
            Llama(model_path("qwen35"), n_ctx=4096, n_parallel=2, n_threads=1)
        with pytest.raises(OutOfMemoryError, match=r"64 tokens needs .* a smaller n_ctx$"):
            Llama(model_path("mamba2"), n_ctx=64, n_threads=1)
    finally:
        lib.llama_spec_limit_memory(0)


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
    assert "names no role 'wizard'" in err
    assert "'user'" not in err
