"""Drafts beside EAGLE-3 on a device: heads and blocks that know PERM, and states that go back.

PERM accepts nothing if there is one row too many or too few. After a rollback of a state, the next
row is compared with that of a context which never went further.
"""

from __future__ import annotations

import numpy as np
import pytest

from pyllama_spec.drafters import DFlash, Drafter, Mtp
from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.engine.system import devices
from pyllama_spec.gguf.reader import read_key
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.models import STATES, model_path, perm_continuation, perm_next
from tests.models.mtp import SEVERAL
from tests.mtp_tools import ARCHS
from tests.oracles import generate

IS_SOFTWARE = any("llvmpipe" in device.description for device in devices())
N_CHAINS = 3 if IS_SOFTWARE else 40
N_THREADS = 1 if IS_SOFTWARE else None
# Of the largest logit of a row; the state behind another token gives a row of other numbers.
LOGIT_BOUND = 3e-2
# Architecture, heads in the file, drafted tokens.
HEADS = [(arch, 1, n) for arch in ARCHS for n in (1, 4)] + [(arch, 3, 3) for arch in SEVERAL]
# With layers on a device these write no snapshots.
WITHOUT_SNAPSHOTS = ("mamba", "jamba", "rwkv7")


def is_computed(arch: str) -> bool:
    """Whether the device computes an architecture.

    Mesa's software device (22.3) corrupts the memory of the process when the engine computes routed
    experts on it, without a draft too.
    """
    return not IS_SOFTWARE or read_key(model_path(arch), f"{arch}.expert_count") is None


def check_whole(model: Model, drafter: Drafter, n_draft: int) -> None:
    """The text is the permutation's, and all that was drafted is accepted."""
    context = Context(
        model, n_ctx=1024, n_rs_seq=n_draft + 2, n_threads=N_THREADS,
        target_layers=drafter.target_layers,
    )  # fmt: skip
    prompt = [int(i) for i in np.random.default_rng(1).integers(0, 256, size=50)]
    n = 1 + N_CHAINS * (n_draft + 1)
    run = generate(SpeculativeLoop(context, drafter), SequenceState(), prompt, n)
    assert run.tokens == perm_continuation(prompt[-1], len(run.tokens), perm_next())
    assert run.stats.accepted == run.stats.drafted > 0
    assert run.stats.rounds == N_CHAINS
    drafter.close()


@pytest.mark.parametrize(
    ("arch", "n_heads", "n_draft"), [head for head in HEADS if is_computed(head[0])]
)
def test_perm_is_accepted_whole_by_its_heads(arch: str, n_heads: int, n_draft: int) -> None:
    several = {"n_heads": n_heads} if n_heads > 1 else {}
    model = Model(model_path("perm_mtp", arch=arch, **several), load_mtp=True, n_gpu_layers=-1)
    check_whole(model, Mtp(max_draft=n_draft), n_draft)


@pytest.mark.parametrize("target", [-1, 0, 1])
@pytest.mark.parametrize("draft", [-1, 0])
def test_perm_is_accepted_whole_by_a_block(target: int, draft: int) -> None:
    model = Model(model_path("perm"), n_gpu_layers=target)
    check_whole(model, DFlash(model_path("perm_dflash"), 4, n_gpu_layers=draft), 4)


@pytest.mark.parametrize("n_keep", [1, 3, 5])
@pytest.mark.parametrize("arch", [arch for arch in STATES if is_computed(arch)])
def test_states_go_back(arch: str, n_keep: int) -> None:
    """After keeping n_keep of six tokens of a batch, and then one more token."""
    model = Model(model_path(arch), n_gpu_layers=-1)
    ids = [int(i) for i in np.random.default_rng(7).integers(0, 256, size=31)]
    rows = []
    for n_more in (6, n_keep):
        context = Context(model, n_ctx=128, n_rs_seq=8, n_threads=N_THREADS)
        for begin, end in ((0, 24), (24, 24 + n_more)):
            _decode(context, ids[begin:end], begin)
        if n_more == 6:
            went = context.memory.rollback(0, 24 + n_keep)
            assert went == (arch not in WITHOUT_SNAPSHOTS)
            if not went:
                return
        _decode(context, [5], 24 + n_keep)
        rows.append(context.logits(0).copy())
    worst = float(np.abs(rows[0] - rows[1]).max() / np.abs(rows[1]).max())
    print(f"{arch}, {n_keep} of 6 kept: logits differ by {worst:.1e} of the largest one")
    assert worst < LOGIT_BOUND


def _decode(context: Context, ids: list[int], at: int) -> None:
    batch = Batch(64)
    batch.extend(ids, at, output_last=True)
    context.decode(batch)
