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
        model_path(kind, **model), n_ctx=n_ctx, n_threads=1, n_batch=n_ctx,
        **{"embedding": True, **options},
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
        for n in (40, 20_000):  # the longer ones are refused before they are tokenized
            with pytest.raises(ContextFullError):
                llm.rank(QUERY, ["a", "ab cd " * n], truncate=False)
            with pytest.raises(ContextFullError):  # a query is never cut
                llm.rank("ab cd " * n, ["a"])
        assert llm.rank(QUERY, ["a"]) == pytest.approx([short], abs=1e-4)


def test_who_cannot_rank_says_so() -> None:
    for kind, options in (
        ("bert", {}), ("llama", {"embedding": False}), ("llama", {"pooling_type": "rank"}),
    ):  # fmt: skip
        with opened(kind, **options) as llm, pytest.raises(UnsupportedError):
            llm.rank(QUERY, DOCUMENTS)
    with opened() as llm:
        assert llm.rank(QUERY, []) == []
        with pytest.raises(ArgumentError):
            llm.rank(QUERY, "a text")
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
