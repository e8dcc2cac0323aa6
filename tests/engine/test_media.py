"""Projectors: what they make of pictures, and what a model reads of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec.engine import Batch, Model
from pyllama_spec.engine.context import Rows
from pyllama_spec.engine.media import Part, Projector
from pyllama_spec.engine.media_ids import (
    MediaRun,
    begins_media,
    is_media,
    media_ids,
    media_runs,
    up_to_medium,
)
from pyllama_spec.errors import (
    ArgumentError,
    CancelledError,
    EngineError,
    ModelLoadError,
    PyllamaSpecError,
    UnsupportedError,
)
from tests.media_tools import KINDS, picture, projector, rows_of, seeing
from tests.models import model_path
from tests.models.projector import COLOUR_TOKENS, build_projector, colour_image
from tests.oracles import tiny, tiny_context


def shapes(parts: tuple[Part, ...]) -> list[int]:
    """The number of tokens of each part, negative for rows."""
    return [len(part) if isinstance(part, tuple) else -len(part.ids) for part in parts]


def test_parts() -> None:
    gemma = projector("gemma3").image(picture(40, 50))
    assert shapes(gemma) == [1, -16, 1]
    (rows,) = rows_of(gemma)
    assert rows.is_whole and rows.n_positions == 16
    assert np.array_equal(rows.positions, [np.arange(16)] * 3)
    tiles = projector("idefics3").image(picture(60, 64))
    assert [n for n in shapes(tiles) if n < 0] == [-16] * 5  # an overview and four tiles
    grid = projector("qwen3vl").image(picture(32, 48))
    (rows,) = rows_of(grid)
    assert shapes(grid) == [1, -24, 1] and rows.n_positions == 6 and not rows.is_whole
    assert np.array_equal(rows.positions[0], np.zeros(24))
    assert np.array_equal(rows.positions[1], np.arange(24) // 6)
    assert np.array_equal(rows.positions[2], np.arange(24) % 6)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_depend_on_the_picture(kind: str) -> None:
    one, again, other = (rows_of(projector(kind).image(picture(48, 48, s))) for s in (0, 0, 1))
    for a, b, c in zip(one, again, other, strict=True):
        assert a.rows.shape == (len(a.ids), seeing(kind).info.n_embd_inp)
        assert (np.isfinite(a.rows).all() and 0.1 < float(a.rows.std()) < 10) or kind == "colours"
        assert np.array_equal(a.rows, b.rows) and a.ids == b.ids
        assert not np.array_equal(a.rows, c.rows) and a.ids != c.ids


def test_the_model_reads_each_place() -> None:
    """The row of the last patch decides the next token; each row's logits know its colour."""
    colours = np.random.default_rng(1).integers(0, 8, (4, 5))
    (media,) = rows_of(projector("colours").image(colour_image(colours)))
    model = seeing("colours")
    n = len(media.ids)
    assert n == colours.size
    batch = Batch(n, n_row=model.info.n_embd_inp)
    with tiny_context(model) as context:
        batch.set_media(media.rows, media.positions, output_last=True)
        context.decode(batch)
        from_picture = int(context.logits(n - 1).argmax())
        tokens = Batch(1)
        tokens.add(COLOUR_TOKENS[colours[-1, -1]], n, output=True)
        context.decode(tokens)
        assert int(context.logits(0).argmax()) == from_picture
    assert np.array_equal(media.rows.argmax(axis=1), np.array(COLOUR_TOKENS)[colours.ravel()])


def test_each_row_of_a_whole_image_sees_all() -> None:
    """The first row's logits change with the last row, and only if the batch is whole."""
    (media,) = rows_of(projector("gemma3").image(picture(64, 64)))
    model = seeing("gemma3")
    n = len(media.ids)
    changed = media.rows.copy()
    changed[-1] *= -1

    def first_row(rows: Rows, *, is_whole: bool) -> Rows:
        layers = (model.info.n_layer,)
        with tiny_context(model, target_layers=layers) as context:
            batch = Batch(n, n_row=model.info.n_embd_inp)
            batch.set_media(rows, media.positions, is_whole=is_whole)
            context.decode(batch)
            rows = context.layer_input(layers[0])
            first: Rows = rows[:1].copy()
            return first

    whole = [first_row(rows, is_whole=True) for rows in (media.rows, changed)]
    causal = [first_row(rows, is_whole=False) for rows in (media.rows, changed)]
    assert not np.array_equal(whole[0], whole[1])
    assert np.array_equal(causal[0], causal[1])


def test_an_image_too_long_for_one_piece_is_refused() -> None:
    (media,) = rows_of(projector("gemma3").image(picture(64, 64)))
    model = seeing("gemma3")
    batch = Batch(16, n_row=model.info.n_embd_inp)
    batch.set_media(media.rows, media.positions, is_whole=True)
    with tiny_context(model, n_ubatch=8) as context, pytest.raises(ArgumentError):
        context.decode(batch)


def test_ids_say_where_media_begin_and_what_they_take() -> None:
    for n_rows, n_positions in ((1, 1), (2, 2), (24, 6), (300, 300)):
        ids = media_ids(b"one", n_rows, n_positions)
        assert len(set(ids)) == n_rows and max(ids) < 0 and min(ids) >= -(2**31)
        assert [begins_media(i) for i in ids] == [True] + [False] * (n_rows - 1)
        other = media_ids(b"two", n_rows, n_positions)
        assert all(a != b for i, (a, b) in enumerate(zip(ids, other, strict=True)) if i != 1)
        text = [5, *ids, *ids, 7, 8, *ids]
        n = n_rows
        assert list(media_runs(text)) == [
            MediaRun(at, n, n_positions) for at in (1, 1 + n, 3 + 2 * n)
        ]
        assert [is_media(i) for i in text].count(True) == 3 * n
        ends = [up_to_medium(text, k) for k in range(len(text) + 1)]
        inside = {k for at in (1, 1 + n, 3 + 2 * n) for k in range(at + 1, at + n)}
        assert [k for k, end in enumerate(ends) if end != k] == sorted(inside)


def test_a_picture_is_checked() -> None:
    eyes = projector("gemma3")
    floats: Any = np.zeros((4, 4, 3))
    for bad in (np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), floats):
        with pytest.raises(ArgumentError):
            eyes.image(bad)
    for shape in ((0, 4, 3), (4, 0, 3)):
        with pytest.raises(ArgumentError):
            eyes.image(np.zeros(shape, np.uint8))
    huge = np.broadcast_to(np.zeros((1, 1, 3), np.uint8), (1 << 14, 1 << 14, 3))
    with pytest.raises(ArgumentError):
        eyes.image(huge)
    with pytest.raises(UnsupportedError):
        projector("ultravox").image(picture(8, 8))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 999), (3000, 2), (33, 65), (700, 900)])
def test_any_size_is_read_or_refused(kind: str, shape: tuple[int, int]) -> None:
    try:
        parts = projector(kind).image(picture(*shape))
    except PyllamaSpecError:
        return
    assert rows_of(parts)


def test_cancel() -> None:
    model = seeing("qwen3vl")
    path = model_path("projector", family="qwen3vl", n_layer=2)
    with Projector(model, path, n_threads=1) as eyes:
        eyes.cancel()
        with pytest.raises(CancelledError):
            eyes.image(picture(32, 32))
        eyes.cancel(False)
        timer = threading.Timer(0.2, eyes.cancel)
        timer.start()
        with pytest.raises(CancelledError):
            eyes.image(picture(1000, 1000))
        eyes.cancel(False)
        assert rows_of(eyes.image(picture(32, 32)))


def test_a_projector_of_another_model_is_refused(tmp_path: Path) -> None:
    path = build_projector(tmp_path / "wide.gguf", family="gemma3", n_embd=96)
    with pytest.raises(ModelLoadError):
        Projector(seeing("gemma3"), path)
    with pytest.raises(ModelLoadError):
        Projector(tiny("llama"), tiny("llama").path)
    # Its vocabulary names none of the tokens that idefics3 puts around tiles.
    unnamed = Projector(tiny("llama"), model_path("projector", family="idefics3"), n_threads=1)
    with unnamed, pytest.raises(ModelLoadError):
        unnamed.image(picture(32, 32))


def test_a_damaged_projector_is_refused(tmp_path: Path) -> None:
    """Each of these ended the process, or was read with numbers that nobody wrote."""
    path = tmp_path / "eyes.gguf"
    for kind, key, value in (
        ("gemma3", "clip.projector_type", "mlp"), ("gemma3", "clip.projector_type", "gemma3nv"),
        ("colours", "clip.projector_type", "qwen3vl_merger"),
        ("gemma3", "clip.vision.patch_size", 0), ("qwen3vl", "clip.vision.spatial_merge_size", 0),
        ("qwen3vl", "clip.vision.spatial_merge_size", 1),
        ("idefics3", "clip.vision.image_size", 1 << 20), ("ultravox", "clip.audio.block_count", 0),
        ("ultravox", "clip.audio.num_mel_bins", 0),
    ):  # fmt: skip
        keys: dict[str, Any] = {key: value}
        build_projector(path, family=kind, n_embd=seeing(kind).info.n_embd, **keys)
        errors = (ModelLoadError, UnsupportedError, EngineError)
        with pytest.raises(errors), Projector(seeing(kind), path) as eyes:
            eyes.image(picture(32, 32))
    whole = model_path("projector", family="gemma3").read_bytes()
    for n in (len(whole) - 64, len(whole) // 2, 100, 0):
        path.write_bytes(whole[:n])
        with pytest.raises(ModelLoadError):
            Projector(seeing("gemma3"), path)


def test_a_projector_outlives_its_model() -> None:
    model = Model(seeing("gemma3").path)
    with Projector(model, model_path("projector", family="gemma3", seed=1), n_threads=1) as eyes:
        model.close()
        (rows,) = rows_of(eyes.image(picture(32, 32)))
        # A state that was saved with another projector has other rows.
        assert rows.ids != rows_of(projector("gemma3").image(picture(32, 32)))[0].ids
