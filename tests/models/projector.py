"""Projectors: the second files of models that see, tiny ones.

Four are random: gemma3, whose rows of an image see each other; qwen3vl, whose rows have a place in
a grid; idefics3, which cuts an image into tiles; ultravox, which hears. One is constructed: of the
picture's colour it makes the row of one token.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .keys import add_keys, writing

Array = NDArray[np.floating[Any]]

# What the vocabulary of the model beside has to name, as TinyConfig.control_names.
CONTROL_NAMES = {
    "gemma3": ("<start_of_image>", "<end_of_image>"),
    "qwen3vl": ("<|vision_start|>", "<|vision_end|>"),
    "idefics3": ("\n\n", "\n", "<fake_token_around_image>", "<global-img>"),
    "colours": (),
    "ultravox": (),
}
COLOUR_TOKENS = tuple(range(ord("a"), ord("i")))
"""The tokens of the eight colours, black to white: red counts 1, green 2, blue 4."""
COLOUR_PATCH = 8
_TYPES = {"qwen3vl": "qwen3vl_merger", "colours": "phi4"}
_PATCH, _N_EMBD, _N_FF, _N_HEAD = 4, 32, 64, 2
_N_MEL, _STACK = 80, 4
# The side of an image as the encoder sees it; of idefics3 that of a tile.
_SIDES = {"gemma3": 64, "qwen3vl": 64, "idefics3": 32, "colours": 256}


def build_projector(
    path: Path, *, family: str, n_embd: int = 64, n_layer: int = 2, seed: int = 0, **extra: Any
) -> Path:
    """Write a projector of a family for a model with rows of n_embd numbers.

    `extra`: further keys, which replace those of the family.
    """
    place = "audio" if family == "ultravox" else "vision"
    if family == "ultravox":
        tensors = dict(_hearing(n_embd, n_layer))
    elif family == "colours":
        tensors, n_layer = dict(_colours(n_embd)), 0
    else:
        tensors = dict(_random(family, n_embd, n_layer, seed))
    own: dict[str, Any] = {
        "embedding_length": _N_EMBD, "feed_forward_length": _N_FF, "block_count": n_layer,
        "projection_dim": n_embd, "attention.head_count": _N_HEAD,
        "attention.layer_norm_epsilon": 1e-6,
    }  # fmt: skip
    if place == "vision":
        own |= {
            "image_size": _SIDES[family], "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
            "patch_size": COLOUR_PATCH if family == "colours" else _PATCH,
        }  # fmt: skip
    own |= {
        "gemma3": {"projector.scale_factor": 4}, "qwen3vl": {"spatial_merge_size": 2},
        "idefics3": {"projector.scale_factor": 2, "preproc_image_size": 64},
        "colours": {"image_min_pixels": 64, "image_max_pixels": 65536},
        "ultravox": {"num_mel_bins": _N_MEL, "projector.stack_factor": _STACK},
    }[family]  # fmt: skip
    keys: dict[str, Any] = {
        f"clip.has_{place}_encoder": True, "clip.use_gelu": True,
        "clip.projector_type": _TYPES.get(family, family),
        **{f"clip.{place}.{name}": value for name, value in own.items()}, **extra,
    }  # fmt: skip
    with writing(path, "clip") as writer:
        add_keys(writer, keys)
        for name, array in tensors.items():
            writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    return path


Draw = Callable[..., tuple[str, Array]]


def _drawing(seed: int) -> Draw:
    """Draws random tensors: matrices whose rows make numbers of unit size."""

    def draw(name: str, *shape: int, std: float = 0.0, mean: float = 0.0) -> tuple[str, Array]:
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        values = rng.standard_normal(shape, dtype=np.float32)
        std = std or (0.1 if len(shape) == 1 else shape[-1] ** -0.5)
        return name, values * np.float32(std) + np.float32(mean)

    return draw


def _blocks(draw: Draw, place: str, n_layer: int, *parts: str) -> Iterator[tuple[str, Array]]:
    """The layers of an encoder of pictures ("v") or sounds ("a")."""
    for i in range(n_layer):
        blk = f"{place}.blk.{i}."
        for part in (*parts, "attn_out"):
            width = _N_EMBD * (3 if part == "attn_qkv" else 1)
            scale = 1.0 if place == "v" and part == "attn_out" else 1.5
            yield draw(f"{blk}{part}.weight", width, _N_EMBD, std=scale * _N_EMBD**-0.5)
            if place == "v" or part != "attn_k":
                yield draw(f"{blk}{part}.bias", width)
        for part, *shape in (("ffn_up", _N_FF, _N_EMBD), ("ffn_down", _N_EMBD, _N_FF)):
            yield draw(f"{blk}{part}.weight", *shape)
            yield draw(f"{blk}{part}.bias", shape[0])
        for norm in ("ln1", "ln2"):
            yield draw(f"{blk}{norm}.weight", _N_EMBD, mean=1.0)
            yield draw(f"{blk}{norm}.bias", _N_EMBD)


def _hearing(n_embd: int, n_layer: int) -> Iterator[tuple[str, Array]]:
    """Tensors of a random encoder like Whisper's, of pieces of 30 s, and Ultravox's projector."""
    draw = _drawing(0)
    for i, n in ((1, _N_MEL), (2, _N_EMBD)):
        yield draw(f"a.conv1d.{i}.weight", _N_EMBD, n, 3, std=0.1)
        yield draw(f"a.conv1d.{i}.bias", _N_EMBD, 1, std=0.1)
    yield draw("a.position_embd.weight", 1500, _N_EMBD, std=0.3)
    yield from _blocks(draw, "a", n_layer, "attn_q", "attn_k", "attn_v")
    yield draw("a.post_ln.weight", _N_EMBD, mean=1.0)
    yield draw("a.post_ln.bias", _N_EMBD)
    yield draw("mm.a.norm_pre.weight", _N_EMBD * _STACK, mean=1.0)
    yield draw("mm.a.mlp.1.weight", 2 * _N_FF, _N_EMBD * _STACK)
    yield draw("mm.a.norm_mid.weight", _N_FF, mean=1.0)
    yield draw("mm.a.mlp.2.weight", n_embd, _N_FF)


def _random(family: str, n_embd: int, n_layer: int, seed: int) -> Iterator[tuple[str, Array]]:
    """Tensors of a random encoder whose rows have unit length per number."""
    draw = _drawing(seed)
    side = _SIDES[family] // _PATCH
    yield draw("v.patch_embd.weight", _N_EMBD, 3, _PATCH, _PATCH, std=0.3)
    yield draw("v.patch_embd.bias", _N_EMBD, std=0.3)
    yield draw("v.position_embd.weight", side * side, _N_EMBD, std=0.7)
    yield draw("v.post_ln.weight", _N_EMBD, mean=1.0)
    yield draw("v.post_ln.bias", _N_EMBD)
    parts = ("attn_qkv",) if family == "qwen3vl" else ("attn_q", "attn_k", "attn_v")
    yield from _blocks(draw, "v", n_layer, *parts)
    if family == "gemma3":
        yield draw("mm.input_projection.weight", _N_EMBD, n_embd, std=_N_EMBD**-0.5)
        yield draw("mm.soft_emb_norm.weight", _N_EMBD, mean=1.0)
    elif family == "idefics3":
        yield draw("mm.model.fc.weight", n_embd, 4 * _N_EMBD)
    else:
        yield draw("v.patch_embd.weight.1", _N_EMBD, 3, _PATCH, _PATCH, std=0.3)
        yield draw("mm.0.weight", 4 * _N_EMBD, 4 * _N_EMBD)
        yield draw("mm.0.bias", 4 * _N_EMBD)
        yield draw("mm.2.weight", n_embd, 4 * _N_EMBD, std=1.5 * (4 * _N_EMBD) ** -0.5)
        yield draw("mm.2.bias", n_embd)


def _colours(n_embd: int) -> Iterator[tuple[str, Array]]:
    """Tensors without layers: each patch of 8x8 pixels becomes the one-hot row of its colour.

    A channel of a patch is -1 .. 1. Unit k adds the three channels with the signs of colour k: 3
    where they are its own, at most 1 elsewhere.
    """
    signs = np.array([[1.0 if k >> c & 1 else -1.0 for c in range(3)] for k in range(8)])
    patch = np.zeros((_N_EMBD, 3, COLOUR_PATCH, COLOUR_PATCH))
    for channel in range(3):
        patch[channel, channel] = 1.0 / COLOUR_PATCH**2
    into, out = np.zeros((_N_FF, _N_EMBD)), np.zeros((n_embd, _N_FF))
    into[:8, :3] = 20.0 * signs
    out[list(COLOUR_TOKENS), range(8)] = 1.0 / 20.0
    side = _SIDES["colours"] // COLOUR_PATCH
    yield "v.patch_embd.weight", patch
    yield "v.patch_embd.bias", np.zeros(_N_EMBD)
    yield "v.position_embd.weight", np.zeros((side * side, _N_EMBD))
    yield "mm.0.weight", into
    yield "mm.0.bias", np.where(np.arange(_N_FF) < 8, -40.0, 0.0)
    yield "mm.2.weight", out
    yield "mm.2.bias", np.zeros(n_embd)


def colour_image(colours: NDArray[np.int64]) -> NDArray[np.uint8]:
    """An image of patches of colours `[n_y, n_x]`: uint8 `[8 n_y, 8 n_x, 3]`."""
    channels = np.stack([(colours >> c & 1) * 255 for c in range(3)], axis=-1)
    grown = channels.repeat(COLOUR_PATCH, 0).repeat(COLOUR_PATCH, 1)
    return grown.astype(np.uint8)
