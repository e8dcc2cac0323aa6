"""The keywords of Llama(), and what its calls give, to help(), pickles and type checkers."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import TYPE_CHECKING

from pyllama_spec import Llama, Stream
from pyllama_spec.llama.open_options import KEYWORDS, OpenOptions
from pyllama_spec.llama.responses import Response

if TYPE_CHECKING:
    from typing_extensions import assert_type

    def _types(llm: Llama, is_stream: bool) -> None:
        """For mypy: a stream where one is asked for."""
        assert_type(llm("a", max_tokens=3), Response)
        assert_type(llm.create_completion("a", stream=True), Stream[Response])
        assert_type(llm.create_chat_completion([], stream=True), Stream[Response])
        assert_type(llm.create_chat_completion([], stream=is_stream), Response | Stream[Response])
        Llama("m.gguf", n_ctx="many")  # type: ignore[arg-type]
        Llama("m.gguf", n_context=3)  # type: ignore[call-arg]


def test_keywords_are_those_of_open_options() -> None:
    seen = inspect.signature(Llama.__init__).parameters
    assert list(seen) == ["self", *KEYWORDS, "unknown"]
    assert seen["n_ctx"].default == OpenOptions("m.gguf").n_ctx


def test_options_are_kept_as_they_were_given() -> None:
    options, unknown = OpenOptions.from_keywords("m.gguf", {"split_mode": 1, "f16_kv": True})
    assert unknown == ["f16_kv"]
    assert options.keywords()["split_mode"] == 1
    assert options.attributes()["split_mode"] == "layer"
    again = OpenOptions(**pickle.loads(pickle.dumps(options.keywords())))
    assert again.keywords() == options.keywords()


def test_every_keyword_is_told_of() -> None:
    assert OpenOptions.__doc__ is not None
    assert Llama.__doc__ is not None
    head, _, _ = inspect.cleandoc(OpenOptions.__doc__).partition("Raises:")
    for keyword in KEYWORDS:
        assert re.search(rf"^    [\w, ]*\b{keyword}\b[\w, ]*:", head, re.MULTILINE), keyword
    assert head[head.index("Args:") :].strip() in Llama.__doc__
