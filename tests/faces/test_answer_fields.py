"""The fields of an answer beside its text: model name, times; and the input of embeddings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from tests.models import model_path

HI = [{"role": "user", "content": "Hi"}]
FEW: dict[str, Any] = {"max_tokens": 3, "temperature": 0.0}


@pytest.fixture(scope="module")
def llm() -> Llama:
    return Llama(str(model_path("llama").resolve()), n_ctx=128, n_threads=1, embedding=False)


_Call = Callable[..., Any]
_CALLS: dict[str, Callable[[Llama], _Call]] = {
    "text": lambda llm: lambda **k: llm.create_completion("Hi", **FEW, **k),
    "chat": lambda llm: lambda **k: llm.create_chat_completion(HI, **FEW, **k),
    "stream": lambda llm: lambda **k: [*llm.create_completion("Hi", stream=True, **FEW, **k)][-1],
    "chunks": lambda llm: lambda **k: [*llm.create_chat_completion(HI, stream=True, **FEW, **k)][1],
}


@pytest.mark.parametrize("kind", _CALLS)
def test_an_answer_names_the_file_and_no_folder(llm: Llama, kind: str) -> None:
    call = _CALLS[kind](llm)
    assert call()["model"] == model_path("llama").name
    assert call(model="mine")["model"] == "mine"
    assert Path(llm.model_path).is_absolute()


@pytest.mark.parametrize(
    ("kind", "pooling", "is_warned"),
    [
        ("llama", None, True), ("llama", "none", False), ("llama", 0, False),
        ("llama", "mean", False), ("llama", "last", False), ("llama", 3, False),
        ("qwen3", None, True), ("bert", None, False),
    ],
)  # fmt: skip
def test_vectors_of_tokens_are_said(kind: str, pooling: str | int | None, is_warned: bool) -> None:
    path = str(model_path(kind))
    with (
        Llama(path, n_ctx=64, n_threads=1, embedding=True, pooling_type=pooling) as llm,
        warnings.catch_warnings(record=True) as noted,
    ):
        warnings.simplefilter("always")
        vectors = [llm.embed("a text"), llm.create_embedding("a text")["data"][0]["embedding"]]
        assert llm.create_embedding("a text")["model"] == Path(path).name
    said = [str(one.message) for one in noted if "pooling" in str(one.message)]
    assert len(said) == is_warned, "once for a model"
    is_each = kind != "bert" and pooling in (None, "none", 0)
    for vector in vectors:
        assert isinstance(vector[0], list) == is_each
