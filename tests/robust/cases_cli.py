"""The command line: exit code 1 and one line for a failure, 2 for bad usage."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

from pyllama_spec.cli.entry import main
from pyllama_spec.errors import PyllamaSpecError

from .harness import CaseList
from .tools import tiny, written

CASES = CaseList()


class ExitedError(PyllamaSpecError):
    """The outcome of a command, as an exception's message."""


def _run(*words: str | Path) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def _fails(*words: str | Path) -> None:
    code, out, err = _run(*words)
    assert code == 1, (code, out, err)
    assert err.count("\n") == 1, err
    raise ExitedError(f"{err}")


def _misused(*words: str | Path) -> None:
    code, out, err = _run(*words)
    assert (code, out) == (2, ""), (code, out, err)
    assert "Traceback" not in err
    raise ExitedError(err)


def _generate(*words: str | Path) -> Callable[[Path], object]:
    return lambda _: _fails("generate", "-m", tiny(), "-n", "8", "-p", "Hello", *words)


CASES.table(
    "fails",
    {
        "missing_model": (
            lambda f: _fails("generate", "-m", f / "no.gguf", "-p", "a"), ExitedError, "no.gguf",
        ),
        "folder": (lambda f: _fails("generate", "-m", f, "-p", "a"), ExitedError, "is a folder"),
        "text_file": (
            lambda f: _fails("generate", "-m", written(f, b"hello"), "-p", "a"),
            ExitedError, "not a GGUF",
        ),
        "cut_file": (
            lambda f: _fails("generate", "-m", written(f, tiny().read_bytes()[:9999]), "-p", "a"),
            ExitedError, "cannot load",
        ),
        "missing_draft": (_generate("-d", "no.gguf"), ExitedError, "no.gguf"),
        "draft_of_wrong_kind": (_generate("-d", tiny("bert")), ExitedError, "(bert)"),
        "quantize_missing": (
            lambda f: _fails("quantize", f / "no.gguf", f / "o.gguf", "Q8_0"),
            ExitedError, "no.gguf",
        ),
        "quantize_type": (
            lambda f: _fails("quantize", tiny(), f / "o.gguf", "Q9"), ExitedError, "'Q9'",
        ),
        "quantize_to_itself": (
            lambda _: _fails("quantize", tiny(), tiny(), "Q8_0"), ExitedError, "input itself",
        ),
        "doctor_missing": (lambda f: _fails("doctor", "-m", f / "no.gguf"), ExitedError, "no.gguf"),
        "encoder": (
            lambda _: _fails("generate", "-m", tiny("bert"), "-p", "a"), ExitedError, "encoder",
        ),
    },
)  # fmt: skip

CASES.table(
    "misused",
    {
        "nothing": (lambda _: _misused(), ExitedError, "COMMAND"),
        "unknown_command": (lambda _: _misused("generat"), ExitedError, "generat"),
        "unknown_option": (
            lambda _: _misused("generate", "-m", tiny(), "--tokens", "5"),
            ExitedError,
            "--help tells all",
        ),
        "no_model": (lambda _: _misused("generate", "-p", "a"), ExitedError, "-m"),
        "text_for_number": (
            lambda _: _misused("generate", "-m", tiny(), "-p", "a", "-n", "x"), ExitedError, "-n",
        ),
    },
)  # fmt: skip


@CASES.add(None)
def help_and_version(folder: Path) -> None:
    for words in (["--help"], ["--version"], ["generate", "--help"]):
        code, out, err = _run(*words)
        assert code == 0 and out and not err
