"""The benchmark's arithmetic, on made-up records."""

from __future__ import annotations

from typing import Any

import pytest

from pyllama_spec.bench import to_json
from pyllama_spec.bench.figures import (
    Pair,
    acceptance_by_depth,
    compare,
    repeats_of,
    total,
)
from pyllama_spec.bench.report import notes
from tests.bench.tools import made_up_result, made_up_run, one_prompt


def pair(n: int, plain_s: float, spec_s: float) -> Pair:
    """Both sides decoded n tokens; the speculative one in rounds of two."""
    return Pair(made_up_run([(0, 0)] * n, plain_s), made_up_run([(1, 1)] * (n // 2), spec_s))


def test_rates_are_total_tokens_over_total_seconds() -> None:
    # 10 tokens in 1 s and 90 in 3 s: 25 per second, where the mean of the rates would say 20.
    totals = total([made_up_run([(0, 0)] * 10, 1.0), made_up_run([(0, 0)] * 90, 3.0)])
    assert totals.n_tokens == 100
    assert totals.tps == 25.0
    # The two first tokens and the prompts' seconds come in here.
    assert totals.end_to_end_tps == 102 / 5.0


def test_the_speed_by_processor_time_is_of_the_rounds_alone() -> None:
    plain = made_up_run([(0, 0)] * 8, 9.0, cpu_s=5.0, rounds_cpu_s=4.0)
    spec = made_up_run([(1, 1)] * 4, 1.0, cpu_s=3.0, rounds_cpu_s=1.0)
    both = compare([Pair(plain, spec), Pair(plain, spec)])
    assert both.cpu_speedup == 4.0
    assert to_json(made_up_result([one_prompt(Pair(plain, spec))]))["summary"]["cpu_speedup"] == 4.0
    assert compare([Pair(made_up_run([], 0.0), spec)]).cpu_speedup is None


def test_spread_of_a_prompt_and_of_the_repeats() -> None:
    first = one_prompt(pair(10, 1.0, 0.5), pair(10, 1.0, 1.0), pair(10, 1.0, 0.25), name="a")
    second = one_prompt(pair(30, 3.0, 3.0), pair(30, 3.0, 1.0), name="b")
    speedups = first.speedups
    assert speedups is not None
    assert (speedups.median, speedups.min, speedups.max) == (2.0, 1.0, 4.0)
    # The third repeat was interrupted: it has no second prompt, and is not a summary.
    repeats = repeats_of([first, second])
    assert [one.speedup for one in repeats] == [pytest.approx(4 / 3.5), pytest.approx(2.0)]
    assert repeats_of([]) == []


def test_acceptance_by_depth_given_that_it_was_reached() -> None:
    rounds = [(3, 3), (3, 1), (3, 1), (3, 0), (2, 2), (1, 0), (0, 0)]
    depths = acceptance_by_depth([made_up_run(rounds, 1.0)])
    assert [d.depth for d in depths] == [1, 2, 3]
    assert [d.drafted for d in depths] == [6, 5, 4]
    # A draft of two that is accepted whole reaches no third depth.
    assert [d.reached for d in depths] == [6, 4, 1]
    assert [d.accepted for d in depths] == [4, 2, 1]
    assert [d.rate for d in depths] == [4 / 6, 2 / 4, 1.0]
    assert [d.rate_of_drafted for d in depths] == [4 / 6, 2 / 5, 1 / 4]


def test_the_round_that_an_end_token_cuts_has_no_verdict() -> None:
    depths = acceptance_by_depth([made_up_run([(2, 1), (2, 0)], 1.0, is_stopped=True)])
    assert [(d.drafted, d.reached, d.accepted) for d in depths] == [(1, 1, 1), (1, 1, 0)]
    unreached = acceptance_by_depth([made_up_run([(2, 0)], 1.0)])[1]
    assert unreached.rate is None
    assert unreached.rate_of_drafted == 0.0


def test_what_became_of_the_drafter_is_said() -> None:
    """Disabled, idle or used, with the texts in which it was; "disabled" in one repeat wins."""
    off: dict[str, Any] = {"reason_off_error": ValueError(), "reason_off": "it does not pay"}
    runs = [
        made_up_run([(1, 1)] * 6, 1.0, drafter="d", **off),
        made_up_run([(1, 1)] * 6, 1.0, drafter="d", **off),
        made_up_run([(1, 1)] * 6, 1.0, drafter="d", asked=6, proposed=6),
        made_up_run([(0, 0)] * 12, 1.0, drafter="d", asked=6),
        made_up_run([(1, 1)] * 6, 1.0, drafter="d", asked=6),
    ]
    plain = made_up_run([(0, 0)] * 12, 2.0)
    prompts = [one_prompt(Pair(plain, run), name=f"p{i}") for i, run in enumerate(runs)]
    result = made_up_result(prompts)
    said = [note for note in notes(result) if "drafter" in note]
    assert [note.partition("(")[2].partition(")")[0] for note in said] == ["p0, p1", "p3"]
    assert "it does not pay" in said[0]
    states = [line["state"] for line in to_json(result)["prompts"]]
    assert states == ["disabled", "disabled", "used", "idle", "used"]
    both = made_up_result([one_prompt(Pair(plain, runs[2]), Pair(plain, runs[0]))])
    assert to_json(both)["prompts"][0]["state"] == "disabled"
