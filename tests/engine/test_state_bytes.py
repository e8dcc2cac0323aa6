"""The reported size of recurrent states, before allocation, equals the real size."""

from __future__ import annotations

import pytest

from pyllama_spec.engine import Context
from tests.models import STATES, STATES_WITHOUT_SNAPSHOTS
from tests.oracles import tiny

PAD = 4096  # buffers are rounded up


@pytest.mark.parametrize("arch", STATES)
def test_bytes_of_snapshots(arch: str) -> None:
    model = tiny(arch)

    def opened(n_seq_max: int, n_rs_seq: int) -> int:
        with Context(
            model, n_ctx=64 * n_seq_max, n_batch=64, n_ubatch=32, n_threads=1,
            n_seq_max=n_seq_max, n_rs_seq=n_rs_seq,
        ) as context:  # fmt: skip
            assert context.n_rs_seq == (0 if arch in STATES_WITHOUT_SNAPSHOTS else n_rs_seq)
            return context.memory_bytes

    assert model.info.state_bytes > 0
    for n_seq_max in (1, 4):
        without = opened(n_seq_max, 0)
        for n_rs_seq in (1, 4, 8):
            more = 0 if arch in STATES_WITHOUT_SNAPSHOTS else n_rs_seq
            extra = opened(n_seq_max, n_rs_seq) - without
            said = model.info.snapshot_bytes(n_seq_max, more) - model.info.snapshot_bytes(
                n_seq_max, 0
            )
            assert abs(extra - said) < PAD
        if model.info.is_recurrent:
            assert abs(without - model.info.snapshot_bytes(n_seq_max, 0)) < PAD


def test_a_memory_of_positions_has_no_state() -> None:
    assert tiny("llama").info.state_bytes == 0
    assert tiny("llama").info.snapshot_bytes(4, 8) == 0
