"""Closing a target and its head frees their device memory.

The test counts bytes in use, not the process's size: a software device keeps compiled shaders, and
the C library keeps freed pages.
"""

from __future__ import annotations

import ctypes
import gc

import pytest

from pyllama_spec.drafters import Eagle3
from pyllama_spec.engine import Context, Model
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.models import model_path
from tests.oracles import generate

_N_OPENS = 4
_MAX_GROWTH = 1 << 20


class _MallInfo(ctypes.Structure):
    """struct mallinfo2 of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                     "uordblks", "fordblks", "keepcost")
    )  # fmt: skip


def _in_use() -> int:
    """Bytes of this process that were allocated and not freed."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _MallInfo
    usage = mallinfo()
    return int(usage.uordblks + usage.hblkhd)


def _open_and_close() -> None:
    with Model(model_path("perm"), n_gpu_layers=-1) as model:
        drafter = Eagle3(model_path("perm_eagle3"), 4, n_gpu_layers=-1)
        with Context(
            model, n_ctx=4096, n_threads=1, target_layers=drafter.target_layers
        ) as context:
            loop = SpeculativeLoop(context, drafter)
            generate(loop, SequenceState(), list(range(100)), 11)
        drafter.close()


@pytest.mark.posix
def test_what_is_closed_is_given_back() -> None:
    for _ in range(2):  # shaders are compiled and buffers of the driver's own made
        _open_and_close()
    before = _in_use()
    for _ in range(_N_OPENS):
        _open_and_close()
    grown = _in_use() - before
    print(f"{grown / _N_OPENS:.0f} bytes more for each open")
    assert grown < _MAX_GROWTH
