"""Findings of the probe beside llama-cpp-python (tools/comparison), each on a toy."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec import Llama, ModelLoadError
from pyllama_spec.llama_cpp import LlamaGrammar, llama_grammar
from tests.faces.tools import GREEDY, PROMPT, open_tiny, text_of
from tests.models import model_path
from tests.models.adapter import write_adapter

USER = [{"role": "user", "content": "Hi"}]
TWO: dict[str, Any] = {
    "type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
}  # fmt: skip


def test_a_pickle_opens_the_same_again() -> None:
    with open_tiny("prompt-lookup", n_ctx=128, last_n_tokens_size=7) as llm:
        expected = text_of(llm(PROMPT, max_tokens=8, **GREEDY))
        kept = pickle.dumps(llm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = pickle.loads(kept)
    with again:
        assert again.n_ctx() == 128
        assert again.last_n_tokens_size == 7
        found = again(PROMPT, max_tokens=8, **GREEDY)
        assert text_of(found) == expected
        assert found["speculation"]["drafter"] == "prompt-lookup"


class Named(Llama):
    """A subclass with a signature of its own."""

    def __init__(self, name: str, *, n_ctx: int) -> None:
        self.name = name
        super().__init__(model_path=model_path("llama"), n_ctx=n_ctx, n_threads=1)
        self.notes = [name]


def test_a_pickle_of_a_subclass_has_its_attributes() -> None:
    with Named("first", n_ctx=128) as llm:
        llm.notes.append("more")
        kept = pickle.dumps(llm)
    with pickle.loads(kept) as again:
        assert type(again) is Named
        assert (again.name, again.notes, again.n_ctx()) == ("first", ["first", "more"], 128)
        again(PROMPT, max_tokens=4, **GREEDY)


def test_offsets_of_a_text_begin_behind_its_prompt() -> None:
    text = "the cat"
    with open_tiny() as llm:
        whole = llm(text, max_tokens=4, logprobs=1, **GREEDY)["choices"][0]["logprobs"]
        assert whole["text_offset"][0] == len(text)
        ids = llm(llm.tokenize(text.encode()), max_tokens=4, logprobs=1, **GREEDY)
        assert ids["choices"][0]["logprobs"]["text_offset"] == whole["text_offset"]
        pieces = [
            chunk["choices"][0]["logprobs"]
            for chunk in llm(text, max_tokens=4, logprobs=1, stream=True, **GREEDY)
        ]
        streamed = [at for piece in pieces if piece for at in piece["text_offset"]]
        assert streamed == whole["text_offset"]


def test_white_space_of_a_schema_is_a_blank_at_most() -> None:
    """Lines and indents cost a round each, so the answer has none."""
    form = {"type": "json_object", "schema": TWO}
    with open_tiny(n_ctx=1024) as llm:
        for seed in range(5):
            options: dict[str, Any] = {"seed": seed, "temperature": 1.0, "max_tokens": 200}
            found = llm.create_chat_completion(USER, response_format=form, **options)
            text = found["choices"][0]["message"]["content"]
            assert set(json.loads(text)) == {"a", "b"}
            assert "\n" not in text
            assert "  " not in text
            assert "\t" not in text


@pytest.mark.parametrize(
    ("name", "begins"), [("JSON_ARR_GBNF", "["), ("JSON_GBNF", "{"), ("LIST_GBNF", "- ")]
)
def test_grammars_by_name(name: str, begins: str) -> None:
    grammar = LlamaGrammar.from_string(getattr(llama_grammar, name))
    with open_tiny() as llm:
        assert text_of(llm(PROMPT, max_tokens=12, grammar=grammar, seed=1)).startswith(begins)


def test_an_adapter_counts_by_its_scale(tmp_path: Path) -> None:
    adapter = write_adapter(model_path("llama"), tmp_path / "adapter.gguf")

    def logits(**keywords: Any) -> Any:
        with open_tiny(logits_all=True, **keywords) as llm:
            llm.eval(PROMPT)
            return np.array(llm.scores[len(PROMPT) - 1])

    plain, whole = logits(), logits(lora_path=adapter)
    half, none = logits(lora_path=adapter, lora_scale=0.5), logits(lora_path=adapter, lora_scale=0)
    assert np.array_equal(none, plain)
    assert np.abs(whole - plain).max() > 0.01
    assert np.abs(half - whole).max() > 0.001
    with open_tiny(logits_all=True) as llm:
        llm.set_adapters([(adapter, 0.25), (adapter, 0.25)])
        llm.eval(PROMPT)
        assert np.allclose(llm.scores[len(PROMPT) - 1], half, atol=1e-4)
        llm.set_adapters(())
        llm.eval(PROMPT)
        assert np.array_equal(llm.scores[len(PROMPT) - 1], plain)
    with pytest.raises(ModelLoadError, match="does not exist"):
        open_tiny(lora_path=tmp_path / "no.gguf")


def test_a_state_says_what_it_holds() -> None:
    with open_tiny() as llm:
        llm.eval(PROMPT)
        state = llm.save_state()
        assert state.input_ids.dtype == np.intc
        assert state.input_ids.tolist() == PROMPT
        assert isinstance(state.llama_state, bytes)
        assert 0 < len(state.llama_state) <= state.llama_state_size
