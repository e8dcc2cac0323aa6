"""Images and sounds for a model that takes them, by the projector in its second file.

A projector makes rows of a picture or a sound, which the model reads in the place of tokens. In a
prompt each row has an id below 0, made of all rows: whatever compares tokens finds a prefix with
the same picture, and never one with another, or that another projector has read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine.binding import Handle, Owner, check, ffi, lib
from pyllama_spec.engine.checks import count
from pyllama_spec.engine.context import Rows
from pyllama_spec.engine.media_ids import media_ids
from pyllama_spec.engine.model import Model
from pyllama_spec.errors import ArgumentError, EngineError, ModelLoadError, UnsupportedError
from pyllama_spec.gguf.reader import GgufFile, GgufKey, read_gguf

# An image that is larger has to be scaled down before: the engine keeps several copies of it.
MAX_PIXELS = 1 << 26
# Of a sound: models read up to 25 rows of a second.
MAX_SECONDS = 1800
# Most are up to 1. The squares of much larger ones are no numbers.
_MAX_SAMPLE = 1e9
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
_MAX_VALUE, _MAX_SIDE, _MAX_LAYERS, _MAX_ROWS = 1 << 26, 1 << 12, 1 << 10, 1 << 15
_SIDES = ("patch_size", "image_size", "preproc_image_size", "num_mel_bins", "spatial_merge_size")
# The rows of these depend on how many images and tokens come before them in the prompt; gemma3nv's
# graph is not guarded against absent layers.
_REFUSED = (b"hunyuanvl", b"deepseek4v", b"gemma3nv")
# Tensors that the engine reads without a look at whether the file has them, by projector_type.
_NEEDED = {
    b"mlp": ("mm.2.weight",),
    b"gemma4v": ("v.position_embd.weight",),
    b"gemma4uv": ("v.position_embd.weight",),
    b"lfm2a": ("a.position_embd.weight",),
    b"qwen3a": ("a.position_embd.weight",),
    b"gemma4a": ("mm.a.input_projection.weight",),
}
# Encoders of sounds like Whisper's: the engine reads the first layer and positions unchecked.
_WHISPERS = (
    b"ultravox",
    b"qwen2a",
    b"qwen2.5o",
    b"voxtral",
    b"glma",
    b"meralion",
    b"musicflamingo",
)
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

    def part(self, first: int, n: int) -> MediaRows:
        """Rows first .. first + n - 1. Positions stay those of the whole."""
        end = first + n
        return replace(
            self, ids=self.ids[first:end], rows=self.rows[first:end],
            positions=self.positions[:, first:end],
        )  # fmt: skip


Samples = npt.NDArray[np.float32]
# How files of sounds begin: WAV, FLAC, MP3 with tags and without.
_SOUNDS = (b"RIFF", b"fLaC", b"ID3", *(bytes((0xFF, 0xE0 | i)) for i in range(32)))

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


class Prepared:
    """A picture or a sound, scaled and cut, of which no rows are computed yet.

    Attributes:
        n_tokens: the tokens and rows that it takes of a prompt.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        part = ffi.new("struct llama_spec_media_part *")
        self.n_tokens = 0
        for i in range(lib.llama_spec_media_n_parts(raw)):
            check(lib.llama_spec_media_get_part(raw, i, part), "cannot read it")
            self.n_tokens += int(part.n_rows)


class Projector(Owner):
    """The second file of a model that sees or hears, often called mmproj.

    It keeps the model's weights alive, so that they can be closed in any order. One thread at a
    time computes; others wait.

    Args:
        model: the model that the projector was made for.
        path: a GGUF of the architecture "clip".
        n_threads: the threads that compute; None for those of the machine's cores.
        use_gpu: whether it computes on a device, beside a model on one.
        image_min_tokens, image_max_tokens: bounds for the rows of an image, of projectors whose
            images may have any size; None for the file's own.

    Attributes:
        sees: whether it takes images.
        sample_rate: the samples of a second of a sound; 0 if it takes none.

    Raises:
        ModelLoadError: the file is missing, broken, or made for another model.
        UnsupportedError: it is of a kind that is not read here, or makes no rows of either.
    """

    def __init__(
        self,
        model: Model,
        path: str | os.PathLike[str],
        *,
        n_threads: int | None = None,
        use_gpu: bool = True,
        image_min_tokens: int | None = None,
        image_max_tokens: int | None = None,
    ) -> None:
        self.model, self.path = model, Path(path)
        self._lock = threading.Lock()
        _check_keys(self.path)
        self.memory_bytes = self.path.stat().st_size
        params = ffi.new("struct llama_spec_projector_params *")
        params.use_gpu = use_gpu and model.is_on_gpu
        params.image_min_tokens = count(image_min_tokens or 0, "image_min_tokens", 0, _MAX_ROWS)
        params.image_max_tokens = count(image_max_tokens or 0, "image_max_tokens", 0, _MAX_ROWS)
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
        sees = ffi.new("bool *")
        self.sample_rate = int(lib.llama_spec_projector_rate(out[0], sees))
        self.sees = bool(sees[0])

    def cancel(self, value: bool = True) -> None:
        """Cancels what another thread computes; False lets later calls run again."""
        lib.llama_spec_projector_cancel(self.handle, value)

    def image(self, pixels: npt.NDArray[np.uint8]) -> tuple[Part, ...]:
        """An image as parts of a prompt, in one call: see prepared_image() and computed()."""
        return self.computed(self.prepared_image(pixels))

    def audio(self, samples: Samples) -> tuple[Part, ...]:
        """A sound as parts of a prompt, in one call: see prepared_audio() and computed()."""
        return self.computed(self.prepared_audio(samples))

    def prepared_image(self, pixels: npt.NDArray[np.uint8]) -> Prepared:
        """An image, scaled and cut.

        Args:
            pixels: [height, width, 3] uint8, red, green, blue.

        Raises:
            ArgumentError: the array has another shape or too many pixels.
            UnsupportedError: the projector takes no images.
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
        if not self.sees:
            raise UnsupportedError(f"{self.path.name} takes no images")
        raw = ffi.from_buffer("uint8_t[]", np.ascontiguousarray(pixels))
        return self._prepared(lambda out: lib.llama_spec_media_image(
            self.handle, raw, width, height, out
        ))  # fmt: skip

    def prepared_audio(self, samples: Samples) -> Prepared:
        """A sound, as a spectrum in pieces.

        Args:
            samples: [n] float32, one channel at sample_rate, from -1 to 1.

        Raises:
            ArgumentError: the array has another shape, or is longer than MAX_SECONDS.
            UnsupportedError: the projector takes no sounds.
            CancelledError: cancel() was called.
        """
        if not self.sample_rate:
            raise UnsupportedError(f"{self.path.name} takes no sounds")
        most = MAX_SECONDS * self.sample_rate
        if samples.dtype != np.float32 or samples.ndim != 1 or not 2 <= samples.size <= most:
            raise ArgumentError(
                "samples", problem=f"are {samples.dtype} of shape {samples.shape}",
                expected=f"float32 of shape (n,), 2 to {most} numbers",
            )  # fmt: skip
        raw = ffi.from_buffer("float[]", np.ascontiguousarray(samples))
        return self._prepared(lambda out: lib.llama_spec_media_sound(
            self.handle, raw, samples.size, out
        ))  # fmt: skip

    def _prepared(self, prepare: Callable[[Any], int]) -> Prepared:
        out = ffi.new("llama_spec_media **")
        with self._lock:
            code = prepare(out)
            media = ffi.gc(out[0], lib.llama_spec_media_free)
            check(code, "cannot read it")
            return Prepared(media)

    def computed(self, prepared: Prepared) -> tuple[Part, ...]:
        """The parts of a prompt: the tokens around a picture or a sound, and its rows.

        Raises:
            CancelledError: cancel() was called.
        """
        raw = prepared._raw
        with self._lock:
            return tuple(self._part(raw, i) for i in range(lib.llama_spec_media_n_parts(raw)))

    def _part(self, media: Any, i: int) -> Part:
        raw = ffi.new("struct llama_spec_media_part *")
        check(lib.llama_spec_media_get_part(media, i, raw), "cannot read it")
        if raw.ids != ffi.NULL:
            return tuple(ffi.unpack(raw.ids, raw.n_rows))
        positions = np.zeros((3, raw.n_rows), np.int32)
        place = ffi.from_buffer("int32_t[]", positions)
        check(lib.llama_spec_media_positions(media, i, place), "cannot read it")
        rows = np.zeros((raw.n_rows, self.model.info.n_embd_inp), np.float32)
        code = lib.llama_spec_media_encode(media, i, ffi.from_buffer("float[]", rows))
        check(code, "cannot compute its rows")
        if not np.isfinite(rows).all():  # in the model's memory other texts would meet them
            raise EngineError("cannot compute its rows: some of them are no numbers")
        content = positions.tobytes() + rows.tobytes()
        ids = media_ids(content, raw.n_rows, raw.n_positions)
        return MediaRows(ids, rows, positions, raw.n_positions, raw.is_whole)


def decoded_audio(content: bytes, rate: int) -> Samples:
    """The samples of a WAV, FLAC or MP3 file, one channel at a rate.

    Raises:
        ArgumentError: it is damaged, of another kind, longer than MAX_SECONDS, or has more samples
            than two channels of 48,000 a second have in that time.
        UnsupportedError: the rate is 0, that of a projector that takes no sounds.
    """
    if not rate:
        raise UnsupportedError("the projector takes no sounds")
    if not content.startswith(_SOUNDS):
        raise ArgumentError(problem="is no sound", expected="a WAV, FLAC or MP3 file")
    # Pages of it are reserved as they are written.
    out = np.empty(MAX_SECONDS * rate, np.float32)
    raw = ffi.from_buffer("uint8_t[]", content)
    n = lib.llama_spec_sound(raw, len(content), rate, ffi.from_buffer("float[]", out), out.size)
    if n == -2:
        raise ArgumentError(problem="is too long", expected=f"at most {MAX_SECONDS} seconds")
    if n < 2:
        raise ArgumentError(problem="cannot be read as a sound", remedy="send a WAV, FLAC or MP3")
    samples: Samples = out[:n].copy()
    if not (np.abs(samples) < _MAX_SAMPLE).all():
        raise ArgumentError(problem="has samples that are no numbers, or too loud")
    return samples


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
            _check_tensors(file, key.value, is_vision="audio" not in name)


def _check_tensors(file: GgufFile, kind: bytes, *, is_vision: bool) -> None:
    """Refuses a kind that is not read here, and a file without tensors that the engine expects."""
    if kind in _REFUSED:
        raise UnsupportedError(f"{file.path.name}: projectors of type {kind!r:.60} are not read")
    merge = file.keys.get("clip.vision.spatial_merge_size")
    if kind in _MERGES_BY_TWO and merge is not None and merge.value != 2:
        raise ModelLoadError(
            f"{file.path} is damaged: it merges {merge.value!r:.60} patches, not 2"
        )
    needed: tuple[str, ...] = _NEEDED.get(kind, ())
    if kind in _WHISPERS and (not is_vision or kind != b"qwen2.5o"):
        n_layer = file.keys.get("clip.audio.block_count", GgufKey(0, None, 0)).value
        needed = ("a.position_embd.weight", f"a.blk.{n_layer - 1:.0f}.ln1.weight")
    for name in needed:
        if name not in file.tensors:
            raise ModelLoadError(f"{file.path} has no tensor {name}: download it again")


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
