"""EAGLE-3 on a device has the CPU's acceptance and numbers, for any placement.

The two norms of the head's first layer may run at the same time. If they share a buffer, the
draft's logits are sometimes wrong, which only many rounds show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.drafters import Eagle3
from pyllama_spec.engine import Batch, Context, Model, supports_gpu
from pyllama_spec.engine.system import devices
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.models import model_path, perm_continuation, perm_next
from tests.oracles import generate

Rows = npt.NDArray[np.float32]
# One of software computes some rounds per second; what many rounds would find are faults of others.
IS_SOFTWARE = any("llvmpipe" in device.description for device in devices())
N_ROUNDS = 25 if IS_SOFTWARE else 1000
N_CHAINS = 5 if IS_SOFTWARE else 100
# Threads of the CPU beside it would wait for those that it computes with.
N_THREADS = 1 if IS_SOFTWARE else None
# Of the largest logit of a row: what other kernels and other orders of summing change as a rule,
# and at most. Of thousands of rows one may be near the second; another pair's row is far beyond.
USUAL_BOUND, LOGIT_BOUND = 5e-3, 5e-2

ALL, NONE, SOME = -1, 0, 1


def test_there_is_a_gpu() -> None:
    assert supports_gpu(), "this build has no GPU backend; the tests here would prove nothing"


@pytest.mark.parametrize("n_draft", [1, 4, 16])
def test_perm_is_accepted_whole(n_draft: int) -> None:
    model = Model(model_path("perm"), n_gpu_layers=-1)
    drafter = Eagle3(model_path("perm_eagle3"), n_draft, n_gpu_layers=-1)
    context = Context(model, n_ctx=4096, n_threads=N_THREADS, target_layers=drafter.target_layers)
    loop = SpeculativeLoop(context, drafter)
    prompt = [int(i) for i in np.random.default_rng(1).integers(0, 256, size=100)]
    check_whole(loop, prompt, n_draft)


@pytest.mark.parametrize(
    ("target", "head", "options"),
    [
        (ALL, NONE, {}),
        (NONE, ALL, {}),
        (SOME, ALL, {}),
        (SOME, NONE, {}),
        (ALL, ALL, {"offload_kqv": False}),
        (ALL, ALL, {"flash_attn": True}),
        (ALL, ALL, {"flash_attn": False}),
        (SOME, NONE, {"op_offload": True}),
    ],
)
def test_perm_is_accepted_whole_in_every_placement(
    target: int, head: int, options: dict[str, Any]
) -> None:
    model = Model(model_path("perm"), n_gpu_layers=target)
    assert sum(n for name, n in model.placement.items() if name != "CPU") == (
        model.info.n_layer + 1 if target == ALL else target
    )
    drafter = Eagle3(model_path("perm_eagle3"), 4, n_gpu_layers=head)
    context = Context(
        model, n_ctx=4096, n_threads=N_THREADS, target_layers=drafter.target_layers, **options
    )
    prompt = [int(i) for i in np.random.default_rng(1).integers(0, 256, size=100)]
    check_whole(SpeculativeLoop(context, drafter), prompt, 4)


def check_whole(loop: SpeculativeLoop, prompt: list[int], n_draft: int) -> None:
    """The text is the permutation's, and all that was drafted is accepted."""
    run = generate(loop, SequenceState(), prompt, 1 + N_CHAINS * (n_draft + 1))
    assert run.tokens == perm_continuation(prompt[-1], len(run.tokens), perm_next())
    assert run.stats.accepted == run.stats.drafted > 0


@dataclass
class Head:
    """A head on one device, fed with rows directly."""

    context: Context
    batch: Batch
    step: Batch

    def round(self, first: int, tokens: list[int], rows: Rows, chain: list[int]) -> list[Rows]:
        """Feeds pairs from position `first` on, then a chain of own rows; the logits of each."""
        self.context.memory.rollback(0, first)
        self.batch.clear()
        self.batch.extend(tokens, first, rows=[rows], output_last=True)
        self.context.decode(self.batch)
        row = self.context.draft_candidates(len(tokens) - 1)[2]
        out = [self.context.logits(len(tokens) - 1).copy()]
        for i, token in enumerate(chain):
            self.step.clear()
            self.step.add(token, first + len(tokens) + i, row=row, output=True)
            self.context.decode(self.step)
            row = self.context.draft_candidates(0)[2]
            out.append(self.context.logits(0).copy())
        return out


def opened(draft: str, n_gpu_layers: int) -> Head:
    """A head and its target on a device."""
    target = Model(model_path("llama"), n_gpu_layers=n_gpu_layers)
    model = Model(draft, n_gpu_layers=n_gpu_layers)
    beside = Context(target, n_ctx=64, n_threads=N_THREADS)
    context = Context(model, target=beside, n_ctx=2048, n_threads=N_THREADS, is_window=True)
    info = model.info
    n_features = len(model.target_layers) * target.info.n_embd
    batch = Batch(64, n_row=n_features, n_model_row=context.n_row)
    step = Batch(1, n_row=info.n_embd, n_model_row=context.n_row)
    step.hidden_rows = True
    return Head(context, batch, step)


@pytest.mark.parametrize("kind", ["plain", "eagle3.1", "gated"])
def test_draft_logits_are_the_cpus(kind: str) -> None:
    options: dict[str, dict[str, bool]] = {
        "plain": {}, "eagle3.1": {"fc_norm": True, "norm_output": True},
        "gated": {"output_gate": True, "qk_norm": True},
    }  # fmt: skip
    draft = str(model_path("eagle3", **options[kind]))
    heads = [opened(draft, 0), opened(draft, -1)]
    rng = np.random.default_rng(3)
    n_features = heads[0].batch.n_row
    differences: list[float] = []
    others: list[float] = []  # between rows that belong to other tokens
    first = 0
    for _ in range(N_ROUNDS):
        n = int(rng.integers(1, 6))
        if first + n > 1500:
            first = 0
        tokens = [int(i) for i in rng.integers(0, 256, size=n)]
        chain = [int(i) for i in rng.integers(0, 256, size=4)]
        rows = rng.standard_normal((n, n_features), dtype=np.float32)
        cpu, gpu = (head.round(first, tokens, rows, chain) for head in heads)
        differences += [difference(a, b) for a, b in zip(cpu, gpu, strict=True)]
        others += [difference(a, b) for a, b in zip(cpu[1:], gpu, strict=False)]
        first += n
    usual, worst = float(np.median(differences)), max(differences)
    print(
        f"{kind}: {N_ROUNDS} rounds, logits differ by {usual:.2e} of a row's largest one, and by "
        f"{worst:.2e} at most; those of other rows by {min(others):.2e} at least"
    )
    assert usual < USUAL_BOUND
    assert worst < LOGIT_BOUND < min(others)


def difference(expected: Rows, got: Rows) -> float:
    """The largest difference over the largest magnitude: logits of random heads are 26 and more."""
    return float(np.abs(expected - got).max() / np.abs(expected).max())


@pytest.mark.parametrize("n_rows", [1, 5, 64])
def test_layer_rows_are_the_cpus(n_rows: int) -> None:
    prompt = [int(i) for i in np.random.default_rng(5).integers(0, 256, size=n_rows)]
    rows = []
    for n_gpu_layers in (NONE, ALL):
        model = Model(model_path("llama"), n_gpu_layers=n_gpu_layers)
        context = Context(model, n_ctx=128, n_threads=N_THREADS, target_layers=[0, 1])
        batch = Batch(64)
        batch.extend(prompt, 0)
        context.decode(batch)
        rows.append(np.concatenate([context.layer_input(i) for i in (0, 1)]))
    cpu, device = rows
    norm = float(np.linalg.norm(cpu - device) / np.linalg.norm(cpu))
    print(f"{n_rows} rows: layer inputs differ by {norm:.2e} of their norm")
    assert norm < 1e-2
