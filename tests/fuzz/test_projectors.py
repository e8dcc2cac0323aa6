"""Projectors of strangers: each type that can be built small is used, or refused by our errors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pyllama_spec.engine import Model
from pyllama_spec.engine.media import Projector
from pyllama_spec.errors import ModelLoadError
from tests.fuzz import runner
from tests.fuzz.gguf_bytes import GgufFile, Value
from tests.fuzz.mutated import mutate
from tests.media_tools import picture, sound
from tests.models import model_path
from tests.models.projector import CONTROL_NAMES
from tests.tiers import release_except

# Widths of a row, of a layer's inside, of the model's rows, and of four rows as one.
_N, _FF, _OUT, _FOUR = 32, 64, 64, 128
_PATCH, _SIDE, _N_LAYER, _MELS = 4, 32, 2, 80
_SIZES = {
    "image_size": _SIDE, "patch_size": _PATCH, "projector.scale_factor": 2, "window_size": 16,
    "spatial_merge_size": 2, "image_min_pixels": 256, "image_max_pixels": 4096,
    "preproc_image_size": 64, "preproc_min_tiles": 1, "preproc_max_tiles": 4,
}  # fmt: skip
_NAMES = (*CONTROL_NAMES["gemma3"], *CONTROL_NAMES["qwen3vl"], *CONTROL_NAMES["idefics3"],
          "<image>", "</image>", "<|image_start|>", "<|image_end|>", "[IMG_BREAK]", "[IMG_END]",
          "<img>", "</img>", "<|begin_of_image|>", "<|end_of_image|>", "<|audio_bos|>",
          "<|audio_eos|>", "<|audio_start|>", "<|audio_end|>", "<|begin_of_audio|>",
          "<|end_of_audio|>", "[BEGIN_AUDIO]", "<sound>", "</sound>", "<|audio|>", "<audio|>"
)  # fmt: skip


def _linear(place: str, n_in: int, n_out: int, *, bias: bool = True) -> dict[str, tuple[int, ...]]:
    weight: dict[str, tuple[int, ...]] = {f"{place}.weight": (n_in, n_out)}
    return {**weight, f"{place}.bias": (n_out,)} if bias else weight


def _norm(place: str, n: int, *, bias: bool = True) -> dict[str, tuple[int, ...]]:
    return {f"{place}.weight": (n,), **({f"{place}.bias": (n,)} if bias else {})}


_MERGER = {**_linear("mm.0", _FOUR, _FOUR), **_linear("mm.2", _FOUR, _OUT)}
_NORMED = {**_norm("mm.input_norm", _N), **_MERGER}
_KIMI = {
    **_norm("mm.input_norm", _N), **_linear("mm.1", _FOUR, _FOUR), **_linear("mm.2", _FOUR, _OUT)
}  # fmt: skip
_LFM = {**_KIMI, **_norm("mm.input_norm", _FOUR)}
_PIXTRAL = {
    "mm.patch_merger.weight": (_FOUR, _N), "v.token_embd.img_break": (_OUT,),
    **_norm("mm.input_norm", _N, bias=False),
    **_linear("mm.1", _N, _OUT), **_linear("mm.2", _OUT, _OUT),
}  # fmt: skip
# The tensors behind the layers, by projector_type.
KINDS: dict[str, dict[str, tuple[int, ...]]] = {
    "mlp": {**_linear("mm.0", _N, _OUT), **_linear("mm.2", _OUT, _OUT)},
    "qwen2vl_merger": _MERGER, "qwen2.5vl_merger": _MERGER, "qwen3vl_merger": _MERGER,
    "ling3vl": _NORMED, "dots_ocr": {**_norm("mm.post_norm", _N), **_NORMED},
    "gemma3": {"mm.input_projection.weight": (_OUT, _N), "mm.soft_emb_norm.weight": (_N,)},
    "gemma4v": {"mm.input_projection.weight": (_N, _OUT)},
    "phi4": {**_linear("mm.0", _N, _FF), **_linear("mm.2", _FF, _OUT)},
    "idefics3": _linear("mm.model.fc", _FOUR, _OUT, bias=False),
    "pixtral": _PIXTRAL,
    "internvl": {
        **_norm("mm.model.mlp.0", _FOUR), **_linear("mm.model.mlp.1", _FOUR, _OUT),
        **_linear("mm.model.mlp.3", _OUT, _OUT),
    },
    "lfm2": _LFM, "d1omni_v": _LFM, "kimivl": _KIMI, "paddleocr": _KIMI, "kimik25": _KIMI,
    "janus_pro": {**_linear("mm.0", _N, _OUT), **_linear("mm.1", _OUT, _OUT)},
    "cogvlm": {
        **_linear("mm.model.fc", _N, _OUT, bias=False), **_norm("mm.post_fc_norm", _OUT),
        **_linear("mm.up", _OUT, _FF, bias=False), **_linear("mm.gate", _OUT, _FF, bias=False),
        **_linear("mm.down", _FF, _OUT, bias=False), "v.boi": (_OUT,), "v.eoi": (_OUT,),
    },
}  # fmt: skip


def _mlp(*layers: tuple[int, int, int], bias: bool = True) -> dict[str, tuple[int, ...]]:
    """Layers behind an encoder of sounds: their places, and widths."""
    return {
        name: shape
        for i, n_in, n_out in layers
        for name, shape in _linear(f"mm.a.mlp.{i}", n_in, n_out, bias=bias).items()
    }


_TO_OUT = (2, _FF, _OUT)
# Those of projectors that hear.
SOUNDS: dict[str, dict[str, tuple[int, ...]]] = {
    "ultravox": {
        **_norm("mm.a.norm_pre", _FOUR, bias=False), **_norm("mm.a.norm_mid", _FF, bias=False),
        **_mlp((1, _FOUR, 2 * _FF), _TO_OUT, bias=False),
    },
    "voxtral": _mlp((1, 2 * _N, _FF), _TO_OUT, bias=False),
    "qwen2a": _linear("mm.a.fc", _N, _OUT),
    "qwen3a": {
        **{f"a.conv2d.{i}.weight": (3, 3, 1 if i == 1 else 8, 8) for i in (1, 2, 3)},
        **{f"a.conv2d.{i}.bias": (8,) for i in (1, 2, 3)}, "a.conv_out.weight": (_MELS, _N),
        **_mlp((1, _N, _FF), _TO_OUT),
    },
    "meralion": {
        **_norm("mm.a.norm_pre", _FOUR),
        **_mlp((0, _FOUR, _FF), (1, _FF, _FF), (2, _FF, _FF), (3, _FF, _OUT)),
    },
    "musicflamingo": _mlp((1, _N, _FF), _TO_OUT),
    "glma": {
        **_norm("mm.a.norm_pre", _N), **_mlp((1, _FOUR, _FF), _TO_OUT),
        "v.boi": (_OUT,), "v.eoi": (_OUT,),
    },
    "gemma4ua": {"mm.a.input_projection.weight": (640, _OUT)},
}  # fmt: skip
_JOINED = ("qwen3vl_merger", "cogvlm", "kimik25", "dots_ocr")
_GATED = ("pixtral", "gemma4v", "dots_ocr", "qwen2.5vl_merger")
_MORE_PATCHES = ("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "ling3vl")
_WITHOUT_BIAS = ("qwen2vl_merger", "qwen2.5vl_merger")
_WITH_CLASS = ("internvl", "cogvlm")


def projector(kind: str) -> GgufFile:
    """A sound file of a type."""
    hears = kind in SOUNDS
    name, place = ("audio", "a") if hears else ("vision", "v")
    sizes = {
        "embedding_length": _N, "feed_forward_length": _FF, "block_count": _N_LAYER,
        "projection_dim": _OUT, "attention.head_count": 2,
        **({"num_mel_bins": _MELS, "projector.stack_factor": 2 if kind == "voxtral" else 4}
           if hears else _SIZES), **({"n_wa_pattern": 2} if kind == "qwen2.5vl_merger" else {}),
    }  # fmt: skip
    keys = {
        "general.architecture": Value("str", "clip"), "clip.projector_type": Value("str", kind),
        f"clip.has_{name}_encoder": Value("bool", True), "clip.use_gelu": Value("bool", True),
        f"clip.{name}.attention.layer_norm_epsilon": Value("f32", 1e-6),
        **{f"clip.{name}.{key}": Value("u32", value) for key, value in sizes.items()},
    }  # fmt: skip
    tensors: dict[str, tuple[int, ...]] = _norm(f"{place}.post_ln", _N)
    if hears:
        tensors["a.position_embd.weight"] = (_N, 1500)
        for i, n_in in ((1, _MELS), (2, _N)) if kind != "qwen3a" else ():
            tensors |= {f"a.conv1d.{i}.weight": (3, n_in, _N), f"a.conv1d.{i}.bias": (1, _N)}
    else:
        keys |= {f"clip.vision.image_{one}": Value("[f32]", [0.5] * 3) for one in ("mean", "std")}
        tensors |= _patches(kind)
    for i in range(_N_LAYER):
        block = f"{place}.blk.{i}"
        names = ("attn_qkv",) if kind in _JOINED else ("attn_q", "attn_k", "attn_v")
        for name in names:
            bias = not (hears and name == "attn_k")
            tensors |= _linear(f"{block}.{name}", _N, 3 * _N // len(names), bias=bias)
        tensors |= _linear(f"{block}.attn_out", _N, _N) | _linear(f"{block}.ffn_up", _N, _FF)
        tensors |= _linear(f"{block}.ffn_down", _FF, _N)
        tensors |= _norm(f"{block}.ln1", _N) | _norm(f"{block}.ln2", _N)
        if kind in _GATED:
            tensors |= _linear(f"{block}.ffn_gate", _N, _FF, bias=False)
    return GgufFile(keys, tensors | {**KINDS, **SOUNDS}[kind])


def _patches(kind: str) -> dict[str, tuple[int, ...]]:
    n_places = (_SIDE // _PATCH) ** 2 + (kind in _WITH_CLASS)
    patches = (_PATCH, _PATCH, 3, _N)
    tensors: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": patches,
        "v.position_embd.weight": (_N, 64, 2) if kind == "gemma4v" else (_N, n_places),
    }
    if kind not in _WITHOUT_BIAS:
        tensors["v.patch_embd.bias"] = (_N,)
    if kind in _WITH_CLASS:
        tensors["v.class_embd"] = (_N,)
    if kind in _MORE_PATCHES:
        tensors["v.patch_embd.weight.1"] = patches
    return tensors


def use(path: Path) -> None:
    text = model_path("llama", control_names=_NAMES)
    with Model(text) as model, Projector(model, path, n_threads=1) as eyes:
        if not eyes.sees:
            eyes.audio(sound(0.7))
        else:
            for size in ((40, 50), (33, 65)):
                eyes.image(picture(*size))


def changed(kind: str) -> Iterator[tuple[str, GgufFile]]:
    """Files without a tensor or with another shape of it, and with other numbers in a key."""
    whole = projector(kind)
    for name, shape in whole.tensors.items():
        others = {one: size for one, size in whole.tensors.items() if one != name}
        yield f"without {name}", GgufFile(whole.keys, others)
        for other in ((1,), tuple(max(1, n // 2) for n in shape), tuple(2 * n for n in shape)):
            yield f"{name} {other}", GgufFile(whole.keys, {**others, name: other})
    for name, value in whole.keys.items():
        others_keys = {one: content for one, content in whole.keys.items() if one != name}
        yield f"without {name}", GgufFile(others_keys, whole.tensors)
        if value.kind == "u32":
            for number in (0, 1, 3, 7, 1 << 15, 1 << 20, 2**31 - 1, 2**32 - 1):
                keys = {**others_keys, name: Value("u32", number)}
                yield f"{name}={number}", GgufFile(keys, whole.tensors)
        elif value.kind == "[f32]":
            yield (
                f"{name} of one",
                GgufFile({**others_keys, name: Value("[f32]", [1.0])}, whole.tensors),
            )


@pytest.mark.parametrize("kind", [*KINDS, *SOUNDS])
def test_a_sound_one(kind: str, tmp_path: Path) -> None:
    model_path("llama", control_names=_NAMES)  # once, not in each case
    end = runner.run(partial(use, projector(kind).write(tmp_path / "a.gguf")))
    assert end.kind == "fine", end


@pytest.mark.parametrize("kind", ["lfm2a", "gemma4a"])
def test_the_width_of_one_that_hears(kind: str, tmp_path: Path) -> None:
    """The engine takes it from a tensor without a look at whether it is there."""
    keys = {**projector("mlp").keys, "clip.projector_type": Value("str", kind)}
    with pytest.raises(ModelLoadError, match="has no tensor"):
        use(GgufFile(keys, {}).write(tmp_path / "a.gguf"))


@pytest.mark.parametrize("kind", release_except([*KINDS, *SOUNDS], ["gemma4v", "qwen2a"]))
def test_changed_ones(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    for what, file in changed(kind):
        assert (end := runner.run(partial(use, file.write(path)))).is_allowed, (what, end)


@pytest.mark.parametrize("kind", release_except([*KINDS, *SOUNDS], ["mlp", "qwen2.5vl_merger"]))
def test_bytes_changed(kind: str, tmp_path: Path) -> None:
    draw, path = random.Random(kind), tmp_path / "a.gguf"
    whole = projector(kind).write(path).read_bytes()
    for i in range(100):
        path.write_bytes(mutate(bytearray(whole), draw))
        assert (end := runner.run(partial(use, path))).is_allowed, (i, end)
