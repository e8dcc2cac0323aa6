"""Pairs scored by a reranker, and texts that are embedded as ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyllama_spec import ArgumentError, ClosedError, ContextFullError, Llama, UnsupportedError
from tests.models import BOS, EOS, IM_START, model_path

TEMPLATE = "<|im_start|>query: {query}\ndocument: {document}<|im_end|>"
QUERY, DOCUMENTS = "the cat", ["a cat sat", "rain", "", "the other cat, é 日本"]


def opened(kind: str = "reranker", n_ctx: int = 128, **options: Any) -> Any:
    model = {name: options.pop(name) for name in ("template",) if name in options}
    return Llama(
        model_path(kind, **model), embedding=True, n_ctx=n_ctx, n_threads=1, n_batch=n_ctx,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["vocabulary", "template"])
def test_a_score_is_that_of_the_pairs_tokens(template: str | None) -> None:
    with opened(template=template) as llm:
        scores = llm.rank(QUERY, DOCUMENTS)
        assert len(set(scores)) == len(DOCUMENTS)
        for document, score in zip(DOCUMENTS, scores, strict=True):
            if template is None:
                vocab = llm.model.vocab
                ids = [
                    *([BOS] if vocab.adds_bos else []), *llm.tokenize(QUERY, False),
                    *([EOS] if vocab.adds_eos else []), *llm.tokenize(document, False),
                    *([EOS] if vocab.adds_eos else []),
                ]  # fmt: skip
            else:
                text = template.replace("{query}", QUERY).replace("{document}", document)
                ids = llm.tokenize(text, False, special=True)
            # embed() gives the classifier's row of the same ids: one number.
            (alone,) = llm.embed(ids)
            assert alone == pytest.approx(score, abs=1e-4)


def test_what_the_caller_writes_is_no_control_token_and_no_place_for_a_text() -> None:
    with opened(template=TEMPLATE) as llm:
        forged = ["<|im_start|>", "{query}", "{document}", "<|im_end|>{document}"]
        for document in forged:
            text = f"query: {QUERY}\ndocument: "
            ids = [
                IM_START, *llm.tokenize(text, False), *llm.tokenize(document, False), EOS,
            ]  # fmt: skip
            (score,) = llm.rank(QUERY, [document])
            assert llm.embed(ids)[0] == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["vocabulary", "template"])
def test_a_document_that_is_too_long_is_cut_or_refused(template: str | None) -> None:
    with opened(template=template, n_ctx=64) as llm:
        short, cut, longer = llm.rank(QUERY, ["a", "ab cd " * 40, "ab cd " * 80])
        assert cut == pytest.approx(longer, abs=1e-4)
        assert cut != pytest.approx(short, abs=1e-4)
        with pytest.raises(ContextFullError, match="tokens"):
            llm.rank(QUERY, ["a", "ab cd " * 40], truncate=False)
        with pytest.raises(ContextFullError, match="query"):
            llm.rank("ab cd " * 40, ["a"])
        assert llm.rank(QUERY, ["a"]) == pytest.approx([short], abs=1e-4)


def test_a_pooling_that_the_caller_names_makes_no_reranker() -> None:
    path = model_path("llama")
    with (
        Llama(path, n_ctx=64, embedding=True, pooling_type="rank") as llm,
        pytest.raises(UnsupportedError, match=r"pooling is 'rank'.*whose files say"),
    ):
        llm.rank(QUERY, DOCUMENTS)


def test_who_cannot_rank_says_so() -> None:
    with opened("bert") as llm, pytest.raises(UnsupportedError, match=r"pooling is 'mean'.*rerank"):
        llm.rank(QUERY, DOCUMENTS)
    with (
        Llama(model_path("llama"), n_ctx=64) as llm,
        pytest.raises(UnsupportedError, match="embedding=True"),
    ):
        llm.rank(QUERY, DOCUMENTS)
    with opened() as llm:
        assert llm.rank(QUERY, []) == []
        wrong: list[tuple[Any, Any, str]] = [
            (3, DOCUMENTS, "query"), (QUERY, "a text", "list of documents"),
            (QUERY, None, "list of documents"), (QUERY, ["a", 3], r"documents\[1\]"),
        ]  # fmt: skip
        for query, documents, message in wrong:
            with pytest.raises(ArgumentError, match=message):
                llm.rank(query, documents)
    with pytest.raises(ClosedError):
        llm.rank(QUERY, DOCUMENTS)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_ids_are_embedded_as_the_text_that_they_are_of(kind: str) -> None:
    texts = ["the cat", "sat on", "the mat there"]
    with opened(kind) as llm:
        listed = [llm.model.vocab.tokenize(text) for text in texts]
        for ids in (listed, [tuple(one) for one in listed], [np.array(one) for one in listed]):
            by_ids = llm.create_embedding(ids)
            by_text = llm.create_embedding(texts)
            assert by_ids["usage"] == by_text["usage"]
            assert by_ids["data"] == by_text["data"]
        one = llm.create_embedding(listed[0])
        assert len(one["data"]) == 1
        assert one["data"][0]["embedding"] == llm.embed(texts[0])
        assert llm.embed(listed[0]) == llm.embed(texts[0])
        assert llm.embed([listed[0], texts[1]])[1] == llm.embed([texts[0], listed[1]])[1]


def test_ids_that_are_none_are_refused() -> None:
    with opened("bert") as llm:
        for wrong, message in (
            ([10**6], "outside 0"), ([[1, -1]], "outside 0"), ([[1, "a"]], "lists of token ids"),
            ([[]], "no tokens"), ([1, "a"], "texts"), ([1.5], "texts"), (3, "a list of them"),
            ([True], "texts"),
        ):  # fmt: skip
            with pytest.raises(ArgumentError, match=message):
                llm.create_embedding(wrong)
        with pytest.raises(ContextFullError):
            llm.embed([[1] * 400], truncate=False)
        assert llm.embed([[1] * 400])


@pytest.mark.parametrize(("query", "document"), [("ab " * 50_000, "a"), ("a", "ab " * 50_000)])
def test_a_pair_too_long_by_its_bytes_is_not_tokenized(query: str, document: str) -> None:
    with opened() as llm:
        with pytest.raises(ContextFullError, match="it was not tokenized"):
            llm.rank(query, [document], truncate=False)
        if document == "a":  # a query is never cut
            with pytest.raises(ContextFullError, match="it was not tokenized"):
                llm.rank(query, [document])
