"""Images for a model that sees, by the projector in its second file.

A projector makes rows of a picture, which the model reads in the place of tokens. In a prompt each
row has an id below 0, made of all rows: whatever compares tokens finds a prefix with the same
picture, and never one with another, or that another projector has read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine.binding import Handle, Owner, check, ffi, lib
from pyllama_spec.engine.checks import count
from pyllama_spec.engine.context import Rows
from pyllama_spec.engine.media_ids import media_ids
from pyllama_spec.engine.model import Model
from pyllama_spec.errors import ArgumentError, ModelLoadError, UnsupportedError
from pyllama_spec.gguf.reader import GgufFile, GgufKey, read_gguf

# An image that is larger has to be scaled down before: the engine keeps several copies of it.
MAX_PIXELS = 1 << 26
# The engine divides by them, or loops for ever where they are 0.
_DIVISORS = (
    "patch_size", "image_size", "embedding_length", "attention.head_count", "spatial_merge_size",
    "projector.scale_factor", "projector.stack_factor", "preproc_image_size", "num_mel_bins",
    "attention.head_count_kv", "attention.head_dim", "window_size", "n_wa_pattern", "chunk_size",
    "subsampling_factor", "projector.window_size", "projector.downsample_rate",
    "projector.query_side", "projector.window_side", "local_group_size", "sam.head_count",
    "preproc_min_tiles", "preproc_max_tiles", "image_min_pixels", "image_max_pixels",
)  # fmt: skip
# What no real file exceeds: the engine reserves memory by them before it looks at a tensor.
_MAX_VALUE, _MAX_SIDE, _MAX_LAYERS = 1 << 26, 1 << 12, 1 << 10
_SIDES = ("patch_size", "image_size", "preproc_image_size", "num_mel_bins", "spatial_merge_size")
# The rows of these depend on how many images and tokens come before them in the prompt; gemma3nv's
# graph is not guarded against absent layers.
_REFUSED = (b"hunyuanvl", b"deepseek4v", b"gemma3nv")
# Tensors that the engine reads without a look at whether the file has them, by projector_type.
_NEEDED = {
    b"mlp": "mm.2.weight",
    b"gemma4v": "v.position_embd.weight",
    b"gemma4uv": "v.position_embd.weight",
}
# The engine merges 2 x 2 patches of these, whatever the file says, and writes as many positions.
_MERGES_BY_TWO = (b"qwen2vl_merger", b"qwen2.5vl_merger", b"qwen3vl_merger")


@dataclass(frozen=True, slots=True)
class MediaRows:
    """A run of rows, which the model reads in the place of tokens.

    Attributes:
        ids: an id below 0 for each row, made of rows and positions.
        rows: [n_rows, n_embd_inp] float32.
        positions: [3, n_rows] int32, less that of the run: in time, row, column.
        n_positions: the positions that the run takes of its sequence; with a grid, fewer than rows.
        is_whole: whether each row sees all the others, so that one decode has to take them.
    """

    ids: tuple[int, ...]
    rows: Rows
    positions: npt.NDArray[np.int32]
    n_positions: int
    is_whole: bool


# A part of a prompt: tokens, or rows.
Part = tuple[int, ...] | MediaRows


class PlacedRows(NamedTuple):
    """A run of rows, and where its ids begin in a prompt."""

    start: int
    media: MediaRows


def joined(parts: Sequence[Part]) -> tuple[tuple[int, ...], tuple[PlacedRows, ...]]:
    """The ids of a prompt of these parts, and where rows stand in it."""
    ids: list[int] = []
    placed: list[PlacedRows] = []
    for part in parts:
        if isinstance(part, MediaRows):
            placed.append(PlacedRows(len(ids), part))
            ids += part.ids
        else:
            ids += part
    return tuple(ids), tuple(placed)


class Projector(Owner):
    """The second file of a model that sees, often called mmproj.

    It keeps the model's weights alive, so that they can be closed in any order. One thread at a
    time computes; others wait.

    Args:
        model: the model that the projector was made for.
        path: a GGUF of the architecture "clip".
        n_threads: the threads that compute; None for those of the machine's cores.

    Raises:
        ModelLoadError: the file is missing, broken, or made for another model.
        UnsupportedError: it is of a kind that is not read here, or makes no rows of images.
    """

    def __init__(
        self,
        model: Model,
        path: str | os.PathLike[str],
        *,
        n_threads: int | None = None,
    ) -> None:
        self.model, self.path = model, Path(path)
        self._lock = threading.Lock()
        _check_keys(self.path)
        params = ffi.new("struct llama_spec_projector_params *")
        params.use_gpu = model.is_on_gpu
        params.n_threads = count(n_threads or os.cpu_count() or 1, "n_threads", 1, 512)
        out = ffi.new("llama_spec_projector **")
        code = lib.llama_spec_projector_load(model.handle, os.fsencode(self.path), params, out)
        try:
            check(code, f"cannot use {self.path} as a projector of {model.path.name}")
        except BaseException:
            lib.llama_spec_projector_free(out[0])
            raise
        self._handle = Handle(
            out[0], lib.llama_spec_projector_free, f"the projector {self.path} is closed"
        )

    def cancel(self, value: bool = True) -> None:
        """Cancels what another thread computes; False lets later calls run again."""
        lib.llama_spec_projector_cancel(self.handle, value)

    def image(self, pixels: npt.NDArray[np.uint8]) -> tuple[Part, ...]:
        """An image as parts of a prompt: the tokens around it, and its rows.

        Args:
            pixels: [height, width, 3] uint8, red, green, blue.

        Raises:
            ArgumentError: the array has another shape or too many pixels.
            CancelledError: cancel() was called.
        """
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
            raise ArgumentError(
                "pixels", problem=f"are {pixels.dtype} of shape {pixels.shape}",
                expected="uint8 of shape (height, width, 3)",
            )  # fmt: skip
        height, width = pixels.shape[:2]
        if height * width > MAX_PIXELS:
            raise ArgumentError("pixels", f"{width}x{height}", f"at most {MAX_PIXELS} pixels")
        data = np.ascontiguousarray(pixels)
        raw = ffi.from_buffer("uint8_t[]", data)
        out = ffi.new("llama_spec_media **")
        with self._lock:
            code = lib.llama_spec_media_image(self.handle, raw, width, height, out)
            media = ffi.gc(out[0], lib.llama_spec_media_free)
            check(code, "cannot read the image")
            n = lib.llama_spec_media_n_parts(media)
            return tuple(self._part(media, i) for i in range(n))

    def _part(self, media: Any, i: int) -> Part:
        raw = ffi.new("struct llama_spec_media_part *")
        check(lib.llama_spec_media_get_part(media, i, raw), "cannot read the image")
        if raw.ids != ffi.NULL:
            return tuple(ffi.unpack(raw.ids, raw.n_rows))
        positions = np.zeros((3, raw.n_rows), np.int32)
        place = ffi.from_buffer("int32_t[]", positions)
        check(lib.llama_spec_media_positions(media, i, place), "cannot read the image")
        rows = np.zeros((raw.n_rows, self.model.info.n_embd_inp), np.float32)
        code = lib.llama_spec_media_encode(media, i, ffi.from_buffer("float[]", rows))
        check(code, "cannot compute the rows of the image")
        content = positions.tobytes() + rows.tobytes()
        ids = media_ids(content, raw.n_rows, raw.n_positions)
        return MediaRows(ids, rows, positions, raw.n_positions, raw.is_whole)


def _check_keys(path: Path) -> None:
    """Refuses a projector with numbers that the engine takes without a check."""
    file = read_gguf(path, lambda name: name.startswith(("clip.", "general.arch")))
    arch = file.keys.get("general.architecture", GgufKey(0, None, b"")).value
    if arch != b"clip":
        raise ModelLoadError(
            f"{path} is not a projector: its architecture is {arch!r:.60}, not b'clip'; give the "
            "file that is published beside the model, often called mmproj"
        )
    for name, key in file.keys.items():
        _check_number(path, name, key)
        if name.endswith("projector_type"):
            _check_tensors(file, key.value)


def _check_tensors(file: GgufFile, kind: bytes) -> None:
    """Refuses a kind that is not read here, and a file without tensors that the engine expects."""
    if kind in _REFUSED:
        raise UnsupportedError(f"{file.path.name}: projectors of type {kind!r:.60} are not read")
    merge = file.keys.get("clip.vision.spatial_merge_size")
    if kind in _MERGES_BY_TWO and merge is not None and merge.value != 2:
        raise ModelLoadError(
            f"{file.path} is damaged: it merges {merge.value!r:.60} patches, not 2"
        )
    needed = _NEEDED.get(kind)
    if needed is not None and needed not in file.tensors:
        raise ModelLoadError(f"{file.path} has no tensor {needed}: download it again")


def _check_number(path: Path, name: str, key: GgufKey) -> None:
    """Refuses one key; see _check_keys()."""
    values = key.value if isinstance(key.value, list) else [key.value]
    leaf = name.removeprefix("clip.").partition(".")[2]
    for value in values:
        if type(value) is not int:
            continue
        most = _MAX_SIDE if leaf in _SIDES else _MAX_LAYERS if leaf == "block_count" else _MAX_VALUE
        least = 1 if leaf in _DIVISORS else -_MAX_VALUE
        if not least <= value <= most:
            raise ModelLoadError(
                f"{path} is damaged: {name} is {value}, and {least} .. {most} are read"
            )
