"""Acceptance is right, where only acceptance can tell: PERM with an MTP head that reads the row.

As in test_row_draft_acceptance.py, on all architectures: those of hybrids roll rejected tokens back
by snapshots.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pyllama_spec.drafters import Mtp, NoDrafter
from pyllama_spec.drafters.row_memory import HeadsMemory
from pyllama_spec.engine import Batch, SamplerParams
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.models import perm_continuation
from tests.models.mtp import SEVERAL
from tests.mtp_tools import ARCHS, mtp_context, perm_loop, with_head
from tests.oracles import GREEDY, LoopRun, generate, sampled, tiny
from tests.row_drafts import PATHS, ROW_DRAFTS, SUCCESSOR, Way, check_perfect
from tests.tiers import release_except

MTP: Any = ROW_DRAFTS["mtp"]
perm_prompt = MTP.perm_prompt


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
@pytest.mark.parametrize("path", PATHS)
def test_all_is_accepted_of_every_architecture(path: Way, arch: str) -> None:
    # The state of deepseek4 has no snapshots in batches of less than three.
    kind = replace(MTP, perm_arch=arch, n_ubatches=(3, 7, 32))
    path(kind, kind.perm)


@pytest.mark.parametrize("n_ubatch", release_except((12, 32), (32,)))
@pytest.mark.parametrize("window", release_except((20, 64, 200), (20,)))
def test_a_prompt_is_not_read_twice_behind_a_window(window: int, n_ubatch: int) -> None:
    """Each row of a prompt is fed once at most, in any turn, and few are kept."""
    drafter = Mtp(max_draft=4, n_ctx=window)
    loop, seq = perm_loop(drafter, n_ctx=1200, n_ubatch=n_ubatch), SequenceState()
    pairs, fed = drafter.memory_or_fail(), 0
    decode = pairs.decode

    def count(batch: Batch) -> None:
        nonlocal fed
        fed += batch.n_tokens
        decode(batch)

    pairs.decode = count  # type: ignore[method-assign]
    text, more = perm_prompt(700), perm_prompt(300, seed=1)
    said = perm_continuation(text[-1], 5, SUCCESSOR)
    # A long prompt, one that goes on in the answer, another text, and the first one's beginning.
    for prompt in (text, [*text, *said, 9, *more], [7, *more, *text], text[:650]):
        fed = 0
        check_perfect(generate(loop, seq, prompt, 25), 4)
        # Of the text behind the prompt each token at most once, and once more as a guess.
        assert fed <= len(prompt) + 2 * 25 + 1
        rows = pairs.of(0).rows
        assert rows.end - rows.start <= 64


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
def test_rows_of_other_tokens_are_seen(arch: str) -> None:
    kind = replace(MTP, perm_arch=arch)
    run = generate(kind.perm_loop(kind.faulty("Shifted")), SequenceState(), perm_prompt(20), 40)
    assert run.tokens == kind.text(run.prompt, 40), "the text never shows it"
    assert run.stats.accepted == 0


@pytest.mark.parametrize("arch", release_except(SEVERAL, ("hy_v3",)))
def test_each_of_several_heads_is_right_at_its_own_place(arch: str) -> None:
    """Each head is right only in its own place: the first head alone gets one token right."""
    model = with_head("perm_mtp", arch=arch, n_heads=3)
    for is_first_alone in (False, True):
        drafter = Mtp(max_draft=8)
        loop = SpeculativeLoop(mtp_context(model, drafter), drafter)
        memory = drafter.memory_or_fail()
        assert isinstance(memory, HeadsMemory)
        if is_first_alone:
            for head in (memory, *memory.later):
                head._batch.head = 0
        run = generate(loop, SequenceState(), perm_prompt(20), 41)
        if not is_first_alone:
            check_perfect(run, 3)
            continue
        full = [step.n_accepted for step in run.steps if step.n_drafted == 3]
        assert full == [1] * len(full)
        assert len(full) > 10


KINDS: dict[str, dict[str, Any]] = {
    "random": {"output_scale": 3.0},
    "noisy": {"output_scale": 8.0, "mixing": 0.1},
    "perm": {"output_scale": 8.0, "mixing": 0.03},
}


@pytest.mark.parametrize("arch", release_except(SEVERAL, ("step35",)))
@pytest.mark.parametrize("params", [GREEDY, sampled(7)], ids=["greedy", "seeded"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_with_several_heads(arch: str, params: SamplerParams, kind: str) -> None:
    """That of plain decoding, with heads that are right sometimes; sessions.py has single heads."""
    name = arch if kind == "random" else "perm_mtp"
    options: dict[str, Any] = {"n_heads": 3, **KINDS[kind]}
    if kind != "random":
        options["arch"] = arch
    drafter = Mtp(max_draft=4)
    runs: list[list[LoopRun]] = []
    for model, who in ((tiny(name, **options), NoDrafter()), (with_head(name, **options), drafter)):
        with mtp_context(model, who) as context:
            loop, seq = SpeculativeLoop(context, who), SequenceState()
            prompts = [perm_prompt(n, seed=n) for n in (1, 20, 45)]
            runs.append([generate(loop, seq, p, 40, params, keep_rows=True) for p in prompts])
            who.close()
    for one, other in zip(*runs, strict=True):
        assert other.tokens == one.tokens
        np.testing.assert_array_equal(np.array(other.rows), np.array(one.rows))
        assert other.stats.reason_off is None
    assert max(step.n_drafted for run in runs[1] for step in run.steps) == 3
