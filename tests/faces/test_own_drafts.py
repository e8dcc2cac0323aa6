"""-d MODULE:FUNCTION: commands accept a user's drafter; nothing else runs its code."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from pyllama_spec import (
    ArgumentError,
    Draft,
    Drafter,
    DraftRequest,
    Llama,
    LookupFirst,
)
from pyllama_spec.cli.entry import main
from pyllama_spec.cli.own_draft import own_draft
from pyllama_spec.drafters import open_draft
from tests.faces.tools import GREEDY, PROMPT, open_tiny, text_of
from tests.models import model_path

SOURCE = '''
import errors_of_mine
from pyllama_spec import Draft, Drafter, DrafterWrapper, PromptLookup
from pyllama_spec.drafters import open_draft

class Echo(Drafter):
    """The last token, again and again."""
    name = "echo"
    max_draft = 3
    def propose_one(self, request):
        return Draft([request.tokens[-1]] * request.n_requested)

class Raises(Drafter):
    def propose_one(self, request):
        raise IndexError("tuple index")

class Late(Echo):
    """Fails in the middle of a text."""
    n = 0
    def propose_one(self, request):
        self.n += 1
        return [][3] if self.n > 2 else super().propose_one(request)

class Silent(Drafter):
    pass

class Undescribed(Echo):
    def describe(self):
        return {{}}["size"]

class Five(Echo):
    def describe(self):
        return 5

class Unclosed(Echo):
    def close(self):
        raise OSError("disk")

class Big(Echo):
    def __init__(self, n):
        self.max_draft = n

def make():
    return Echo()
def wrapped():
    return DrafterWrapper(open_draft({draft!r}))
def number():
    return 5
def fails():
    return [][3]
def refuses():
    PromptLookup(0)
a_number = 7
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of the user's that was never imported."""
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE.format(draft=str(model_path("eagle3"))))
    (tmp_path / "errors_of_mine.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / name


def generated(capsys: pytest.CaptureFixture[str], draft: str, *more: str) -> dict[str, object]:
    """The output of generate with a draft."""
    words = ["generate", "-m", str(model_path("perm")), "-t", "1", "-p", "abc", "-n", "12"]
    assert main([*words, "--controller", "fixed", "--json", "-d", draft, *more]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_generate_drafts_with_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = generated(capsys, "prompt-lookup")
    for function in ("make", "Echo"):
        found = generated(capsys, f"{folder.name}:{function}")
        speculation = found["speculation"]
        assert isinstance(speculation, dict)
        assert (speculation["drafter"], speculation["reason_off"]) == ("echo", None)
        assert speculation["proposed"] > 6
        assert found["text"] == plain["text"]


def test_bench_measures_it_and_says_how(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("prompts.jsonl").write_text('{"id": "a", "prompt": "abcabc", "category": "x"}\n')
    draft = f"{folder.name}:make"
    words = ["bench", "-m", str(model_path("perm")), "-t", "1", "-n", "8", "--repeat", "1"]
    words += ["--prompts", "prompts.jsonl", "--json", "out.json", "-d", draft]
    assert main(words) == 0
    assert "echo" in capsys.readouterr().out
    text = Path("out.json").read_text()
    assert f"-d {draft}" in text, "the command that measures the same"


def test_doctor_measures_it_and_a_wrapper_of_a_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", "-m", str(model_path("llama")), "-t", "1", "--max-rows", "2"]
    assert main([*words, "--repeat", "1", "-d", f"{folder.name}:wrapped"]) == 0
    out = capsys.readouterr().out
    assert f"{model_path('eagle3').name}: fits" in " ".join(out.split())
    assert main([*words, "--repeat", "1", "-d", f"{folder.name}:make"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "draft echo: up to 3 tokens a draft one call for up to 3 tokens" in out
    assert main([*words, "--repeat", "1", "-d", f"{folder.name}:Raises"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith(
        "pyllama-spec: the drafter Raises failed in propose(): IndexError: tuple index (mine_"
    ), said
    assert said[0].endswith(": mend it, or leave -d out to measure the target alone"), said


@pytest.mark.parametrize(
    ("draft", "why"),
    [
        ("Undescribed", "the drafter Undescribed failed in describe(): KeyError: 'size' (mine_"),
        ("Five", "the result of Five.describe() must be a dict, not int"),
    ],
)
def test_what_goes_wrong_in_describe_is_one_line_of_doctor(
    folder: Path, capsys: pytest.CaptureFixture[str], draft: str, why: str
) -> None:
    words = ["doctor", "-m", str(model_path("llama")), "-t", "1", "--max-rows", "2"]
    assert main([*words, "--repeat", "1", "-d", f"{folder.name}:{draft}"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and why in said[0], said


def test_every_command_closes_the_drafter_and_says_if_that_fails(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("prompts.jsonl").write_text('{"id": "a", "prompt": "abcabc", "category": "x"}\n')
    words = ["-m", str(model_path("perm")), "-t", "1", "-d", f"{folder.name}:Unclosed"]
    for command in (
        ["generate", "-p", "abc", "-n", "2", "-q"],
        ["bench", "--prompts", "prompts.jsonl", "-n", "2", "--repeat", "1"],
        ["doctor", "--max-rows", "2", "--repeat", "1"],
    ):
        assert main([*command, *words]) == 0
        said = " ".join(capsys.readouterr().err.split())
        assert said.count("the drafter Unclosed failed in close(): OSError: disk (mine_") == 1, said


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_note_follows_the_text_in_whose_middle_it_came(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both streams are one terminal, so the note waits for the end of the text."""
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdin", io.StringIO("abc\n"))
    words = [command, "-m", str(model_path("perm")), "-t", "1", "-n", "12", "-q"]
    words += [] if command == "chat" else ["-p", "abc"]
    assert main([*words, "--controller", "fixed", "-d", f"{folder.name}:Late"]) == 0
    at = [i for i, line in enumerate(screen.getvalue().splitlines()) if "[note: the dr" in line]
    assert len(at) == 1, screen.getvalue()
    assert screen.getvalue().splitlines()[at[0]].startswith("[note: the drafter echo is disabled")


@pytest.mark.parametrize(
    ("draft", "why"),
    [
        ("no_such_module_here:make", "importing no_such_module_here failed: ModuleNotFoundError"),
        ("{}.part:make", "failed: ModuleNotFoundError"),
        ("{}:other", "has no function other"),
        ("{}:a_number", "has no function a_number"),
        ("{}:number", "number() returns 5, which is not a Drafter"),
        ("{}:fails", "fails() failed: IndexError: list index out of range (mine_"),
        ("{}:refuses", "refuses() failed: max_draft=0 is outside 1"),
        ("{}:Big", "Big() failed: TypeError"),
        ("broken:make", "importing broken failed: ZeroDivisionError: division by zero (bro"),
        ("half:make", "importing half failed: SyntaxError"),
        ("needs:make", "importing needs failed: ModuleNotFoundError: No module named 'nobody'"),
    ],
)
def test_what_goes_wrong_is_one_line_of_each_command(
    folder: Path, capsys: pytest.CaptureFixture[str], draft: str, why: str
) -> None:
    Path("broken.py").write_text("1 / 0\n")
    Path("half.py").write_text("def make(:\n")
    Path("needs.py").write_text("import nobody\n")
    for name in ("broken", "half", "needs"):
        sys.modules.pop(name, None)
    for words in (["generate", "-p", "a"], ["bench"], ["doctor"]):
        # A file that is not there: the draft is said before a model is read.
        words += ["-m", "nothing.gguf", "-d", draft.format(folder.name)]
        if words[0] == "doctor":
            words[words.index("nothing.gguf")] = str(model_path("perm"))
        assert main(words) == 1
        said = capsys.readouterr().err.strip().splitlines()
        assert len(said) == 1, said
        assert why in said[0]


@pytest.mark.parametrize("text", ["none", "prompt-lookup", "a.gguf", "a:b.gguf", "/x:make", ":b"])
def test_other_texts_stay_texts(text: str) -> None:
    assert own_draft(text) == text


def test_a_file_of_that_name_is_a_file(folder: Path) -> None:
    Path(f"{folder.name}:make").write_text("")
    assert own_draft(f"{folder.name}:make") == f"{folder.name}:make"


def test_no_module_of_the_standard_library_is_hidden(folder: Path) -> None:
    """The current folder comes last: a file json.py there is not imported for json."""
    own_draft(f"{folder.name}:make")
    assert sys.path[-1] == str(folder.parent)
    assert sys.path.count(str(folder.parent)) == 1
    own_draft(f"{folder.name}:make")
    assert sys.path.count(str(folder.parent)) == 1


def test_llama_runs_no_code_of_a_text(folder: Path) -> None:
    """A server's model list passes such a text; the message gives the Python alternative."""
    module = folder.name
    with pytest.raises(ArgumentError, match=rf"from {module} import make, then draft=make\(\)"):
        Llama(model_path("perm"), draft=f"{module}:make")
    assert folder.name not in sys.modules


def test_the_package_is_a_command_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyllama_spec", "generate", "--help"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert "MODULE:FUNCTION" in done.stdout


class Counted(Drafter):
    """Its state of a sequence is a number."""

    name, max_draft = "counted", 2

    def __init__(self) -> None:
        self.restored: list[bytes] = []

    def propose_one(self, request: DraftRequest) -> Draft:
        return Draft([request.tokens[-1]] * request.n_requested)

    def save(self, seq: int) -> bytes:
        return b"a number: 7"

    def restore(self, seq: int, data: bytes) -> int:
        self.restored.append(data)
        return 0


class Other(Counted):
    pass


def test_no_drafter_is_handed_the_state_of_another() -> None:
    """A drafter without its own state is told the text again; readable bytes are not trusted."""
    kinds: list[Callable[[], tuple[Counted | None, Drafter]]] = [
        lambda: (mine := Counted(), mine),
        lambda: (mine := Other(), mine),
        lambda: (mine := Counted(), LookupFirst(mine)),
        lambda: (None, open_draft(model_path("eagle3"))),
    ]
    for i, made in enumerate(kinds):
        with made()[1] as first, open_tiny(first) as llm:
            expected = text_of(llm(PROMPT, max_tokens=6, **GREEDY))
            state = llm.save_state()
        for j, other in enumerate(kinds):
            mine, drafter = other()
            with drafter, open_tiny(drafter) as llm, warnings.catch_warnings():
                warnings.simplefilter("error")
                llm.load_state(state)
                found = llm(PROMPT, max_tokens=6, **GREEDY)
                assert text_of(found) == expected
                assert "failed" not in str(found["speculation"]["reason_off"])
            if mine is not None:
                assert mine.restored == ([b"a number: 7"] if i == j else []), (i, j)


def test_a_drafter_with_copies_before_it_has_a_name_of_its_own() -> None:
    assert LookupFirst(Counted()).name == "counted+copies"
    with open_draft(model_path("eagle3")) as drafter:
        assert isinstance(drafter, LookupFirst)
        assert drafter.name == drafter.drafter.name


def test_options_of_files_name_what_a_drafter_of_ones_own_does_instead() -> None:
    for options, words in (({"lookup": 3}, "LookupFirst"), ({"p_min": 0.9}, "propose_one")):
        with pytest.raises(ArgumentError, match=words):
            open_tiny(Counted(), **options)
