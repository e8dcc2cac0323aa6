"""Promise 1 as a property: with any draft and any requests, the output equals plain decoding.

Sessions are drawn at random; a failing one is shrunk and kept in KEPT, whose sessions run first.
`python -m tests.parity.session_play` plays any number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.speculative import SequenceState, SpeculationStats
from pyllama_spec.speculative import round as round_module
from pyllama_spec.speculative.acceptance import sample_and_match
from pyllama_spec.speculative.controller.base import Span
from pyllama_spec.speculative.rollback import Rollback
from tests.models.build import STATES
from tests.parity.latent_files import LATENT
from tests.parity.session_play import compare
from tests.parity.sessions import (
    ARCHS,
    DRAFTERS,
    QUANTISED_CACHES,
    Act,
    Ask,
    Drafting,
    Opened,
    Session,
    Together,
    sessions,
)
from tests.tiers import release_except

_PHASES = (Phase.generate, Phase.shrink)
_N_QUICK, _N_RELEASE = 300, 20_000
_GREEDY = (("max_tokens", 24), ("temperature", 0.0), ("logprobs", 3))

KEPT = {
    "a verify batch of two physical ones, the second of one row": Session(
        Opened("deepseek2", n_batch=33, n_ubatch=8), Drafting("perfect", 8), (Ask(options=_GREEDY),)
    ),
    "a verify batch of six physical ones": Session(
        Opened("deepseek2", n_batch=64, n_ubatch=4, n_ctx=50), Drafting("pattern", 20),
        (Ask(options=_GREEDY, fate="raises", at=5), Ask(base=0, n_base=9, options=_GREEDY)),
    ),
    "text that a grammar forces": Session(
        Opened(), Drafting("grammar", None),
        (Ask(options=(*_GREEDY, ("grammar", 'root ::= "the answer is " [0-9]+ "." '))),),
    ),
    "a prompt's own log-probabilities, with room for 96 rows": Session(
        Opened(n_ubatch=512, n_batch=512, n_ctx=120, n_parallel=3), Drafting("perfect", 31),
        (Ask(tail=tuple(range(80)), options=_GREEDY, face="echo"),),
    ),
    "places that share a text": Session(
        Opened("qwen35", n_parallel=2), Drafting("intermittent", 5, "random"),
        (
            Ask(options=_GREEDY),
            Together((Ask(base=0, n_base=20, options=_GREEDY), Ask(options=_GREEDY))),
            Act("save"), Ask(tail=(1, 2), options=_GREEDY, fate="closed", at=3), Act("load"),
            Ask(base=0, n_base=12, options=_GREEDY),
        ),
    ),
    "heads of sizes that divide nothing, a batch of many physical ones": Session(
        Opened("mistral4", sizes=3, n_batch=64, n_ubatch=3, flash_attn=True), Drafting("copy", 20),
        (Ask(options=_GREEDY), Ask(base=0, n_base=20, tail=(7,), options=_GREEDY, face="echo")),
    ),
    "a latent cache of blocks, side by side": Session(
        Opened("glm-dsa", sizes=1, cache="q8_0", flash_attn=True, n_ubatch=4, n_parallel=3),
        Drafting("perfect", 13),
        (Together((Ask(options=_GREEDY), Ask(options=_GREEDY, fate="closed", at=3),
                   Ask(tail=(1, 2), options=_GREEDY, fate="aborted", at=5))),),
    ),
    "a head, and a text that goes on in the model opened anew": Session(
        Opened("qwen35", n_ubatch=8, store=0), Drafting("certain-mtp", 5),
        (Ask(options=_GREEDY), Act("move"), Ask(base=0, n_base=30, tail=(5,), options=_GREEDY)),
    ),
    **{
        f"an indexer's equal scores, beside other texts: {arch}": Session(
            Opened(arch, sizes=int(arch in LATENT), n_ctx=80, n_parallel=3),
            Drafting("perfect", 5),
            (
                Together((Ask(tail=tuple(range(97, 121)), options=_GREEDY),
                          Ask(tail=tuple(range(120, 96, -1)), options=_GREEDY),
                          Ask(base=0, n_base=9, options=_GREEDY))),
                Ask(base=1, n_base=40, options=_GREEDY),
            ),
        )
        for arch in ("glm5-next", "qwen4exp")
    },
    **{
        f"a state with a window, in physical batches of {n}": Session(
            Opened("deepseek4", sizes=2, n_ctx=120, n_ubatch=n, swa_full=False),
            Drafting("pattern", 5),
            (Ask(tail=tuple(range(97, 112)), options=_GREEDY),
             Ask(base=0, n_base=30, tail=(5, 6), options=_GREEDY)),
        )
        for n in (1, 2, 3)
    },
    "a stream that is closed before it begins, after a cancelled request": Session(
        Opened(n_ctx=24), Drafting("perfect", 8),
        (Ask(tail=(0,)), Ask(tail=(0,), fate="cancelled", at=1), Ask(tail=(0,), fate="closed")),
    ),
    "a state without snapshots, and a callback that fails behind a stop string": Session(
        Opened("qwen35moe", n_ctx=24, n_ubatch=1), Drafting("grammar", 8),
        (Ask(tail=(0, 1, 16, 4), options=(*_GREEDY, ("stop", "a"),
             ("grammar", 'root ::= "the answer is " [0-9]+ "." ')), fate="raises", at=4),),
    ),
    "a cut text that ends within a character, which is a stop string": Session(
        Opened("qwen3next", n_ctx=24), Drafting("perfect", 8),
        (Ask(tail=(98, 101, 1), fate="cancelled", at=1, options=(("max_tokens", 12),
             ("temperature", 0.7), ("seed", 0), ("stop", ("q", "\ufffd")))),),
    ),
    "two wide heads beside an indexer": Session(
        Opened("qwen4exp", n_head=2, n_ctx=24), Drafting("certain-mtp", 8), (Ask(tail=(0,)),)
    ),
    "a model of another vocabulary, with an adapter for one of three": Session(
        Opened("gemma3", n_parallel=2, store=100_000), Drafting("foreign", 8, "random"),
        (
            Together((Ask(options=_GREEDY), Ask(options=_GREEDY, adapted=True),
                      Ask(tail=(9, 9), options=_GREEDY))),
            Act("cache"), *(Ask(base=0, n_base=15, options=_GREEDY, face="completion"),) * 2,
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept(name: str) -> None:
    assert compare(KEPT[name])["comparisons"] > 0


@pytest.mark.parametrize("arch", release_except((*STATES, "glm5-next"), ("mamba", "qwen35")))
@pytest.mark.parametrize("n_parallel", [1, 2])
def test_a_context_that_is_smaller_than_a_draft(arch: str, n_parallel: int) -> None:
    """The context gets as many snapshots as a physical batch has room for, at most n_ctx."""
    for n_ctx in (4, 9, 24, 31, 32, 33, 34):
        opened = Opened(arch, n_ctx=n_ctx, n_parallel=n_parallel, sizes=int(arch in LATENT))
        asks = Ask(tail=(104,), options=(*_GREEDY, ("max_tokens", None)))
        acts = (asks, Together((asks, asks))) if n_parallel > 1 else (asks,)
        counts = compare(Session(opened, Drafting("perfect", 31), acts))
        assert counts["comparisons"] == (3 if n_parallel > 1 else 1)
        assert counts["accepted"] > 0 or n_ctx < 9


def _first_is_believed(
    sampler: Any, context: Any, row: int, draft: Sequence[int], out: list[int], observe: Any
) -> None:
    """The draft's first token is taken without a look at the target's row."""
    if draft:
        sampler.accept(draft[0])
        if observe is not None:
            observe(row, draft[0])
        out.append(draft[0])
        row, draft = row + 1, draft[1:]
    sample_and_match(sampler, context, row, draft, out, observe)


def _one_too_many(stats: SpeculationStats, span: Span, n_accepted: int) -> None:
    stats.rounds += 1
    stats.accepted += n_accepted + 1


def _nothing_undone(rollback: Rollback, state: SequenceState) -> None:
    """A rejected token stays in the memory, and the next batch follows it."""


@pytest.mark.parametrize(
    ("where", "name", "wrong"),
    [
        (round_module, "sample_and_match", _first_is_believed),
        (SpeculationStats, "count_round", _one_too_many),
        (Rollback, "undo", _nothing_undone),
    ],
)
def test_a_wrong_loop_is_noticed(
    where: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(drafting=Drafting("pattern", 8), acts=(Ask(options=_GREEDY),))
    compare(session)
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises((AssertionError, PyllamaSpecError)):
        compare(session)


@pytest.mark.slow
def test_three_hundred_sessions_of_all_architectures() -> None:
    """The seeds are fixed, so that the gate is deterministic."""
    counts: Counter[str] = Counter()
    for number, arch in enumerate(ARCHS):

        @seed(number)
        @settings(
            max_examples=-(-_N_QUICK // len(ARCHS)), deadline=None, database=None, phases=_PHASES,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(sessions((arch,)))
        def play(session: Session) -> None:
            counts.update(compare(session))

        play()
    assert counts["sessions"] >= _N_QUICK
    assert counts["comparisons"] > _N_QUICK
    assert 0 < counts["accepted"] < counts["drafted"] < counts["proposed"]
    for key in ("forced", "errors", "together", "adapted"):
        assert counts[key] > 0, key
    for kind in DRAFTERS:
        assert counts[f"of {kind}"] > 0, f"{kind} drafted in none of them"
    for kind in ("f16", "f32", "bf16", *QUANTISED_CACHES):
        assert counts[f"with {kind}"] > 0, f"none has a cache of {kind}"


@pytest.mark.release
@pytest.mark.parametrize("arch", ARCHS)
def test_twenty_thousand_sessions(arch: str) -> None:
    """The seeds are random, with equally many sessions for each architecture."""

    @settings(
        max_examples=-(-_N_RELEASE // len(ARCHS)), deadline=None, database=None,
        phases=_PHASES, print_blob=True, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(sessions((arch,), n_threads=(1,) * 9 + (2,)))
    def play(session: Session) -> None:
        compare(session)

    play()
