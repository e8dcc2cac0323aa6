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


@pytest.mark.parametrize(
    "call",
    [
        lambda: HeadConfig(target_layers=LONG),
        lambda: RequestOptions(stop_token_ids=LONG),
        lambda: RequestOptions(bad_words=LONG),
        lambda: RequestOptions(stop=LONG),
        lambda: RequestOptions(dry_breakers=LONG),
        lambda: RequestOptions(logits_processor=LONG),
        lambda: Llama(model_path("llama"), tensor_split=LONG),
        lambda: Llama(model_path("llama"), devices=LONG),
        lambda: Llama(model_path("llama"), rpc_servers=LONG),
        lambda: open_tiny(ManyLayers([1], 2)),
        lambda: Batch(4).add(1, 0, LONG),
    ],
)
def test_a_list_of_any_length_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError):
        call()


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
