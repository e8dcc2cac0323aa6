"""Display in a notebook: answers with drafted tokens in colour, bars, completion of names."""

from __future__ import annotations

import copy
import html
import importlib
import json
import pickle
import re
import sys
import types
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

import pyllama_spec
from pyllama_spec import Llama
from pyllama_spec.llama.responses import Result
from pyllama_spec.requests.detokenizer import Piece
from pyllama_spec.requests.generation import GenerationRecord
from pyllama_spec.terminal import ProgressBar
from pyllama_spec.train.progress import TerminalReporter
from tests.models import model_path

PUBLIC = ("bench", "convert", "drafters", "engine", "gguf", "llama_cpp", "speculative", "train")


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    # Short cycles: the text repeats itself, and copies of it are right.
    path = model_path("perm", n_vocab=320, seed=3, n_cycles=79)
    with Llama(path, draft="prompt-lookup", controller="fixed", n_ctx=512, n_parallel=2) as llm:
        yield llm


def shown(result: Any) -> tuple[str, str]:
    """The text of what a notebook draws, and the part of it that is in colour."""
    source = result._repr_html_()
    texts = "".join(re.findall(r"<pre[^>]*>(.*?)</pre>", source, re.DOTALL))
    drafted = "".join(re.findall(r"<span[^>]*>(.*?)</span>", texts, re.DOTALL))
    return html.unescape(re.sub(r"<[^>]*>", "", texts)), html.unescape(drafted)


def test_an_answer_shows_what_was_drafted(llm: Llama) -> None:
    result = llm.create_completion("Hel", max_tokens=40, temperature=0.0)
    text, drafted = shown(result)
    assert text == result["choices"][0]["text"]
    accepted = result["speculation"]["accepted"]
    assert accepted > 0 and 0 < len(drafted) < len(text)
    assert f"{accepted} of " in result._repr_html_()  # type: ignore[attr-defined]


def test_a_chat_and_a_list_of_prompts(llm: Llama) -> None:
    chat = llm.create_chat_completion([{"role": "user", "content": "Hi"}], max_tokens=9)
    assert shown(chat)[0] == chat["choices"][0]["message"]["content"]
    several = llm.create_completion(["Hel", "lo"], max_tokens=9, temperature=0.0)
    assert shown(several)[0] == "".join(choice["text"] for choice in several["choices"])


def test_an_answer_is_a_dict_for_everybody_else(llm: Llama) -> None:
    result = llm.create_completion("Hel", max_tokens=20, temperature=0.0)
    plain = dict(result)
    assert isinstance(result, dict) and result == plain
    assert json.loads(json.dumps(result)) == json.loads(json.dumps(plain))
    assert repr(result) == repr(plain)
    for other in (copy.deepcopy(result), copy.copy(result), pickle.loads(pickle.dumps(result))):
        assert other == plain and shown(other) == shown(result)
    assert not hasattr(plain, "_repr_html_")


def test_text_of_a_model_is_no_markup() -> None:
    record = GenerationRecord((1,))
    record.add(Piece("<script>alert(1)</script>", (5,), (True,)), [], ["model"])
    record.add(Piece('&lt; "', (6,), (False,)), [], ["model", "target"])
    result = Result({"speculation": {"reason_off": "<b>"}}, [record])
    assert "<script" not in result._repr_html_() and "<b>" not in result._repr_html_()
    assert shown(result) == ('<script>alert(1)</script>&lt; "', "<script>alert(1)</script>")


def test_stretches_are_whole_texts_of_one_kind() -> None:
    record = GenerationRecord((1,))
    for text, drafted in (("a", False), ("b", True), ("c", True), ("", True), ("d", False)):
        record.add(Piece(text, (1,), (drafted,)), [], ["copy"] * 5)
    assert record.text == "abcd"
    assert record.token_sources == [
        ("a", "target"), ("b", "copy"), ("c", "copy"), ("d", "target"),
    ]  # fmt: skip
    assert shown(Result({}, [record]))[1] == "bc"


def test_names_for_completion_are_those_for_users() -> None:
    for name in ("", *PUBLIC, "llama", "speculative.controller"):
        module = importlib.import_module(f"pyllama_spec.{name}".rstrip("."))
        if name == "gguf":  # its modules are what it has
            continue
        listed = {found for found in dir(module) if not found.startswith("__")}
        if name == "llama_cpp":  # types of theirs beside
            assert listed > {*module.__all__, "llama_types", "CreateCompletionResponse"} - {
                "__version__"
            }
            assert not {"Any", "TypedDict", "public", "import_module"} & listed
        else:
            more = set() if name else {*PUBLIC}
            assert listed == {*module.__all__, *more} - {"__version__"}, name
        for found in listed:
            assert getattr(module, found) is not None, found
    assert "annotations" not in dir(pyllama_spec) and "later" not in dir(pyllama_spec)


class Bar:
    """Stands in for tqdm's."""

    made: ClassVar[list[Bar]] = []

    def __init__(self, **options: Any) -> None:
        self.options, self.n, self.note, self.is_closed = options, 0, "", False
        self.made.append(self)

    def set_postfix_str(self, note: str, *, refresh: bool) -> None:
        self.note = note

    def refresh(self) -> None:
        assert not self.is_closed

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[Bar]:
    """A kernel of a notebook, as far as a program sees it."""
    Bar.made = []
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    tqdm: Any = types.ModuleType("tqdm.notebook")
    tqdm.tqdm = Bar
    for name, module in (("IPython", ipython), ("tqdm.notebook", tqdm)):
        monkeypatch.setitem(sys.modules, name, module)
    return Bar.made


def test_a_notebook_gets_tqdms_bar(notebook: list[Bar]) -> None:
    bar = ProgressBar("measuring")
    assert bar.is_shown and not notebook, "none before it is drawn"
    bar(0.5)
    assert [(one.options["desc"], one.n) for one in notebook] == [("measuring", 50)]
    bar(1.0)
    assert notebook[0].n == 100 and notebook[0].is_closed


def test_training_in_a_notebook_has_a_bar_for_each_stage(notebook: list[Bar]) -> None:
    reporter = TerminalReporter()
    reporter.progress("writing text", 0.1, "7 tokens")
    reporter.progress("training", 0.2, "step 1")
    assert [(one.options["desc"], one.note, one.is_closed) for one in notebook] == [
        ("writing text", "7 tokens", True), ("training", "step 1", False),
    ]  # fmt: skip
