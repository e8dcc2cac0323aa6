"""Acceptance of DFlash drafts for PERM: several rows at once, block lengths, layers, the calls.

The drafts of test_row_draft_acceptance.py read the next tokens from the newest row. These read each
token from another row: all are accepted if all rows are in their places.
"""

from __future__ import annotations

from typing import Any

import pytest

from pyllama_spec.drafters import DFlash
from pyllama_spec.speculative import SequenceState
from tests.dflash_tools import KINDS
from tests.models import model_path
from tests.oracles import generate
from tests.row_drafts import (
    PATHS,
    ROW_DRAFTS,
    Way,
    check_perfect,
)

KIND = ROW_DRAFTS["dflash"]


def perm(**options: Any) -> Any:
    return KIND.open(KIND.perm_path(**options))


@pytest.mark.parametrize("path", PATHS)
def test_all_of_a_spread_is_accepted(path: Way) -> None:
    path(KIND, lambda: perm(read="spread"))


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("off", [-1, 1])
def test_each_path_sees_another_layer(path: Way, off: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's layers say different things, and the layer ids are off by one."""
    stepping = model_path("perm", stepping=True)
    monkeypatch.setattr(type(KIND), "perm_target", lambda _: stepping)
    assert KIND.perm_target() == stepping

    def make(layer: int) -> DFlash:
        drafter: DFlash = perm(stepping=True, target_layers=(2,))
        drafter.target_layers = (layer,)
        return drafter

    path(KIND, lambda: make(2))
    with pytest.raises(AssertionError):
        path(KIND, lambda: make(2 + off))


# ---- what else there is to a text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [2, 3, 8, 12])
def test_blocks_of_every_length(kind: str, block_size: int) -> None:
    whole = perm(block_size=block_size, **KINDS[kind])
    most = whole.max_draft
    assert most == block_size - 1 + whole.block.sample_from_anchor
    for k in range(1, most + 1):
        drafter = DFlash(whole.model, k)
        n = 3 * (k + 1) + 1
        run = generate(KIND.perm_loop(drafter), SequenceState(), KIND.perm_prompt(20), n)
        check_perfect(run, k)
        assert run.stats.rounds == 3
        # The rows of the prompt, the first block, and for each round the accepted rows and a block.
        assert drafter.n_calls == 6
