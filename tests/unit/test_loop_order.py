"""The loop raises an error if its steps are called in the wrong order."""

from __future__ import annotations

import pytest

from pyllama_spec.drafters import NoDrafter
from pyllama_spec.engine import Context, Model, Sampler, SamplerParams
from pyllama_spec.errors import ArgumentError
from pyllama_spec.speculative import Round, SequenceRun, SequenceState, SpeculativeLoop
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
    with pytest.raises(ArgumentError):
        next(loop.generate(first, greedy(loop), 4))
    assert len(list(loop.generate(second, greedy(loop), 4))) == 4


def test_a_round_wants_runs_that_have_something_to_compute(loop: SpeculativeLoop) -> None:
    round_: Round = loop.round
    run = SequenceRun(SequenceState(1), [1, 2, 3])
    with pytest.raises(ArgumentError):
        round_.step([run])
    round_.begin(run)
    assert round_.step([run]) == []
    # Its prompt is read; another step would read the last token once more.
    run.sampler, run.max_tokens = greedy(loop), 3
    with pytest.raises(ArgumentError):
        round_.step([run])
    tokens = list(round_.draw_first(run).tokens)
    with pytest.raises(ArgumentError):
        round_.draw_first(run)
    while not run.is_over:
        tokens += [token for _, step in round_.step([run]) for token in step.tokens]
    with pytest.raises(ArgumentError):
        round_.step([run])
    first = SequenceState(0)
    loop.prefill(first, [1, 2, 3])
    steps = list(loop.generate(first, greedy(loop), 3))
    assert [token for step in steps for token in step.tokens] == tokens


def test_a_first_token_is_drawn_from_the_last_batch_alone(loop: SpeculativeLoop) -> None:
    round_, runs = loop.round, [SequenceRun(SequenceState(i), [1, 2, 3 + i]) for i in range(2)]
    for run in runs:
        round_.begin(run)
        round_.step([run])
        run.sampler = greedy(loop)
    assert [run.ready_row is None for run in runs] == [True, False]
    with pytest.raises(ArgumentError):
        round_.draw_first(runs[0])
    assert len(round_.draw_first(runs[1]).tokens) == 1
    assert runs[1].ready_row is None


def test_a_sequence_takes_part_once(loop: SpeculativeLoop) -> None:
    round_, state = loop.round, SequenceState()
    runs = [SequenceRun(state, [1, 2, 3], greedy(loop), 4) for _ in range(2)]
    round_.begin(runs[0])
    for twice in ([runs[0], runs[0]], runs):
        with pytest.raises(ArgumentError):
            round_.step(twice)
    assert state.n_decoded == 0
