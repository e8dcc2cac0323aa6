"""Sequences in shared rounds each get the text that they get alone, bit by bit.

With separate streams, on the CPU, rows do not depend on others in the batch. In a unified cache,
which sums over cells of other sequences, only O1 is promised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from pyllama_spec.drafters import (
    DFlash,
    Draft,
    Drafter,
    DraftRequest,
    Eagle3,
    NoDrafter,
    PromptLookup,
    Suffix,
)
from pyllama_spec.drafters.small_model import SmallModel
from pyllama_spec.speculative import Round
from tests.models import model_path
from tests.oracles import tiny, tiny_context
from tests.suffix_tools import teach
from tests.tiers import release_except
from tests.traffic import ManyScripts, Request, Traffic, alone, random_requests

ARCHS = ("llama", "qwen3moe", "gemma3", "qwen35")
WIDTHS = (1, 2, 4, 8, 16)
N_CTX = 128


DRAFTERS: dict[str, Callable[[int], Drafter]] = {
    "none": lambda _: NoDrafter(),
    "scripted": ManyScripts,
    "failing": lambda seed: ManyScripts(seed, p_raise=0.1),
    "prompt-lookup": lambda _: PromptLookup(6, max_ngram=2, min_ngram=1),
    "suffix": lambda _: Suffix(6),
    "eagle3": lambda _: Eagle3(model_path("eagle3"), 4),
    "dflash": lambda _: DFlash(model_path("dflash")),
    "draft-model": lambda _: SmallModel(model_path("llama", seed=9, output_scale=3.0), 4),
    "draft-model, other vocabulary": lambda _: SmallModel(
        model_path("qwen35", seed=9, output_scale=3.0, shuffle=3), 4
    ),
}


@cache
def traffic_of(arch: str, n: int, seed: int) -> tuple[list[Request], list[list[int]]]:
    """Requests, and what each of them gives alone."""
    requests = random_requests(n, seed)
    model = tiny(arch, output_scale=3.0)
    return requests, [alone(model, request, n_ctx=N_CTX) for request in requests]


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("n_seqs", release_except(WIDTHS, (1, 4, 8)))
@pytest.mark.parametrize("arch", release_except(ARCHS, ("llama",)))
def test_each_text_is_that_of_the_request_alone(arch: str, n_seqs: int, kind: str) -> None:
    requests, texts = traffic_of(arch, 3 * n_seqs + 4, n_seqs)
    drafter = DRAFTERS[kind](n_seqs)
    if isinstance(drafter, Suffix):  # random text hardly repeats itself: half of it is known
        teach(drafter, [[*r.prompt, *text] for r, text in zip(requests, texts, strict=True)][::2])
    model = tiny(arch, output_scale=3.0)
    with tiny_context(
        model, n_ctx=N_CTX * n_seqs, n_seq_max=n_seqs, n_batch=256,
        target_layers=drafter.target_layers,
    ) as context:  # fmt: skip
        traffic = Traffic(Round(context, drafter), requests, texts, n_seqs)
        answers = traffic.serve()
        traffic.check()
    assert traffic.n_shared > 0 or n_seqs == 1
    drafted = sum(answer.stats.drafted for answer in answers)
    assert drafted > 0 or kind == "none"
    if kind in ("scripted", "failing"):
        assert sum(answer.stats.accepted for answer in answers) > 0
    if kind != "failing":
        assert not any(answer.stats.reason_off for answer in answers)
    drafter.close()


@pytest.mark.parametrize("n_seqs", WIDTHS)
def test_a_script_that_is_right_is_accepted_whole(n_seqs: int) -> None:
    """Each sequence gets as many tokens per round as the exact width allows."""

    class Right(ManyScripts):
        def propose_one(self, request: DraftRequest) -> Draft:
            return Draft(self.scripts[request.seq].coming(request.seq, request.n_requested))

    model = tiny("llama")
    requests = [Request((3 + i,), 41) for i in range(n_seqs)]
    texts = [alone(model, request, n_ctx=N_CTX) for request in requests]
    with tiny_context(model, n_ctx=N_CTX * n_seqs, n_seq_max=n_seqs, n_batch=256) as context:
        round_ = Round(context, Right(0))
        traffic = Traffic(round_, requests, texts, 0)
        answers = traffic.serve()
        traffic.check()
    most = min(8, max(32 // n_seqs - 1, 0))
    for answer in answers:
        assert answer.stats.accepted == answer.stats.drafted
        assert len(answer.stats.accepted_histogram) == most + 1


@pytest.mark.parametrize("kind", ["scripted", "prompt-lookup", "eagle3", "dflash"])
@pytest.mark.parametrize("n_seqs", release_except((2, 8, 16), (2, 8)))
@pytest.mark.parametrize("arch", release_except(ARCHS, ("llama",)))
def test_one_cache_for_all(arch: str, n_seqs: int, kind: str) -> None:
    """O1 at every row of every sequence; a text may differ from the single one at a near tie."""
    requests, texts = traffic_of(arch, 2 * n_seqs + 4, 50 + n_seqs)
    requests = [replace(request, is_checked=True) for request in requests]
    drafter = DRAFTERS[kind](n_seqs)
    with tiny_context(
        tiny(arch, output_scale=3.0), n_ctx=N_CTX * n_seqs, n_seq_max=n_seqs, n_batch=256,
        kv_unified=True, target_layers=drafter.target_layers,
    ) as context:  # fmt: skip
        traffic = Traffic(Round(context, drafter), requests, texts, n_seqs)
        for request, answer in zip(requests, traffic.serve(), strict=True):
            if request.cancel_after is None and request.fail_at is None:
                assert answer.error is None
                assert answer.finish_reason is not None
    drafter.close()
