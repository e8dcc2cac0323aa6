"""Acceptance is right, where only acceptance can tell: PERM with an MTP head that reads the row.

As in test_row_draft_acceptance.py, on all architectures: those of hybrids roll rejected tokens back
by snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import Committed, Features, Mtp, NoDrafter
from pyllama_spec.drafters.mtp import HeadsMemory
from pyllama_spec.engine import Batch, Context, SamplerParams
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.models import model_path, perm_continuation
from tests.models.mtp import MEANS_OF_STREAMS, READS_NORMED, SEVERAL
from tests.mtp_tools import ARCHS, NotANumber, Permuted, Shifted, mtp_context, perm_loop, with_head
from tests.oracles import GREEDY, LoopRun, generate, sampled, tiny
from tests.perm_paths import PATHS, Path
from tests.perm_tools import SUCCESSOR, check_perfect
from tests.row_drafts import ROW_DRAFTS
from tests.tiers import release_except

MTP: Any = ROW_DRAFTS["mtp"]
perm_prompt = MTP.perm_prompt


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
@pytest.mark.parametrize("k", release_except(tuple(range(1, 9)), (1, 4, 8)))
def test_chains(k: int, arch: str) -> None:
    loop = perm_loop(Mtp(max_draft=k), arch)
    run = generate(loop, SequenceState(), perm_prompt(20), 3 * (k + 1) + 1)
    check_perfect(run, k)
    assert run.stats.rounds == 3


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
@pytest.mark.parametrize("path", PATHS)
def test_all_is_accepted_of_every_architecture(path: Path, arch: str) -> None:
    # The state of deepseek4 has no snapshots in batches of less than three.
    kind = replace(MTP, perm_arch=arch, n_ubatches=(3, 7, 32))
    path(kind, kind.perm)


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
def test_a_window_is_saved_and_restored(arch: str) -> None:
    path, prompt = model_path("perm_mtp", arch=arch), perm_prompt(40)

    def opened() -> Llama:
        drafter = Mtp(max_draft=3, n_ctx=24)
        return Llama(path, draft=drafter, n_ctx=512, controller="fixed", n_threads=1)

    with opened() as llm:
        llm.create_completion(prompt, max_tokens=21, temperature=0)
        state = llm.save_state()
        llm.create_completion(perm_prompt(90, seed=5), max_tokens=9, temperature=0)
        assert state.drafter is not None
        for other in (llm, opened()):
            other.load_state(state)
            answer = other.create_completion([*state.tokens, 5], max_tokens=21, temperature=0)
            assert answer["speculation"]["accepted"] == answer["speculation"]["drafted"] > 0


@pytest.mark.parametrize("n_ubatch", release_except((12, 32), (32,)))
@pytest.mark.parametrize("window", release_except((20, 64, 200), (20,)))
def test_a_prompt_is_not_read_twice_behind_a_window(window: int, n_ubatch: int) -> None:
    """Rows that left the window before the end of the prompt are never fed, in any turn."""
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
        assert fed <= window + 2 * 25 + 1
        rows = pairs.of(0).rows
        assert rows.end - rows.start <= 64


class BeyondTheNorm(Mtp):
    """A head that is given the row on the other side of the final norm than the one it reads.

    PERM's norm has the weights -1.
    """

    _context: Context | None = None

    def attach(self, target: Context) -> None:
        """Remembers where the other rows are."""
        super().attach(target)
        self._context = target

    def commit(self, done: Sequence[Committed]) -> None:
        """Passes the rows of the other side of the norm."""
        super().commit([one._replace(features=self._others(one.features)) for one in done])

    def _others(self, features: Features) -> Features:
        if not features:
            return features
        assert self._context is not None
        info = self._context.model.info
        if info.arch not in READS_NORMED or info.arch in MEANS_OF_STREAMS:
            rows = np.array(features[0])
            return [-rows / np.sqrt(np.mean(rows**2, axis=1, keepdims=True))]
        rows = self._context.layer_input(info.n_layer)
        first: int = features.first  # type: ignore[attr-defined]
        return [rows[first : first + len(features[0])]]


class Stale(Mtp):
    """A head that gets the rows of the previous batch, as without synchronisation."""

    _last: Features = ()

    def commit(self, done: Sequence[Committed]) -> None:
        """Passes the rows of the last call."""
        told = []
        for one in done:
            if one.features:
                n, rows = len(one.features[0]), np.array(one.features[0])
                old = np.resize(self._last[0], rows.shape) if self._last else np.zeros_like(rows)
                self._last = [rows]
                assert len(old) == n
                told.append(one._replace(features=[old]))
            else:
                told.append(one)
        super().commit(told)


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
@pytest.mark.parametrize("kind", [Shifted, Permuted, NotANumber, BeyondTheNorm, Stale])
def test_rows_of_other_tokens_are_seen(kind: type[Mtp], arch: str) -> None:
    drafter = kind(max_draft=4)
    layers = drafter.target_layers
    if kind is BeyondTheNorm and arch in READS_NORMED - MEANS_OF_STREAMS:
        layers = (*layers, with_head("perm_mtp", arch=arch).info.n_layer)
    run = generate(
        perm_loop(drafter, arch, target_layers=layers), SequenceState(), perm_prompt(20), 40
    )
    assert run.tokens == perm_continuation(run.prompt[-1], 40, SUCCESSOR), "the text never shows it"
    assert run.stats.accepted == 0
    is_noticed = run.stats.reason_off is not None and "NaN" in run.stats.reason_off
    assert is_noticed == (kind is NotANumber)
    with pytest.raises(AssertionError):
        check_perfect(run)


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
            for head in memory._heads:
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
