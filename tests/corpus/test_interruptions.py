"""An interrupted corpus keeps everything finished, and its text is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyllama_spec.engine import Model
from pyllama_spec.train.corpus.features import FeatureSource
from tests.corpus.tools import (
    LAYERS,
    N_TOP,
    config,
    feature_store,
    make,
    tokens,
)


class _Stop(Exception):  # noqa: N818 - it stands for an interruption
    pass


@pytest.mark.parametrize("from_file", [True, False])
@pytest.mark.parametrize("n_steps", [5, 60, 110])
def test_an_interrupted_corpus_goes_on_to_the_same_text(
    from_file: bool, n_steps: int, writer: Model, tmp_path: Path, prompts: Path
) -> None:
    settings = config(prompts if from_file else None)
    whole_store = feature_store(tmp_path / "wf", settings)
    options = {"target_layers": LAYERS, "n_top": N_TOP}
    whole = make(writer, tmp_path / "whole", settings, features=whole_store, **options)
    left, n_runs = n_steps, 0
    store = feature_store(tmp_path / "pf", settings)

    def stop(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise _Stop

    for _ in range(40):
        left, n_runs = n_steps, n_runs + 1
        try:
            parts = make(
                writer, tmp_path / "parts", settings, features=store, on_progress=stop, **options
            )
        except _Stop:
            n_steps += 20
        else:
            break
    assert n_runs > 1
    assert tokens(parts) == tokens(whole)
    assert parts.sha256 == whole.sha256
    sources = [FeatureSource(whole, whole_store), FeatureSource(parts, store)]
    for i in range(len(whole.sequences)):
        a, b = (source.get(i) for source in sources)
        assert (a.rows == b.rows).all()
        assert (a.top_ids == b.top_ids).all()
        assert (a.top_log_p == b.top_log_p).all()
