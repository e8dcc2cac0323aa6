"""The parts of a target that a head takes over: sizes, vocabulary, some weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine import ModelInfo
from pyllama_spec.gguf.reader import read_gguf
from pyllama_spec.gguf.values import read_floats
from pyllama_spec.train.errors import TrainError
from pyllama_spec.train.files import hash_file

Floats = npt.NDArray[np.float32]

# The defaults of models without the key, as in the engine (llama_model::load_hparams).
_ROPE_BASE, _RMS_EPS = 10000.0, 1e-5
_FF_WIDTHS = 3
# Their files call the last norm as others call the first one (llama-arch.cpp, OUTPUT_NORM_LFM2).
_LATE_EMBD_NORM = ("lfm2", "lfm2moe")


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """The parts of a target that initialise a head."""

    sha256: str  # the SHA-256 of the file
    embedding: Floats  # [n_vocab, n_embd] float32, as the engine reads its rows
    output: Floats  # [n_vocab, n_embd] float32: rows that give logits; the embedding if it is tied
    output_norm: Floats | None  # [n_embd] float32, or None
    rope_base: float  # the target's constants, also used for the head
    rms_eps: float
    # the width of the target's feed-forward blocks; with experts or several widths, three times
    # n_embd
    n_ff: int
    name: str  # the name of the model, for messages


def default_layers(n_layer: int, *, is_plain: bool = False) -> tuple[int, ...]:
    """The default layer inputs of a head.

    A plain head reads three: low, middle and high, as in the EAGLE-3 reference code. Ours read six:
    from the first one, which tells the token itself, so that attention finds where it occurred
    before, to the last layer's output. One more costs a product per token, none per drafted token.
    Models of fewer than 7 layers have no three that lie apart like this; theirs are the last ones.
    """
    if n_layer >= 7 and is_plain:
        return (2, n_layer // 2, n_layer - 3)
    if n_layer >= 7:
        quarters = [round(n_layer * share) for share in (0.25, 0.5, 0.75)]
        return tuple(sorted({1, *quarters, n_layer - 3, n_layer}))
    first = max(n_layer - 3, 0)
    return tuple(range(first, min(first + 3, n_layer + 1)))


def block_layers(n_layer: int) -> tuple[int, ...]:
    """The default for a draft of blocks: the last layer's input instead of its output.

    Stock llama.cpp refuses a DFlash draft that reads the output of the target's last layer.
    """
    layers = set(default_layers(n_layer)) - {n_layer}
    return tuple(sorted(layers | {n_layer - 1})) if n_layer > 1 else (0,)


def read_weights(path: Path, info: ModelInfo) -> TargetWeights:
    """Reads the parts from a target's file."""
    arch = info.arch
    file = read_gguf(path, lambda name: name.startswith((f"{arch}.", "general.name")))
    keys = file.keys

    def number(name: str, default: float) -> float:
        key = keys.get(f"{arch}.{name}")
        return float(key.value) if key is not None else default

    def floats(name: str) -> Floats | None:
        tensor = file.tensors.get(name)
        return None if tensor is None else read_floats(path, tensor)

    embedding = floats("token_embd.weight")
    if embedding is None or embedding.shape != (info.n_vocab, info.n_embd):
        shape = None if embedding is None else embedding.shape
        raise TrainError(
            f"{path.name} has no token_embd.weight of {info.n_vocab} x {info.n_embd} (found: "
            f"{shape}); if the model is split, give the merged file"
        )
    output = floats("output.weight")
    if output is None or output.shape != embedding.shape:
        output = embedding
    norm = floats("token_embd_norm.weight" if arch in _LATE_EMBD_NORM else "output_norm.weight")
    name = keys.get("general.name")
    n_ff = keys[f"{arch}.feed_forward_length"].value if f"{arch}.feed_forward_length" in keys else 0
    return TargetWeights(
        sha256=hash_file(path),
        embedding=embedding,
        output=output,
        output_norm=norm if norm is not None and norm.shape == (info.n_embd,) else None,
        rope_base=number("rope.freq_base", _ROPE_BASE),
        rms_eps=number("attention.layer_norm_rms_epsilon", _RMS_EPS),
        n_ff=n_ff if isinstance(n_ff, int) and n_ff > 0 else _FF_WIDTHS * info.n_embd,
        name=path.stem if name is None else name.value.decode("utf-8", "replace"),
    )
