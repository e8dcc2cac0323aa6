"""Drafts for targets with recurrent layers: training on their own text, and drafting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec.drafters import DFlash, Drafter, Eagle3
from pyllama_spec.engine import Model
from pyllama_spec.train import train_dflash, train_eagle3
from pyllama_spec.train.run.pipeline import TrainReport
from pyllama_spec.train.run.target_weights import read_weights
from tests.eagle3_tools import target_context
from tests.models import model_path
from tests.oracles import (
    GREEDY,
    check_same_rows,
    check_teacher_forced,
    prompt_tokens,
    run_once,
    sampled,
    tiny,
    tiny_context,
)
from tests.train.tools import PERM, quick_block_config, quick_config

ARCHS = ("qwen35", "lfm2")
PROMPT = prompt_tokens(9, seed=5)


def options(arch: str) -> dict[str, Any]:
    """The options of a target with an easily learned next token, whose rows show its states."""
    return {"kind": "hybrid_perm", "arch": arch, **PERM}


def chain(folder: Path, target: Path) -> tuple[TrainReport, Drafter]:
    """EAGLE-3."""
    report = train_eagle3(quick_config(folder, target=target))
    return report, Eagle3(report.path, 4)


def block(folder: Path, target: Path) -> tuple[TrainReport, Drafter]:
    """DFlash."""
    report = train_dflash(quick_block_config(folder, target=target))
    return report, DFlash(report.path, 3)


@pytest.mark.slow
@pytest.mark.parametrize("train", [chain, block])
@pytest.mark.parametrize("arch", ARCHS)
def test_a_draft_for_a_hybrid(
    tmp_path: Path, arch: str, train: Callable[[Path, Path], tuple[TrainReport, Drafter]]
) -> None:
    report, drafter = train(tmp_path, model_path(**options(arch)))
    # Measured on some twenty rounds.
    assert report.trained.tokens_per_round > 1.35 > report.untrained.tokens_per_round
    model = tiny(**options(arch))
    for params in (GREEDY, sampled(7)):
        with tiny_context(model) as context:
            expected = run_once(context, None, PROMPT, 60, params, keep_rows=True)
        check_teacher_forced(model, expected)
        for n_rs_seq in (5, 0):
            with target_context(model, drafter, n_rs_seq=n_rs_seq) as context:
                run = run_once(context, drafter, PROMPT, 60, params, keep_rows=True)
            assert run.stats.reason_off is None
            # Some drafts are taken and some refused, so that states are taken back.
            assert run.stats.drafted > run.stats.accepted > 5
            check_same_rows(run, expected)
    drafter.close()


@pytest.mark.parametrize("arch", ARCHS)
def test_the_targets_last_norm_is_found(arch: str) -> None:
    """LFM2 files use the name that others use for the norm of the embedding."""
    path = model_path(arch)
    with Model(path) as model:
        weights = read_weights(path, model.info)
    assert weights.output_norm is not None
    assert 0 < np.abs(weights.output_norm - 1).max() < 1
