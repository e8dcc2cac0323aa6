"""The counts of benchmarks/tree_drafts.py in made-up traces, and in a toy's trace."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import tree_drafts
from benchmarks.tree_drafts import N_RANKS, Prices, accepted, cut, frequencies, rejected
from pyllama_spec.engine import Sampler, SamplerParams
from tests.bench.tools import write_prompts
from tests.models import model_path
from tests.oracles import tiny

# The first guess, or else the second one, is right; or neither, at a place or at the next.
PATHS = [(0, 0)] * 5 + [(0, N_RANKS)] + [(1, 0)] * 3 + [(N_RANKS, 0)]


def test_what_comes_after_a_wrong_guess_is_not_accepted() -> None:
    share = frequencies(PATHS)
    assert share == {(0,): 0.6, (0, 0): 0.5, (1,): 0.3, (1, 0): 0.3}
    assert accepted([(0,), (0, 0)], PATHS) == pytest.approx(1.1)
    assert accepted([(0,), (1,), (0, 0), (1, 0)], PATHS) == pytest.approx(1.7)
    assert accepted([(2,)], PATHS) == 0


def test_a_second_guess_is_taken_where_its_row_is_cheap() -> None:
    free, dear = Prices([1.0] * 6, 0.0), Prices([1.0, 1.3, 1.6, 1.9, 2.2], 0.0)
    assert free.best(PATHS, is_chain=True) == [(0,), (0, 0)]
    assert set(free.best(PATHS, is_chain=False)) >= {(0,), (0, 0), (1,), (1, 0)}
    assert free.speedup([(0,), (0, 0), (1,), (1, 0)], PATHS) == pytest.approx(2.7)
    assert dear.best(PATHS, is_chain=False) == dear.best(PATHS, is_chain=True)
    assert Prices([1.0, 2.0, 3.0], 0.0).best(PATHS, is_chain=False) == [], "plain decoding"
    deep = Prices([1.0] * 6, 0.8)
    assert max(map(len, deep.best(PATHS, is_chain=False))) == 1, "each level is paid for"


def test_a_sampled_draft_is_accepted_as_often_as_both_agree() -> None:
    p, q = [(7, 0.6), (8, 0.3), (9, 0.1)], [(8, 0.5), (7, 0.25), (4, 0.25)]
    chance = sum(share * rejected([token], [p], [q])[0] for token, share in p)
    assert chance == pytest.approx(0.25 + 0.3)
    assert tree_drafts.matched([8, 7], [q, q]) == [1.0, 0.0]


@pytest.mark.parametrize("seed", range(4))
def test_the_cuts_are_those_of_a_request(seed: int) -> None:
    """The chain never draws a token that the cuts exclude, and draws each other token sometimes."""
    rng = np.random.default_rng(seed)
    row = (3 * rng.standard_normal(320)).astype(np.float32)
    left = set(np.flatnonzero(np.isfinite(cut(row.astype(np.float64)))).tolist())
    sampler = Sampler(tiny("llama"), SamplerParams(temperature=5.0, seed=seed))
    assert {sampler.sample_row(row) for _ in range(4000)} == left
    sampler.close()


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_a_model_that_drafts_for_itself_is_right(
    tmp_path: Path,
    temperature: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, out = str(model_path("llama")), str(tmp_path / "trace.json")
    record = ["record", "-m", model, "-d", model, "-o", out, "-n", "12", "--places", "3"]
    record += ["--prompts", str(write_prompts(tmp_path)), "--temperature", temperature]
    for words in (record, ["show", out, "--rows", "1,1,1,1", "--step", "0"]):
        monkeypatch.setattr(sys, "argv", ["tree_drafts", *words])
        tree_drafts.main()
    said = capsys.readouterr().out
    if temperature == "0":
        assert "place 1, all before it right (24): candidates right 1.000, 0.000, 0.000" in said
        assert "tree over chain 1.000" in said
    else:
        # Both have one distribution, so that whatever is drawn from it is accepted.
        assert "drafts of 1: tokens a round" in said and "2.000 by rejection" in said
