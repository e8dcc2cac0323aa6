"""Promise 1 with DFlash drafts: the text equals plain decoding, however much is accepted.

Drafts that are right up to a chosen place, in every kind of target, alone and in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import DFlash, Draft, DraftRequest
from pyllama_spec.speculative import Round
from tests.dflash_tools import KINDS
from tests.eagle3_tools import target_context
from tests.models import ENDOFTEXT, model_path
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
from tests.perm_tools import check_perfect, perm_prompt
from tests.scripted import other
from tests.tiers import release_except
from tests.traffic import Request, Traffic

# qwen35 and lfm2 have layers with a state that cannot lose a token.
ARCHS = ("llama", "qwen3", "qwen3moe", "gemma3", "qwen35", "lfm2")
SAMPLINGS = {"greedy": GREEDY, "seeded": sampled(7)}
PROMPT = prompt_tokens(21, seed=5)
BLOCK_SIZE, N_TOKENS = 8, 33


def draft_path(arch: str, **options: Any) -> Path:
    """A random draft for a tiny target."""
    target = model_path(arch, output_scale=3.0)
    return model_path("dflash", target=target, block_size=BLOCK_SIZE, **options)


class Guided(DFlash):
    """A random draft whose block is decoded, and then right for k tokens and wrong after them.

    Rows, calls and memory are those of any draft; only the ids are replaced.
    """

    k = 0
    texts: dict[int, Sequence[int]] = {}  # noqa: RUF012 - set anew by each test

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Right as far as it is told to be."""
        out = []
        for request, found in zip(requests, super().propose(requests), strict=True):
            coming = self.texts[request.seq][len(request.tokens) :][: len(found.ids)]
            k = (
                self.k
                if self.k >= 0
                else int(np.random.default_rng(len(request.tokens)).integers(9))
            )
            out.append(Draft([*coming[:k], *(other(token) for token in coming[k:])]))
        return out


def plain(arch: str, sampling: str) -> LoopRun:
    """The text without drafts, checked against single-token decodes."""
    with tiny_context(tiny(arch, output_scale=3.0)) as context:
        run = run_once(context, None, PROMPT, N_TOKENS, SAMPLINGS[sampling], keep_rows=True)
        check_teacher_forced(context.model, run)
    return run


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("arch", release_except(ARCHS, ("llama",)))
def test_each_accepted_length(arch: str, sampling: str) -> None:
    expected = plain(arch, sampling)
    for kind in ("dflash", "dspark"):
        drafter = Guided(draft_path(arch, **KINDS[kind]))
        with target_context(tiny(arch, output_scale=3.0), drafter, n_rs_seq=10) as context:
            for k in range(drafter.max_draft + 1):
                drafter.k, drafter.texts = k, {0: expected.text}
                run = run_once(
                    context, drafter, PROMPT, N_TOKENS, SAMPLINGS[sampling], keep_rows=True
                )
                assert run.stats.reason_off is None
                check_same_rows(run, expected)
                for step in run.steps[1:-1]:
                    assert step.n_accepted == min(k, step.n_drafted)
                assert drafter.context is not None
                assert drafter.context.memory.positions(0)[1] < len(run.text) - 1
        drafter.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arch", release_except(ARCHS, ("llama",)))
def test_a_draft_of_random_weights(arch: str, kind: str) -> None:
    for sampling in SAMPLINGS:
        expected = plain(arch, sampling)
        with (
            DFlash(draft_path(arch, **KINDS[kind])) as drafter,
            target_context(tiny(arch, output_scale=3.0), drafter, n_rs_seq=10) as context,
        ):
            run = run_once(context, drafter, PROMPT, N_TOKENS, SAMPLINGS[sampling], keep_rows=True)
            assert run.stats.reason_off is None
            assert run.stats.drafted > N_TOKENS
            check_same_rows(run, expected)


@pytest.mark.parametrize("n_seqs", range(1, 9))
@pytest.mark.parametrize("arch", release_except(ARCHS, ("llama",)))
def test_sequences_that_share_rounds(arch: str, n_seqs: int) -> None:
    """Requests of all temperatures and lengths each get the text that they get alone."""
    model = tiny(arch, output_scale=3.0)
    requests = [
        Request(
            tuple(prompt_tokens(3 + 7 * i, seed=i)), 9 + 5 * i % 17, (GREEDY, sampled(i))[i % 2],
            arrival=i // 2,
        )
        for i in range(n_seqs + 2)
    ]  # fmt: skip
    texts = []
    for request in requests:
        with tiny_context(model, n_ctx=128) as context:
            texts.append(
                run_once(context, None, request.prompt, request.max_tokens, request.params).tokens
            )
    drafter = Guided(draft_path(arch, **list(KINDS.values())[n_seqs % 4]))
    drafter.k = -1
    by_prompt = {
        text.prompt: [*text.prompt, *tokens] for text, tokens in zip(requests, texts, strict=True)
    }

    class Texts(dict[int, Sequence[int]]):
        """The continuation of each sequence, found by its prompt."""

        def __missing__(self, seq: int) -> Sequence[int]:
            told = drafter.memory_or_fail().of(seq).tokens
            return next(
                text for prompt, text in by_prompt.items() if tuple(told[: len(prompt)]) == prompt
            )

    drafter.texts = Texts()
    with tiny_context(
        model, n_ctx=128 * n_seqs, n_seq_max=n_seqs, n_batch=256,
        target_layers=drafter.target_layers,
    ) as context:  # fmt: skip
        traffic = Traffic(Round(context, drafter), requests, texts, n_seqs)
        answers = traffic.serve()
        traffic.check()
    assert not any(answer.stats.reason_off for answer in answers)
    assert 0 < sum(a.stats.accepted for a in answers) < sum(a.stats.drafted for a in answers)
    drafter.close()


@pytest.mark.parametrize("n_right", range(8))
def test_a_draft_that_is_spoilt_from_a_place_on(n_right: int) -> None:
    """PERM's draft with spoilt rows: the guesses from a slot on read another row."""
    drafter = DFlash(model_path("perm_dflash", read="spread", mask_token=ENDOFTEXT))
    with target_context(tiny("perm"), drafter) as context:
        text = perm_prompt(80)
        run_once(context, drafter, text[:40], 1)
        memory = drafter.memory_or_fail()
        # The guess d reads the row d back: without the rows before a place it has nothing to read.
        request = DraftRequest(0, memory.of(0).tokens, 7)
        memory.context.memory.remove(0, 0, len(request.tokens) - 1 - n_right)
        found = drafter.propose([request])[0]
        right = np.equal(found.ids, text[41:48])
        assert int(np.cumprod(right).sum()) == min(n_right, 7)
    drafter.close()


def test_perm_is_perfect_through_the_door() -> None:
    drafter = DFlash(model_path("perm_dflash", mask_token=ENDOFTEXT))
    with target_context(tiny("perm"), drafter) as context:
        check_perfect(run_once(context, drafter, perm_prompt(9), 40))
    drafter.close()


def random_draft(target: Path, **options: Any) -> Path:
    """A small draft of random weights for SmolLM2-135M."""
    return model_path(
        "dflash", target=target, target_layers=(2, 15, 27), n_head=9, n_head_kv=3, n_ff=768,
        n_draft_vocab=4096, own_embedding=False, mask_token=5, weight_type="bf16", **options,
    )  # fmt: skip


@pytest.mark.parametrize("kind", release_except(KINDS, ("dspark",)))
def test_smollm2_says_the_same(smollm2_bf16: Path, kind: str) -> None:
    texts = []
    for path in (None, random_draft(smollm2_bf16, **KINDS[kind])):
        own: dict[str, Any] = {"draft": path, "controller": "fixed"}
        if path is not None:
            own["lookup"] = 0
        with Llama(smollm2_bf16, n_ctx=256, n_threads=1, **own) as llm:
            for temperature in (0.0, 0.9):
                result = llm.create_completion(
                    "Once upon a time", max_tokens=32, temperature=temperature, seed=3
                )
                texts.append(result["choices"][0]["text"])
                if path is not None:
                    stats = result["speculation"]
                    assert stats["reason_off"] is None
                    assert stats["drafted"] > 32
    assert texts[:2] == texts[2:]
