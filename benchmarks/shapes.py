"""Writes random weights in the shapes of published models, to time rounds without a download.

    python -m benchmarks.shapes qwen3.5-4b OUT.gguf [--vocab 248320] [--layers 32]

The shapes: qwen3.5-4b and qwen3.5-9b with their MTP head, and llama-3.1-8b, with the types of
Q4_K_M. The weights are blocks of random bits with mean 0, so that gigabytes are written in
seconds.
"""

from __future__ import annotations

import argparse
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

from tests.models import TinyConfig, dense, hybrid, mtp, parts
from tests.models.keys import add_keys
from tests.models.sketch import Sketch
from tests.models.vocab import write_tokenizer

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Layout:
    """The places in a block: its scale, its minimum with a multiple (or None), its parts' scales.

    `std` is the standard deviation of its numbers at a scale of 1.
    """

    scale_at: int
    least: tuple[int, float] | None
    scales: tuple[int, bytes]
    std: float


def _part_scales(scale: int, least: int) -> bytes:
    """Twelve bytes in which eight parts have the same two numbers of six bits, as of Q4_K."""
    low = [(scale & 63) | (scale >> 4) << 6] * 4 + [(least & 63) | (least >> 4) << 6] * 4
    return bytes(low + [(scale & 15) | (least & 15) << 4] * 4)


# A part of Q4_K is scale * 32 * n - least * 60, n of 0 .. 15 and 7.5 on average; Q5_K likewise.
_LAYOUTS = {
    "Q4_K": _Layout(0, (2, 4.0), (4, _part_scales(32, 60)), 32 * 4.61),
    "Q5_K": _Layout(0, (2, 8.0), (4, _part_scales(32, 62)), 32 * 9.23),
    "Q6_K": _Layout(208, None, (192, bytes([4] * 16)), 4 * 18.47),
}


def blocks(shape: tuple[int, ...], kind: str, gain: float, seed: int) -> Bytes:
    """Random blocks [rows, bytes]: unit-RMS input gives RMS `gain` output."""
    layout, (n_weights, n_bytes) = _LAYOUTS[kind], GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    rows, columns = shape
    n = rows * columns // n_weights
    rng = np.random.Generator(np.random.SFC64(seed))
    bits = rng.integers(0, 2**64 - 1, n * n_bytes // 8 + 1, np.uint64, endpoint=True)
    out = bits.view(np.uint8)[: n * n_bytes].reshape(n, n_bytes)
    scale = gain / np.sqrt(columns) / layout.std
    _set_half(out, layout.scale_at, scale)
    if layout.least is not None:
        _set_half(out, layout.least[0], scale * layout.least[1])
    at, scales = layout.scales
    out[:, at : at + len(scales)] = np.frombuffer(scales, np.uint8)
    return out.reshape(rows, -1)


def _set_half(out: Bytes, at: int, value: float) -> None:
    out[:, at : at + 2] = np.frombuffer(struct.pack("<e", value), np.uint8)


class Shape(Sketch):
    """A sketch that stores only the shapes and gains of its matrices."""

    def __init__(self, cfg: TinyConfig) -> None:
        super().__init__(cfg)
        self.large: dict[str, tuple[tuple[int, ...], float]] = {}

    def matrix(self, name: str, *shape: int, gain: float = 1.0) -> None:
        """Stores a matrix's shape and gain; in attention the width is that of the queries."""
        cfg = self.cfg
        width = cfg.n_head * cfg.head_dim  # of the queries; may differ from n_embd
        if name.endswith("attn_q.weight"):
            shape = (shape[0] // cfg.n_embd * width, shape[1])
        elif name.endswith("attn_output.weight"):
            shape = (shape[0], width)
        self.large[name] = shape, gain

    def embedding(self, std: float = 1.0) -> None:
        """Stores the embedding's shape and gain."""
        cfg = self.cfg
        gain = std * float(np.sqrt(cfg.n_embd))
        self.large["token_embd.weight"] = (cfg.n_vocab, cfg.n_embd), gain

    def output(self, gain: float = 1.0, norm: str = "output_norm", *, bias: bool = False) -> None:
        """Adds the norm; stores the output's shape and gain."""
        self.norm(norm, self.cfg.n_embd, bias=bias)
        self.large["output.weight"] = (self.cfg.n_vocab, self.cfg.n_embd), gain

    def kind(self, name: str) -> str:
        """The type of a matrix in Q4_K_M."""
        if name in ("token_embd.weight", "output.weight"):
            return "Q6_K"
        if name.endswith("attn_qkv.weight"):
            return "Q5_K"
        n, layer = self.cfg.n_layer, int(name.split(".")[1])
        is_finer = layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2
        return "Q6_K" if is_finer and ("ffn_down" in name or "attn_v" in name) else "Q4_K"

    def write(self, path: Path) -> Path:
        """Writes the file, the large tensors one at a time; returns its path."""
        writer = GGUFWriter(path, self.cfg.arch)
        writer.add_name("random weights")
        add_keys(writer, self.meta)
        write_tokenizer(writer, self.cfg.n_vocab, None)
        for name, array in self.tensors.items():
            writer.add_tensor(name, array)
        for name, (shape, gain) in self.large.items():
            kind = self.kind(name)
            raw = blocks(shape, kind, gain, zlib.crc32(name.encode()))
            writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


@dataclass(frozen=True)
class _Sized(TinyConfig):
    """A shape whose head size does not depend on the width."""

    @property
    def head_dim(self) -> int:
        return 256


def qwen35(n_embd: int, n_ff: int, n_vocab: int, n_layer: int) -> Shape:
    """A Qwen3.5 with its MTP head, of 4B or 9B: of four layers three are gated delta nets."""
    m = Shape(
        _Sized(
            "qwen35", 0, n_layer, n_vocab, n_embd=n_embd, n_head=16, n_head_kv=4, n_ff=n_ff,
            attention_interval=4, n_heads=1, rope_freq_base=1e7,
        )
    )  # fmt: skip
    cfg = m.cfg
    state, k_heads, v_heads = 128, 16, 32
    parts.header(m)
    inner = state * v_heads
    m.add_keys(hybrid.ssm_sizes(m, inner=inner, state=state, rank=v_heads, groups=k_heads))
    m.key("full_attention_interval", cfg.attention_interval)
    m.key("attention.key_length", cfg.head_dim)
    m.key("attention.value_length", cfg.head_dim)
    m.key("rope.dimension_count", 64)
    m.key("rope.dimension_sections", [11, 11, 10, 0])
    m.embedding()
    for index, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "post_attention_norm")
        if (index + 1) % cfg.attention_interval == 0:
            hybrid.gated_attention(m, blk)
        else:
            hybrid.delta_net(m, blk, sizes=(state, k_heads, v_heads))
        parts.gated_ffn(m, blk)
    m.output()
    mtp.add_heads(m)
    return m


def llama_8b(n_vocab: int, n_layer: int) -> Shape:
    """The shape of Llama 3.1 8B."""
    m = Shape(
        TinyConfig(
            "llama", 0, n_layer, n_vocab, n_embd=4096, n_head=32, n_head_kv=8, n_ff=14336,
            rope_freq_base=5e5,
        )
    )  # fmt: skip
    dense.llama(m)
    return m


SHAPES: dict[str, tuple[Callable[[int, int], Shape], int, int]] = {
    "qwen3.5-4b": (partial(qwen35, 2560, 9216), 248320, 32),
    "qwen3.5-9b": (partial(qwen35, 4096, 12288), 248320, 32),
    "llama-3.1-8b": (llama_8b, 128256, 32),
}
"""Each shape's builder, vocabulary size, and number of layers."""


def main(argv: Sequence[str] | None = None) -> int:
    """Writes a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("path", type=Path)
    parser.add_argument("--vocab", type=int, help="ids [the model's]")
    parser.add_argument("--layers", type=int, help="layers [the model's]")
    args = parser.parse_args(argv)
    make, n_vocab, n_layer = SHAPES[args.shape]
    path = make(args.vocab or n_vocab, args.layers or n_layer).write(args.path)
    print(f"{path}: {path.stat().st_size / 1e9:.2f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
