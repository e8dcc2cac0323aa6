"""Drafts of every kind on targets with recurrent states: text and rows of plain decoding."""

from __future__ import annotations

from functools import cache

import pytest

from pyllama_spec.drafters import DFlash, Draft, Drafter, DraftRequest, Eagle3, PromptLookup
from pyllama_spec.speculative import Round
from tests.eagle3_tools import target_context
from tests.models import STATES, model_path
from tests.oracles import (
    GREEDY,
    LoopRun,
    check_same_rows,
    check_teacher_forced,
    prompt_tokens,
    run_once,
    sampled,
    tiny,
    tiny_context,
)
from tests.scripted import other
from tests.tiers import release_except
from tests.traffic import Request, Traffic, alone, random_requests

# A text that repeats itself, so that something of it is copied.
PROMPT = prompt_tokens(9, seed=5) * 3
N_TOKENS = 33
SAMPLINGS = {"greedy": GREEDY, "seeded": sampled(7)}
QUICK = ("qwen35", "mamba", "rwkv7")


class GuidedHead(Eagle3):
    """A random head whose chain is decoded, and then right for k tokens and wrong after them."""

    k = 0
    text: tuple[int, ...] = ()

    def propose(self, requests: list[DraftRequest]) -> list[Draft]:  # type: ignore[override]
        """Right as far as it is told to be."""
        out = []
        for request, found in zip(requests, super().propose(requests), strict=True):
            coming = self.text[len(request.tokens) :][: len(found.ids)]
            k = len(request.tokens) % (self.k + 1)
            out.append(Draft([*coming[:k], *(other(token) for token in coming[k:])]))
        return out


def make(kind: str, arch: str, text: list[int]) -> Drafter:
    """A drafter for a target of the architecture."""
    if kind == "prompt-lookup":
        return PromptLookup(8, max_ngram=2, min_ngram=1)
    if kind == "dflash":
        target = model_path(arch, output_scale=3.0)
        return DFlash(model_path("dflash", target=target, block_size=8))
    if kind == "eagle3":
        return Eagle3(model_path("eagle3"), 6)
    # The inputs of a recurrent layer, of one with attention, and what leaves the last one.
    guided = GuidedHead(model_path("eagle3", target_layers=(1, 2, 4)), 8)
    guided.k, guided.text = 8, tuple(text)
    return guided


@cache
def plain(arch: str, sampling: str) -> LoopRun:
    """The text without drafts, checked against single-token decodes."""
    with tiny_context(tiny(arch, output_scale=3.0)) as context:
        run = run_once(context, None, PROMPT, N_TOKENS, SAMPLINGS[sampling], keep_rows=True)
        check_teacher_forced(context.model, run)
    return run


@pytest.mark.parametrize("n_rs_seq", [10, 0], ids=["snapshots", "replay"])
@pytest.mark.parametrize("kind", ["prompt-lookup", "eagle3", "guided", "dflash"])
@pytest.mark.parametrize("arch", release_except(STATES, QUICK))
def test_a_draft(arch: str, kind: str, n_rs_seq: int) -> None:
    for sampling in SAMPLINGS:
        expected = plain(arch, sampling)
        drafter = make(kind, arch, expected.text)
        with target_context(tiny(arch, output_scale=3.0), drafter, n_rs_seq=n_rs_seq) as context:
            run = run_once(context, drafter, PROMPT, N_TOKENS, SAMPLINGS[sampling], keep_rows=True)
        assert run.stats.reason_off is None
        assert run.stats.drafted > 0 or kind == "prompt-lookup"  # not every text repeats itself
        check_same_rows(run, expected)
        if kind == "guided":
            assert run.stats.accepted > 5
        drafter.close()


@cache
def traffic_of(arch: str) -> tuple[list[Request], list[list[int]]]:
    """Requests, and what each of them gives alone."""
    requests = random_requests(14, 3)
    return requests, [alone(tiny(arch, output_scale=3.0), one, n_ctx=128) for one in requests]


@pytest.mark.parametrize("n_rs_seq", [10, 0], ids=["snapshots", "replay"])
@pytest.mark.parametrize("kind", ["prompt-lookup", "eagle3", "dflash"])
@pytest.mark.parametrize("arch", release_except(STATES, QUICK))
def test_sequences_that_share_rounds(arch: str, kind: str, n_rs_seq: int) -> None:
    requests, texts = traffic_of(arch)
    drafter = make(kind, arch, [])
    with target_context(
        tiny(arch, output_scale=3.0), drafter, n_ctx=128 * 4, n_seq_max=4, n_batch=256,
        n_rs_seq=n_rs_seq,
    ) as context:  # fmt: skip
        traffic = Traffic(Round(context, drafter), requests, texts, 4)
        answers = traffic.serve()
        traffic.check()
    assert traffic.n_shared > 0
    assert not any(answer.stats.reason_off for answer in answers)
    drafter.close()
