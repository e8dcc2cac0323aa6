"""The cost of a step of an MTP head with the whole output matrix, and with a part of it.

    python -m benchmarks.mtp_output [--vocab 248320] [--type Q6_K] [--slots 8192 16384 32768]

The weights are random, in the shape of Qwen3.5-4B's head: width 2,560, feed-forward 9,216, Q4_K.
Times are processor time of one thread, the minimum of 25 steps, which other programs disturb least.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

from pyllama_spec.drafters.output_part import reduced_output
from pyllama_spec.engine import Batch, Context, Model
from tests.models import TinyConfig, mtp, recurrent
from tests.models.sketch import Sketch
from tests.models.vocab import write_tokenizer

WIDTH, N_STEPS = 2560, 25
# Offsets of a block's float16 scales, which random bits would make huge.
_SCALES_AT = {"Q4_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,), "Q8_0": (0,)}


class Shape(Sketch):
    """A sketch without its two largest matrices, which are added when the file is written."""

    def embedding(self, std: float = 1.0) -> None:
        """Adds nothing: see the class."""

    def output(self, gain: float = 1.0, norm: str = "output_norm", *, bias: bool = False) -> None:
        """Adds the norm only."""
        self.norm(norm, self.cfg.n_embd)


def blocks(shape: tuple[int, int], kind: str) -> npt.NDArray[np.uint8]:
    """Random blocks of a type, [rows, bytes], with small scales."""
    n_weights, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    size = (shape[0], shape[1] // n_weights, n_bytes)
    out = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    for at in _SCALES_AT[kind]:
        out[..., at : at + 2] = np.array([np.float16(2e-3)]).view(np.uint8)
    return out.reshape(shape[0], -1)


def write_model(path: Path, n_vocab: int, kind: str, n_layer: int = 2, interval: int = 2) -> None:
    """Writes a model and its head; `kind` is the type of the output matrix.

    One layer in `interval` has attention, the others have a gated delta net.
    """
    m = Shape(
        TinyConfig(
            "qwen35", 0, n_layer, n_vocab, n_embd=WIDTH, n_head=16, n_head_kv=4, n_ff=9216,
            state_size=128, state_heads=16, n_heads=1, attention_interval=interval,
        )
    )  # fmt: skip
    recurrent.qwen35(m)
    mtp.add_heads(m)
    write_quantised(m, path, {"token_embd.weight": "Q4_0", "output.weight": kind})


def write_quantised(m: Sketch, path: Path, matrices: Mapping[str, str]) -> None:
    """Writes a sketch, its matrices as random Q4_K blocks, and the matrices with a row for each id.

    Args:
        m: the sketch.
        path: the file to write.
        matrices: the types of the matrices with a row for each id, by name.

    """
    n_vocab = m.cfg.n_vocab
    writer = GGUFWriter(path, m.cfg.arch)
    writer.add_name("a head's shape")
    m._write_meta(writer)
    write_tokenizer(writer, n_vocab, None, (), shuffle=0)
    for name, array in m.tensors.items():
        is_matrix = array.ndim == 2 and "norm" not in name and "conv" not in name
        if is_matrix and array.shape[1] % 256 == 0:
            writer.add_tensor(
                name, blocks(array.shape, "Q4_K"), raw_dtype=GGMLQuantizationType.Q4_K
            )
        else:
            writer.add_tensor(name, array)
    for name, type_ in matrices.items():
        raw = GGMLQuantizationType[type_]
        writer.add_tensor(name, blocks((n_vocab, WIDTH), type_), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def least_ms(context: Context) -> float:
    """The minimum time of a step of the head: the decode, and reading its candidates."""
    batch, took = Batch(1, n_row=context.n_row), []
    row = np.random.default_rng(1).standard_normal(context.n_row).astype(np.float32)
    for i in range(N_STEPS):
        batch.clear()
        batch.add(65 + i, i, output=True, row=row)
        begin = time.thread_time()
        context.decode(batch)
        context.draft_candidates(0)
        took.append(time.thread_time() - begin)
    context.memory.remove(0)
    return 1e3 * min(took)


def seconds(what: Callable[[], object]) -> float:
    """The processor time of a call."""
    begin = time.thread_time()
    what()
    return time.thread_time() - begin


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the model, and prints a line for each number of slots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--vocab", type=int, default=248320)
    parser.add_argument("--type", choices=sorted(_SCALES_AT), default="Q6_K")
    parser.add_argument("--slots", type=int, nargs="+", default=[32768, 16384, 8192])
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "head.gguf"
        write_model(path, args.vocab, args.type)
        with (
            Model(path, load_mtp=True) as model,
            Context(
                model, n_ctx=64, n_batch=32, n_ubatch=32, n_threads=1, is_head=True
            ) as context,
        ):  # fmt: skip
            print(f"{args.type}, all {args.vocab} ids: {least_ms(context):.1f} ms a step")
            for n in args.slots:
                ids = None

                def prepare(n: int = n) -> None:
                    nonlocal ids
                    ids = reduced_output(context, n, model, lambda _: None)

                took = seconds(prepare)
                assert ids is not None
                new = seconds(lambda: ids.see(range(50000, 52000)))  # noqa: B023
                print(
                    f"{n} ids: {least_ms(context):.1f} ms a step, made ready in {took:.2f} s, "
                    f"{1e3 * new:.0f} ms for 2,000 new ids",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
