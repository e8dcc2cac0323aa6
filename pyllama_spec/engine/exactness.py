"""The widest batch whose rows are bit-equal to those of single tokens.

Up to `FEW_ROWS` tokens the CPU backend computes each row in the order of a single one. This holds
for all weights, experts, attention, KV cache types, flash attention and splits into physical
batches, and beside other sequences: csrc/kernels/ and patches 0011, 0025 and 0027 ensure it, and
test_equal_rows.py and test_latent_rows.py of tests/parity test it.
This module excludes the cases that they do not cover.
"""

from __future__ import annotations

from pyllama_spec.engine.model import Model
from pyllama_spec.engine.system import devices, system_info

FEW_ROWS = 32  # FEW_ROWS of csrc/kernels/blocks.h
# Parts of a CPU build that take products for themselves: Intel's matrix unit, Arm's library. Our
# builds leave SVE and SME out, and our tests have not run the engine's kernels for them.
_OTHERS = ("AMX_INT8 = 1", "KLEIDIAI = 1", "SVE = 1", "SME = 1")


def exact_rows(model: Model, *, n_seq_max: int = 1, kv_unified: bool = False) -> int:
    """The widest batch whose rows are bit-equal to single ones; 1 if none is.

    Args:
        model: on a GPU, or with another library for matrix products, only 1 is guaranteed.
        n_seq_max: sequences of the context.
        kv_unified: whether the sequences share one buffer. Their cells interleave there, which
            changes the order of sums.
    """
    info = system_info()
    is_plain_cpu = not model.is_on_gpu and not any(name in info for name in _OTHERS)
    if not is_plain_cpu or any(device.name.startswith("BLAS") for device in devices()):
        return 1
    return 1 if kv_unified and n_seq_max > 1 else FEW_ROWS
