"""Helpers for tests of drafts for the PERM target: its text, and a perfect draft's figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pyllama_spec import Llama
from pyllama_spec.drafters import DFlash, Drafter
from pyllama_spec.speculative import SpeculativeLoop
from tests.dflash_tools import draft
from tests.eagle3_tools import target_context
from tests.models import ENDOFTEXT, perm_continuation, perm_next
from tests.oracles import LoopRun, tiny

SUCCESSOR = perm_next()


def perm_prompt(n: int, seed: int = 0) -> list[int]:
    """Text that follows PERM, as a spread of rows needs it, from a random byte on."""
    first = int(np.random.default_rng(seed).integers(0, 256))
    return [first, *perm_continuation(first, n - 1, SUCCESSOR)] if n > 1 else [first]


def further(text: Sequence[int], n: int) -> list[int]:
    """The text with n more tokens of PERM."""
    return [*text, *perm_continuation(text[-1], n, SUCCESSOR)]


def perm_loop(drafter: Drafter, **params: Any) -> SpeculativeLoop:
    """A loop on PERM with the drafter."""
    return SpeculativeLoop(target_context(tiny("perm"), drafter, **params), drafter)


def check_perfect(run: LoopRun, n_drafted: int | None = None) -> None:
    """The text is PERM's, and every drafted token was accepted."""
    assert run.tokens == perm_continuation(run.prompt[-1], len(run.tokens), SUCCESSOR)
    assert run.stats.reason_off is None
    assert run.stats.drafted > 0
    assert run.stats.accepted == run.stats.drafted
    if n_drafted is not None:
        assert max(step.n_drafted for step in run.steps) == n_drafted


def check_restored_is_drafted(open_llama: Callable[[], Llama]) -> None:
    """A text's tokens are drafted when another Llama continues from its state.

    The target is a PERM of 16 cycles, and the draft uses a part of its vocabulary.
    """
    with open_llama() as llm, open_llama() as other:
        llm.create_completion([150], max_tokens=60, temperature=0)
        state = llm.save_state()
        other.load_state(state)
        tokens = [*state.tokens, int(perm_next(n_cycles=16)[state.tokens[-1]])]
        answer = other.create_completion(tokens, max_tokens=20, temperature=0)["speculation"]
        assert answer["accepted"] == answer["drafted"] > 0


def perm(read: str = "newest", max_draft: int | None = None, **options: Any) -> DFlash:
    """A drafter for PERM. The mask is a token that no text comes to: it is pending never."""
    return draft("perm_dflash", max_draft, read=read, mask_token=ENDOFTEXT, **options)
