"""The profit controller on simulated machines: never slower, and near the optimum."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import pytest

from pyllama_spec.speculative.controller import ProfitController
from tests.controller_world import Costs, Fixed, Place, made_up, oracle, plain, simulate
from tests.tiers import release_except

WORLDS = {
    "dense GPU": Costs(lambda rows, n: 10 + 0.05 * (rows - 1) + 1e-4 * n, lambda k: 0.4 * k),
    "experts": Costs(lambda rows, n: 10 * (1 + 0.22 * (rows - 1)), lambda k: 0.4 * k),
    "hybrid": Costs(lambda rows, n: 10 * (1 + 0.1 * (rows - 1)), lambda k: 0.4 * k),
    "CPU": Costs(lambda rows, n: 4 * (1 + 0.22 * (rows - 1)) + 0.04 * rows**2, lambda k: 0.5 * k),
    "network": Costs(lambda rows, n: 60 + 2 * rows, lambda k: 1.0 * k),
}
RATES = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95]
CASES = [(world, rate) for world in WORLDS for rate in RATES]
LENGTHS = (1, 2, 3, 4, 6, 8)


def texts(
    rate: Callable[[int], float], n: int = 300, count: int = 4, exponent: float = 1.0
) -> list[list[Place]]:
    return [made_up(n, rate, seed, exponent=exponent) for seed in range(count)]


def check(found: float, all_texts: list[list[Place]], costs: Costs, least: float) -> None:
    """Never slower than plain decoding, and near an oracle that knows all probabilities."""
    assert plain(all_texts, costs) / found > 0.97
    assert oracle(all_texts, costs) / found > least


@pytest.mark.parametrize("case", release_except(CASES, [("CPU", 0.0), ("CPU", 0.7)]))
def test_chains(case: tuple[str, float]) -> None:
    world, rate = case
    costs, written = WORLDS[world], texts(lambda at: rate)
    found = simulate(ProfitController(), written, costs).seconds
    check(found, written, costs, 0.92)
    best = min(simulate(Fixed(n), written, costs).seconds for n in LENGTHS)
    # Within 5% of the best fixed length, which nobody knows before; plain decoding is one too.
    assert min(best, plain(written, costs)) / found > 0.95


@pytest.mark.parametrize("n_together", [1, 4])
@pytest.mark.parametrize("world", WORLDS)
def test_what_was_saved_is_known_within_its_error(world: str, n_together: int) -> None:
    costs, written = WORLDS[world], texts(lambda at: 0.7)
    found = simulate(ProfitController(), written, costs, seed=3, n_together=n_together)
    without = simulate(Fixed(0), written, costs, n_together=n_together).seconds
    # Each text waits for the rounds it shares; one sample in a hundred takes three times as long.
    true_s = n_together * (without - found.seconds)
    assert found.saved_s == pytest.approx(
        true_s, abs=2 * found.saved_error_s + 0.03 * n_together * without
    )
    assert found.saved_error_s < 0.35 * n_together * without


def dear(share: float) -> Costs:
    """A small model on a CPU: a drafted token takes that share of a row."""
    return Costs(lambda rows, n: 20 * (1 + 0.0875 * (rows - 1)), lambda k: 20 * share * k)


# Of six, so that one with three hiccups in its first rounds does not decide.
SEEDS = range(6)


@pytest.mark.parametrize("p", [0.6, 0.95], ids=["shy", "sure"])
@pytest.mark.parametrize("share", [0.33, 0.45, 0.6])
def test_a_dear_draft_that_is_always_right_stays(share: float, p: float) -> None:
    """It is recognised within a text of 128 tokens, whatever probabilities it reports."""
    written = [[Place(8, [p] * 8)] * 127]
    best = simulate(Fixed(8), written, dear(share)).seconds
    for said, least in ((share, 0.97), (0.0, 0.94)):  # the price was told before, or was not
        found = [
            simulate(ProfitController(), written, dear(share), seed=seed, step_share=said).seconds
            for seed in SEEDS
        ]
        assert best / median(found) > least


# A target in the shape of Qwen3.5-4B with its head (benchmarks/shapes.py): milliseconds of its
# rows, and how often the head's tokens are right, each given that those before are.
HEAD_ROWS = (309, 345, 411, 498, 580, 660, 740)
HEAD_RATES: tuple[float, ...] = (0.83, 0.78, 0.75, 0.75, 0.75, 0.75)


def drafted_by_head(n: int, seed: int, says: str) -> list[Place]:
    """A text whose drafts say one and the same of each token, nothing, or how likely it is."""
    rng, out = random.Random(seed), []
    for _ in range(n):
        chances = HEAD_RATES
        if says == "honest":
            chances = tuple(rng.betavariate(4 * c, 4 * (1 - c)) for c in chances)
        n_right = next((i for i, c in enumerate(chances) if rng.random() >= c), len(chances))
        p = [min(max(c, 0.01), 0.99) for c in chances]
        if says in ("sure", "shy"):
            p = [{"sure": 0.9, "shy": 0.5}[says]] * len(chances)
        out.append(Place(n_right, p, chances, is_silent=says == "silent"))
    return out


@pytest.mark.parametrize("step_ms", [16, 67], ids=["a part of the ids", "all ids"])
@pytest.mark.parametrize("says", ["sure", "shy", "silent", "honest"])
def test_a_head_is_near_the_best_fixed_length_within_a_text(says: str, step_ms: int) -> None:
    """Over many texts alone, each with a new controller."""
    costs = Costs(lambda rows, n: HEAD_ROWS[rows - 1], lambda k: step_ms * k)
    share = step_ms / HEAD_ROWS[0]
    for n_tokens, least in ((62, 0.93), (128, 0.95)):
        written = [drafted_by_head(n_tokens, seed, says) for seed in range(16)]
        found = sum(
            simulate(ProfitController(), [t], costs, max_draft=6, seed=i, step_share=share).seconds
            for i, t in enumerate(written)
        )
        best = min(simulate(Fixed(n), written, costs, max_draft=6).seconds for n in (1, 2, 3))
        assert best / found > least


# A 0.5B on one core, and its head: milliseconds of 1, 2, 3 ... rows, and of a step.
SMALL_ROWS, SMALL_STEP_MS = (44.8, 44.9, 55.3, 67.3, 83.2, 91.8, 105.1), 3.5


class OpenedInABadMoment(ProfitController):
    """A controller whose target's decodes were timed beside a busy program."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def learn_costs(self, seconds: dict[int, float]) -> None:
        """Slower than they are, from two rows on."""
        super().learn_costs({n: s * (self.factor if n > 1 else 1.0) for n, s in seconds.items()})


@pytest.mark.parametrize(("factor", "least"), [(1.5, 0.95), (2.0, 0.92), (3.0, 0.8)])
def test_a_good_head_survives_an_opening_in_a_bad_moment(factor: float, least: float) -> None:
    """Texts alone. Without verification, neither its cost nor its acceptance would be measured."""
    costs = Costs(lambda rows, n: SMALL_ROWS[rows - 1], lambda k: SMALL_STEP_MS * k)

    share = SMALL_STEP_MS / SMALL_ROWS[0]
    written = [drafted_by_head(128, seed, "honest") for seed in range(12)]

    def taken(made: Callable[[], ProfitController]) -> float:
        return sum(
            simulate(made(), [t], costs, max_draft=6, seed=i, step_share=share).seconds
            for i, t in enumerate(written)
        )

    calm, disturbed = taken(ProfitController), taken(lambda: OpenedInABadMoment(factor))
    assert calm / disturbed > least


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_what_a_draft_takes_is_known_before_the_first(rate: float) -> None:
    """An expensive, wrong draft costs a short text little: only its first token is drafted."""
    for seed in SEEDS:
        written = [made_up(40, lambda at: rate, seed)]
        out = simulate(ProfitController(), written, dear(0.9), seed=seed, step_share=0.9)
        assert plain(written, dear(0.9)) / out.seconds > 0.95


def reads(share: float) -> Costs:
    """The same of a draft that reads a prompt when it is asked first, as fast as rows allow."""
    return replace(dear(share), read=20 * 0.0875 * share)


@pytest.mark.parametrize("n_prompt", [40, 200, 2000])
def test_a_prompt_is_not_read_for_what_cannot_pay(n_prompt: int) -> None:
    """Always right, and nearly as dear as the target: reading the prompts would lose 2% to 90%."""
    written, costs = [[Place(8, [0.95] * 8)] * 127] * 12, reads(0.9)
    for s in SEEDS[:2]:
        out = simulate(
            ProfitController(), written, costs, seed=s, step_share=0.9, n_prompt=n_prompt
        )
        assert plain(written, costs, n_prompt=n_prompt) / out.seconds > 0.97


@pytest.mark.parametrize(("share", "n_prompt"), [(0.15, 200), (0.15, 800), (0.33, 200)])
def test_a_prompt_is_read_at_once_for_what_may_pay(share: float, n_prompt: int) -> None:
    written, costs = [[Place(8, [0.95] * 8)] * 127] * 2, reads(share)
    best = simulate(Fixed(8), written, costs, n_prompt=n_prompt).seconds
    found = [
        simulate(ProfitController(), written, costs, seed=s, step_share=share, n_prompt=n_prompt)
        for s in SEEDS
    ]
    assert best / median(out.seconds for out in found) > 0.95


@pytest.mark.parametrize(
    ("share", "rate", "n_prompt", "n_answer", "least"),
    [
        (0.15, 0.5, 350, 40, 0.95),  # it gains, but less than reading the prompt costs
        (0.15, 0.5, 1000, 250, 0.95),
        (0.35, 0.2, 1000, 1000, 0.95),
        (0.35, 0.7, 350, 250, 0.95),
        (0.35, 0.9, 350, 250, 1.08),  # where it pays it is read early
        (0.15, 0.9, 1000, 250, 1.30),
    ],
)
def test_the_reading_of_prompts_follows_the_texts_before(
    share: float, rate: float, n_prompt: int, n_answer: int, least: float
) -> None:
    """The draft's gain and the lengths of texts decide whether it reads a prompt."""
    costs = Costs(lambda rows, n: 16 + 4 * rows, lambda k: 20 * share * k, read=4 * share)
    n_texts = max(3000 // n_answer, 4)
    for s in SEEDS[:2]:
        text = [made_up(n_answer, lambda at: rate, 100 * s + i) for i in range(n_texts)]
        out = simulate(ProfitController(), text, costs, seed=s, step_share=share, n_prompt=n_prompt)
        assert plain(text, costs, n_prompt=n_prompt) / out.seconds > least


def test_answers_to_prompts_of_like_length_say_how_long_one_gets() -> None:
    """The draft does not read prompts of tools' calls between a chat's answers, which it reads."""
    costs = Costs(lambda rows, n: 16 + 4 * rows, lambda k: 7 * k, read=1.4)
    controller, without, seconds = ProfitController(), [0.0, 0.0], [0.0, 0.0]
    for i in range(40):
        is_call = i % 4 == 3
        n_prompt, n_answer = (340 + 3 * i, 40 + i % 30) if is_call else (60 + i, 250)
        written = [made_up(n_answer, lambda at: 0.9, i)]
        without[is_call] += plain(written, costs, n_prompt=n_prompt)
        out = simulate(controller, written, costs, seed=i, step_share=0.35, n_prompt=n_prompt)
        seconds[is_call] += out.seconds
    assert without[0] / seconds[0] > 1.2
    assert without[1] / seconds[1] > 0.9  # less if all lengths count alike


def test_a_long_answer_is_worth_the_reading() -> None:
    """A longer text is expected to continue longer."""
    written, costs = [[Place(8, [0.95] * 8)] * 1500], reads(0.45)
    out = simulate(ProfitController(), written, costs, step_share=0.45, n_prompt=3000)
    asked = [at for (n, _), at in zip(out.lengths, out.at, strict=True) if n]
    assert 100 < asked[0] < 900
    assert plain(written, costs, n_prompt=3000) / out.seconds > 1.1


@pytest.mark.parametrize("said", [0.2, 3.0])
def test_a_price_that_was_told_wrong_is_forgotten(said: float) -> None:
    """From the first draft on, the measured price replaces it."""
    written = [made_up(127, lambda at: 0.9, seed) for seed in range(3)]
    share = 0.33
    found, told = (
        median([
            simulate(ProfitController(), written, dear(share), seed=seed, step_share=s).seconds
            for seed in SEEDS
        ])
        for s in (share * said, share)
    )  # fmt: skip
    assert told / found > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [0.2, 3.0], ids=["too sure", "too shy"])
@pytest.mark.parametrize("rate", [0.1, 0.4, 0.7])
def test_drafts_that_misjudge_themselves(exponent: float, rate: float) -> None:
    for costs in WORLDS.values():
        written = texts(lambda at: rate, exponent=exponent)
        check(simulate(ProfitController(), written, costs).seconds, written, costs, 0.90)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6, 0.9])
def test_blocks(rate: float) -> None:
    for world in WORLDS.values():
        costs = Costs(world.verify, lambda n: 1.2 + 0.05 * n)
        written = texts(lambda at: rate)
        found = simulate(ProfitController(), written, costs, is_stepwise=False).seconds
        assert plain(written, costs) / found > 0.97
        assert oracle(written, costs, is_stepwise=False) / found > 0.88


@pytest.mark.slow
@pytest.mark.parametrize(
    "rate",
    [
        lambda at: 0.9 - 0.85 * at / 4000,
        lambda at: 0.05 + 0.85 * at / 4000,
        lambda at: 0.45 + 0.45 * math.sin(at / 150),
        lambda at: (0.05, 0.9)[at // 500 % 2],
    ],
    ids=["falling", "rising", "waves", "steps"],
)
def test_acceptance_that_drifts_over_4000_tokens(rate: Callable[[int], float]) -> None:
    for costs in WORLDS.values():
        written = texts(rate, 4000, 1)
        found = simulate(ProfitController(), written, costs).seconds
        check(found, written, costs, 0.92)
        assert min(simulate(Fixed(n), written, costs).seconds for n in LENGTHS) / found > 1.0


@pytest.mark.slow
def test_a_context_that_grows_to_32k() -> None:
    costs = Costs(lambda rows, n: 10 + 0.6 * (rows - 1) + n * rows * 1.5e-4, lambda k: 0.5 * k)
    written = texts(lambda at: 0.6, 32000, 1)
    out = simulate(ProfitController(), written, costs)
    check(out.seconds, written, costs, 0.95)
    # A row costs 0.6 ms more at first and 5.4 at the end: less is drafted there.
    early, late = (
        [n for (_, n), at in zip(out.lengths, out.at, strict=True) if low <= at < low + 1500]
        for low in (200, 30000)
    )
    assert sum(late) / len(late) < 0.7 * sum(early) / len(early)


@pytest.mark.slow
@pytest.mark.parametrize("n_together", [8, 32])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6, 0.9])
def test_many_sequences(n_together: int, rate: float) -> None:
    """They share one batch, whose rows get more expensive."""
    for name in ("dense GPU", "CPU"):
        costs = WORLDS[name]
        written = texts(lambda at: rate, 150, n_together)
        found, zero, fixed = (
            simulate(c, written, costs, n_together=n_together, max_draft=3).seconds
            for c in (ProfitController(), Fixed(0), Fixed(3))
        )
        assert zero / found > 0.97
        # Of 50 rounds or so, the first of which learn what so many rows cost.
        assert min(zero, fixed) / found > 0.93


def copied(n: int) -> list[Place]:
    """Prose with chance matches of three tokens, a copied passage, and prose again."""
    out = []
    for at in range(3 * n):
        if n <= at < 2 * n:
            left = min(7, 2 * n - at)
            out.append(Place(left, [0.5] * 7, (), 3 + at - n))
        elif at % 4 == 0:
            out.append(Place(0 if at % 16 else 1, [0.5] * 7, (), 3))
        else:
            out.append(Place(0, (), (), 0))
    return out


def test_prose_then_a_copy_then_prose() -> None:
    """A lookup alone: the controller follows within 20 rounds each way."""
    costs, n = WORLDS["CPU"], 300
    out = simulate(ProfitController(), [copied(n)], costs, max_draft=7, is_stepwise=False)
    rounds = list(zip(out.at, (n for _, n in out.lengths), strict=True))
    assert plain([copied(n)], costs) / out.seconds > 1.05
    within = [length for at, length in rounds if n <= at < 2 * n]
    assert next(i for i, length in enumerate(within) if length >= 3) < 20
    assert sum(within) / len(within) > 2
    behind = [length for at, length in rounds if at >= 2 * n]
    assert all(length == 0 for length in behind[20:40])
    before = [length for at, length in rounds if at < n]
    assert sum(before) / len(before) < 0.3
