"""eval, sample, generate, scores, states and caches, as in llama-cpp-python."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec import Llama, PromptLookup, UnsupportedError
from tests.faces.tools import GREEDY, PROMPT, drafters, open_tiny, text_of

KINDS = ("llama", "mamba2", "lfm2")


def taken(llm: Llama, tokens: list[int], n: int = 4, **options: Any) -> list[int]:
    return list(itertools.islice(llm.generate(tokens, temp=0.0, **options), n))


@pytest.mark.parametrize("kind", KINDS)
def test_eval_and_sample_give_what_generate_gives(kind: str) -> None:
    with open_tiny(kind=kind) as llm:
        expected = taken(llm, PROMPT)
        llm.reset()
        found: list[int] = []
        llm.eval(PROMPT[:5])
        llm.eval(PROMPT[5:])
        for _ in expected:
            found.append(llm.sample(temp=0.0))
            llm.eval(found[-1:])
        assert found == expected
        assert llm.n_tokens == len(PROMPT) + len(found)
        assert llm.input_ids[: llm.n_tokens].tolist() == [*PROMPT, *found]
        assert list(llm.eval_tokens) == [*PROMPT, *found]


@pytest.mark.parametrize("logits_all", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_sample_goes_by_what_the_memory_holds(kind: str, logits_all: bool) -> None:
    """A state, a request or a rollback since the last eval() counts."""
    with open_tiny(kind=kind, logits_all=logits_all) as llm, open_tiny(kind=kind) as other:
        expected = taken(llm, PROMPT, 6)
        llm.reset()
        llm.eval(PROMPT)
        state = llm.save_state()
        llm.reset()
        llm.eval([97, 98])
        llm.n_tokens = 1
        for one in (llm, other):
            one.load_state(state)
            assert one.n_tokens == len(PROMPT)
            assert one.sample(temp=0.0) == expected[0]
            assert one.n_tokens == len(PROMPT)
            one.eval([])
            one.eval(expected[:2])
            assert one.sample(temp=0.0) == expected[2]
            one.n_tokens -= 1
            assert one.sample(temp=0.0) == expected[1]
        llm.reset()
        llm.eval([])
        llm.eval([97, 98])
        llm(PROMPT, max_tokens=3, **GREEDY)
        assert llm.sample(temp=0.0) == expected[llm.n_tokens - len(PROMPT)]
        generated = llm.generate(PROMPT, temp=0.0)
        assert [next(generated), next(generated)] == expected[:2]
        generated.close()
        assert llm.sample(temp=0.0) == expected[llm.n_tokens - len(PROMPT)]


def test_generate_ends_with_the_token_that_ends_a_text() -> None:
    with open_tiny() as llm:
        eos = llm.token_eos()
        assert list(llm.generate(PROMPT, temp=0.0, grammar='root ::= "ab"')) == [97, 98, eos]
        generator = llm.generate(PROMPT, temp=0.0)
        next(generator)
        with pytest.raises(UnsupportedError):
            generator.send([3])


def _held(llm: Llama) -> tuple[int, list[int], int]:
    """How much text there is, which, and what would follow a token more."""
    n, ids = llm.n_tokens, llm.input_ids[: llm.n_tokens].tolist()
    llm.eval([97])
    return n, ids, llm.sample(temp=0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_leads_no_text_behind_a_reader_into_the_memory(kind: str) -> None:
    def left(llm: Llama, n: int) -> tuple[int, list[int], int]:
        generated = llm.generate(PROMPT, temp=0.0)
        for _ in range(n):
            next(generated)
        generated.close()
        return _held(llm)

    with open_tiny(kind=kind) as plain:
        tokens = taken(plain, PROMPT, 24)
        expected = [left(plain, n) for n in range(1, 12)]
        assert [n for n, _, _ in expected] == [len(PROMPT) + n for n in range(11)]
    for draft in drafters([*PROMPT, *tokens]):
        with open_tiny(draft, kind=kind) as llm:
            assert [left(llm, n) for n in range(1, 12)] == expected


def test_echo_with_logprobs() -> None:
    with open_tiny(logits_all=True) as llm, open_tiny() as narrow:
        found = llm("the cat", max_tokens=3, echo=True, logprobs=2, **GREEDY)["choices"][0]
        assert (
            narrow("the cat", max_tokens=3, echo=True, logprobs=2, **GREEDY)["choices"][0] == found
        )
        rows = found["logprobs"]
        assert "".join(rows["tokens"]) == found["text"]
        chunks = llm("the cat", max_tokens=3, echo=True, logprobs=2, stream=True, **GREEDY)
        parts = [choice for chunk in chunks for choice in chunk["choices"]]
        for name in ("tokens", "token_logprobs", "top_logprobs"):
            assert [x for one in parts for x in (one["logprobs"] or {name: []})[name]] == rows[name]
        assert parts[0]["text"] == "the cat"
        assert "".join(parts[0]["logprobs"]["tokens"]) == "the cat"
        ends = list(itertools.accumulate(map(len, rows["tokens"])))
        assert rows["text_offset"] == [0, *ends[:-1]]
        assert rows["token_logprobs"][0] is None
        llm.reset()
        ids = llm.tokenize("the cat")
        llm.eval(ids)
        row = llm.logits_to_logprobs(llm.scores[len(ids) - 2])
        at = rows["text_offset"].index(len("the cat")) - 1
        assert rows["token_logprobs"][at] == pytest.approx(row[ids[-1]], abs=1e-5)


def _rows_of(kind: str, tokens: list[int]) -> npt.NDArray[np.float32]:
    """The expected scores after these tokens, whatever call decoded them."""
    with open_tiny(kind=kind, logits_all=True) as fresh:
        fresh.eval(tokens)
        return np.array(fresh.scores[: len(tokens)])


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_text_in_memory(kind: str) -> None:
    """Also after requests, which compute no rows, and after eval(), which leaves some rows."""

    def check(llm: Llama, first: int = 0) -> None:
        n = llm.n_tokens
        rows = _rows_of(kind, llm.input_ids[:n].tolist())[first:]
        for _ in range(2):
            assert np.allclose(llm.scores[first:n], rows, atol=1e-4)
            assert np.allclose(list(llm.eval_logits), rows, atol=1e-4)
            assert llm.n_tokens == n
        if first:
            assert not llm.scores[:first].any()

    for draft in (None, PromptLookup(max_ngram=2, min_ngram=1)):
        with open_tiny(draft, kind=kind, logits_all=True) as llm:
            llm.eval([120] * 30)
            llm.reset()
            for prompt in ([97] * 12, [98, 99, 97, 98], [97] * 12):
                text = text_of(llm(prompt, max_tokens=8, **GREEDY))
                check(llm)
                assert text_of(llm(prompt, max_tokens=8, **GREEDY)) == text
            state = llm.save_state()
            taken(llm, PROMPT, 5)
            check(llm)
            llm.load_state(state)
            check(llm)
            llm.n_tokens -= 3
            check(llm)
            llm.eval([100])
            check(llm)
    with open_tiny(kind=kind) as llm:
        llm.eval([120] * 9)
        llm.reset()
        llm([97] * 12, max_tokens=8, **GREEDY)
        check(llm, llm.n_tokens - 1)
