"""A model under construction: metadata and named tensors, then the GGUF file."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

from .config import TinyConfig
from .keys import add_keys, writing
from .vocab import SPECIAL_IDS, write_tokenizer

Array = NDArray[np.float32]
MetaValue = bool | int | float | str | list[int] | list[bool] | list[float]

# The factor on the output rows of control tokens: their logits stay near 0, far below the
# maximum over the ordinary tokens, but no row is exactly zero.
_SPECIAL_ROW_SCALE = 1.0 / 64.0


class Sketch:
    """Collects the keys and F32 tensors of one model.

    Shapes are NumPy's: a projection is `[n_out, n_in]` (the engine prints `{n_in, n_out}`).
    """

    def __init__(self, cfg: TinyConfig) -> None:
        """Start an empty model of configuration `cfg`."""
        self.cfg = cfg
        self.meta: dict[str, MetaValue] = {}
        self.tensors: dict[str, Array] = {}

    def key(self, suffix: str, value: MetaValue) -> None:
        self.meta[f"{self.cfg.arch}.{suffix}"] = value

    def add_keys(self, values: Mapping[str, MetaValue]) -> None:
        for suffix, value in values.items():
            self.key(suffix, value)

    def put(self, name: str, array: NDArray[np.floating]) -> None:
        if name in self.tensors:
            raise ValueError(f"tensor {name} added twice")
        self.tensors[name] = np.ascontiguousarray(array, dtype=np.float32)

    def rng(self, name: str) -> np.random.Generator:
        """The tensor's own generator.

        It depends on the tensor's name alone, so that a tensor keeps its values when other
        tensors come or go, and so that `perturb_layer` changes one layer and nothing else.
        """
        perturbed = self.cfg.perturb_layer is not None and name.startswith(
            f"blk.{self.cfg.perturb_layer}."
        )
        return np.random.default_rng([self.cfg.seed, zlib.crc32(name.encode()), int(perturbed)])

    def normal(self, name: str, *shape: int, std: float = 1.0, mean: float = 0.0) -> None:
        values = self.rng(name).standard_normal(shape, dtype=np.float32)
        self.put(name, values * np.float32(std) + np.float32(mean))

    def uniform(self, name: str, *shape: int, low: float, high: float) -> None:
        """Add a tensor of independent uniforms in `[low, high)`."""
        self.put(name, self.rng(name).uniform(low, high, shape))

    def matrix(self, name: str, *shape: int, gain: float = 1.0) -> None:
        """Add a projection `[..., n_out, n_in]`; unit-RMS input gives RMS `gain` output."""
        self.normal(name, *shape, std=gain / float(np.sqrt(shape[-1])))

    def norm(self, name: str, size: int, *, bias: bool = False) -> None:
        """Add a norm weight `[size]` near 1 (`name` lacks the `.weight`), and a bias if asked."""
        self.normal(f"{name}.weight", size, mean=1.0, std=0.1)
        if bias:
            self.normal(f"{name}.bias", size, std=0.1)

    def embedding(self, std: float = 1.0) -> None:
        """Add `token_embd.weight` `[n_vocab, n_embd]`."""
        self.normal("token_embd.weight", self.cfg.n_vocab, self.cfg.n_embd, std=std)

    def output(self, gain: float = 1.0, norm: str = "output_norm", *, bias: bool = False) -> None:
        """Add the final norm and an untied output matrix `[n_vocab, n_embd]`."""
        self.norm(norm, self.cfg.n_embd, bias=bias)
        shape = (self.cfg.n_vocab, self.cfg.n_embd)
        self.matrix("output.weight", *shape, gain=gain * self.cfg.output_scale)
        self._suppress("output.weight")

    def tied_output(self, row_norm: float, *, gain: float = 1.0) -> None:
        """Add the final norm of a model whose output matrix is its embedding matrix.

        `row_norm` is the expected length of an embedding row. The signs are random: with all
        of one sign, the current token's own row in the residual would win every argmax.
        """
        name = "output_norm.weight"
        signs = self.rng(name).choice([-1.0, 1.0], size=self.cfg.n_embd)
        self.put(name, signs * (gain * self.cfg.output_scale / row_norm))
        self._suppress("token_embd.weight")

    def _suppress(self, name: str) -> None:
        if self.cfg.suppress_special:
            self.tensors[name][list(SPECIAL_IDS)] *= np.float32(_SPECIAL_ROW_SCALE)

    def write(self, path: Path) -> Path:
        """Write the GGUF file; readers never see a half-written one under `path`."""
        with writing(path, self.cfg.arch) as writer:
            # not the architecture: the engine changes the tokenizer of models named phi3
            writer.add_name("tiny test model")
            writer.add_file_type(0)  # all tensors F32
            add_keys(writer, self.meta)
            write_tokenizer(
                writer, self.cfg.n_vocab, self.cfg.chat_template, self.cfg.control_names,
                shuffle=self.cfg.shuffle,
            )  # fmt: skip
            for name, array in self.tensors.items():
                kind = self._kind(name, array)
                if kind is None:
                    writer.add_tensor(name, array)
                else:
                    writer.add_tensor(name, _blocks(array, kind), raw_dtype=kind)
        return path

    def _kind(self, name: str, array: NDArray[Any]) -> GGMLQuantizationType | None:
        if not self.cfg.quantised or array.ndim < 2 or name.startswith("token_embd"):
            return None
        # F32: biases of experts, norms of heads, and operands of element-wise operations.
        if not name.endswith(".weight") or any(part in name for part in ("norm", "lerp", "_ape")):
            return None
        kind = GGMLQuantizationType[self.cfg.quantised]
        return None if array.shape[-1] % GGML_QUANT_SIZES[kind][0] else kind


# Byte offsets of a block's float16 values, as in ggml-common.h: random bytes may make NaN.
_SCALES_AT = {"Q4_K": (0, 2), "Q2_K": (80, 82)}


def _blocks(array: NDArray[Any], kind: GGMLQuantizationType) -> NDArray[np.uint8]:
    """An array in blocks of a type; random blocks if gguf has no quantiser for it."""
    try:
        return quantize(np.ascontiguousarray(array, np.float32), kind)
    except NotImplementedError:
        n_weights, n_bytes = GGML_QUANT_SIZES[kind]
        shape = (*array.shape[:-1], array.shape[-1] // n_weights, n_bytes)
        blocks = np.random.default_rng(array.size).integers(0, 256, shape, np.uint8)
        for at in _SCALES_AT.get(kind.name, (0,)):
            blocks[..., at : at + 2] = np.array([np.float16(2e-3)]).view(np.uint8)
        return blocks.reshape(*array.shape[:-1], -1)
