"""Log-probabilities under speculation are those of the model reading the same text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyllama_spec import ArgumentError, PromptLookup
from pyllama_spec.engine import Batch, Context, Model
from tests.faces.tools import GREEDY, PROMPT, SAMPLED, drafters, lasting, open_tiny
from tests.models import model_path
from tests.oracles import prompt_tokens
from tests.parity.test_prefix_reuse import count_decoded

N = len(PROMPT)


def teacher_forced(tokens: list[int], kind: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Log p(. | tokens before) of each position, one token at a time.  shape: [n, n_vocab]."""
    rows = []
    with (
        Model(model_path(kind)) as model,
        Context(model, n_ctx=256, n_threads=1, flash_attn=False) as context,
    ):
        batch = Batch(1)
        for at, token in enumerate(tokens):
            batch.clear()
            batch.add(token, at, output=True)
            context.decode(batch)
            row = np.array(context.logits(0), dtype=np.float64)
            rows.append(row - row.max() - np.log(np.exp(row - row.max()).sum()))
    return np.array(rows)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_equal_the_teacher_forced_ones(kind: str, options: dict[str, Any]) -> None:
    with open_tiny(kind=kind) as llm:
        generation = llm.generate_steps(PROMPT, max_tokens=30, **options)
        list(generation)
    tokens = generation.record.tokens
    wanted = teacher_forced([*PROMPT, *tokens], kind)[N - 1 : -1]
    for draft in [*drafters([*PROMPT, *tokens]), PromptLookup()]:
        with open_tiny(draft, kind) as llm:
            generation = llm.generate_steps(PROMPT, max_tokens=30, logprobs=5, **options)
            list(generation)
        entries = generation.record.logprobs
        assert [entry.token for entry in entries] == tokens
        for row, entry in zip(wanted, entries, strict=True):
            assert entry.logprob == pytest.approx(row[entry.token], abs=1e-4)
            best = sorted(range(len(row)), key=lambda i: (-row[i], i))[:5]
            assert [i for i, _ in entry.top] == best
            assert [x for _, x in entry.top] == pytest.approx(row[best], abs=1e-4)


def test_shapes_of_completion_and_chat() -> None:
    with open_tiny(PromptLookup()) as llm:
        response = llm(PROMPT, max_tokens=6, logprobs=3, **GREEDY)
        found = response["choices"][0]["logprobs"]
        assert set(found) == {"tokens", "text_offset", "token_logprobs", "top_logprobs"}
        assert all(len(values) == 6 for values in found.values())
        for text, value, top in zip(
            found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
        ):
            assert top[text] == value
        messages = [{"role": "user", "content": "the"}]
        response = llm.create_chat_completion(
            messages, max_tokens=6, logprobs=True, top_logprobs=2, **GREEDY
        )
        content = response["choices"][0]["logprobs"]["content"]
        assert len(content) == 6
        for entry in content:
            assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
            assert len(entry["top_logprobs"]) == 2
            assert entry["top_logprobs"][0]["logprob"] == entry["logprob"], "greedy"
        plain = llm.create_chat_completion(messages, max_tokens=2, **GREEDY)
        assert plain["choices"][0]["logprobs"] is None
        # As in llama-cpp-python: a number of alternatives alone asks for nothing.
        alone = llm.create_chat_completion(messages, max_tokens=2, top_logprobs=2, **GREEDY)
        assert alone["choices"] == plain["choices"]
        with pytest.raises(ArgumentError):
            llm.create_chat_completion(messages, top_logprobs=-1)
        with pytest.raises(ArgumentError):
            llm.create_chat_completion(messages, logprobs=2)


@pytest.mark.parametrize("n_draft", [None, 8, 31])
@pytest.mark.parametrize("n_parallel", [1, 3])
def test_those_of_a_prompt_do_not_depend_on_the_draft(n_draft: int | None, n_parallel: int) -> None:
    """The batches stay narrow although three requests with drafts of 31 have room for 96 rows."""
    prompt = prompt_tokens(90)
    with open_tiny() as llm:
        expected = llm(prompt, echo=True, logprobs=2, max_tokens=4, **GREEDY)
    draft = None if n_draft is None else PromptLookup(n_draft)
    with open_tiny(draft, n_draft=n_draft, n_parallel=n_parallel) as llm:
        sizes = count_decoded(llm._runtime.context)
        found = llm(prompt, echo=True, logprobs=2, max_tokens=4, **GREEDY)
    assert lasting(found) == lasting(expected)
    assert max(sizes) <= 32, "wider rows are not promised to be those of single tokens"
