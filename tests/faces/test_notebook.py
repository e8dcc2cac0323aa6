"""Display in a notebook: answers with drafted tokens in colour, and bars."""

from __future__ import annotations

import copy
import html
import json
import pickle
import re
import sys
import types
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from pyllama_spec import Llama
from pyllama_spec.llama.responses import Result
from pyllama_spec.requests.detokenizer import Piece
from pyllama_spec.requests.run import GenerationRecord
from pyllama_spec.terminal import ProgressBar
from tests.models import model_path


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
