"""Very long lists are refused before they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyllama_spec import ArgumentError, ContextFullError, Llama
from pyllama_spec.engine import Batch
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.train import HeadConfig
from tests.faces.tools import open_tiny
from tests.models import model_path
from tests.scripted import Perfect

# A list of it would take terabytes.
LONG: Any = range(10**12)


class ManyLayers(Perfect):
    """Reads more layers than there are."""

    target_layers: Any = LONG


class NoLayers(Perfect):
    """Has no list of layers."""

    target_layers: Any = 3


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: HeadConfig(target_layers=LONG), "target_layers=range(0, 1000000000000) has more"),
        (lambda: RequestOptions(stop_token_ids=LONG), "stop_token_ids=range"),
        (lambda: RequestOptions(bad_words=LONG), "bad_words=range"),
        (lambda: RequestOptions(stop=LONG), "stop=range"),
        (lambda: RequestOptions(dry_breakers=LONG), "dry_breakers=range"),
        (lambda: RequestOptions(logits_processor=LONG), "logits_processor=range"),
        (lambda: Llama(model_path("llama"), tensor_split=LONG), "tensor_split=range"),
        (lambda: Llama(model_path("llama"), devices=LONG), "devices"),
        (lambda: Llama(model_path("llama"), rpc_servers=LONG), "rpc_servers"),
        (lambda: open_tiny(ManyLayers([1], 2)), "target_layers=range(0, 1000000000000) has more"),
        (
            lambda: open_tiny(NoLayers([1], 2)),
            "the drafter NoLayers cannot be used: target_layers=3 is not a tuple",
        ),
        (lambda: Batch(4).add(1, 0, LONG), "seq=range"),
    ],
)
def test_a_list_of_any_length_is_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ArgumentError) as error:
        call()
    assert said in str(error.value)


def test_ids_of_any_number_are_refused() -> None:
    with open_tiny(embedding=True, pooling_type="mean") as llm:
        vocab = llm.model.vocab
        calls: list[Callable[[], object]] = [
            lambda: llm.create_completion(LONG),
            lambda: next(iter(llm.generate_steps(LONG))),
            lambda: next(llm.generate(LONG)),
            lambda: llm.embed(LONG, truncate=False),
        ]
        for call in calls:
            with pytest.raises(ContextFullError):
                call()
        for call in (lambda: vocab.detokenize(LONG), lambda: llm.eval(LONG)):
            with pytest.raises((ArgumentError, ContextFullError)):
                call()
