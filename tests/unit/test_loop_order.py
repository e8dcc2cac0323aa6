"""The loop says so when its steps are called in the wrong order."""

from __future__ import annotations

import pytest

from pyllama_spec.drafters import NoDrafter
from pyllama_spec.engine import Context, Model, Sampler, SamplerParams
from pyllama_spec.engine.errors import ArgumentError
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.models import model_path


@pytest.fixture
def loop() -> SpeculativeLoop:
    context = Context(Model(model_path("llama")), n_ctx=128, n_seq_max=2, n_threads=1)
    return SpeculativeLoop(context, NoDrafter())


def greedy(loop: SpeculativeLoop) -> Sampler:
    return Sampler(loop.target.model, SamplerParams(temperature=0))


def test_generate_wants_the_sequence_that_was_prefilled_last(loop: SpeculativeLoop) -> None:
    first, second = SequenceState(0), SequenceState(1)
    loop.prefill(first, [1, 2, 3])
    loop.prefill(second, [4, 5, 6])
    with pytest.raises(ArgumentError, match="prefill"):
        next(loop.generate(first, greedy(loop), 4))
    assert len(list(loop.generate(second, greedy(loop), 4))) == 4


def test_generate_wants_a_prompt_each_time(loop: SpeculativeLoop) -> None:
    seq = SequenceState()
    with pytest.raises(ArgumentError, match="prefill"):
        next(loop.generate(seq, greedy(loop), 4))
    loop.prefill(seq, [1, 2, 3])
    list(loop.generate(seq, greedy(loop), 2))
    with pytest.raises(ArgumentError, match="prefill"):
        next(loop.generate(seq, greedy(loop), 2))


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_generate_wants_room_for_a_token(loop: SpeculativeLoop, max_tokens: int) -> None:
    seq = SequenceState()
    loop.prefill(seq, [1, 2, 3])
    with pytest.raises(ArgumentError, match=str(max_tokens)):
        next(loop.generate(seq, greedy(loop), max_tokens))
