"""EAGLE-3 on a GPU: acceptance and numbers are those of the CPU.

The two norms of the head's first layer may run at the same time. A buffer that both were given once
made the draft's logits wrong now and then, which only many rounds show.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.drafters import Eagle3
from pyllama_spec.engine import Batch, Context, Model, supports_gpu
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.models import model_path, perm_continuation, perm_next
from tests.oracles import generate

Rows = npt.NDArray[np.float32]
N_ROUNDS = 1000


def test_there_is_a_gpu() -> None:
    assert supports_gpu(), "this build has no GPU backend; the tests here would prove nothing"


@pytest.mark.parametrize("n_draft", [1, 4, 16])
def test_perm_is_accepted_whole(n_draft: int) -> None:
    model = Model(model_path("perm"), n_gpu_layers=-1)
    drafter = Eagle3(model_path("perm_eagle3"), n_draft, n_gpu_layers=-1)
    context = Context(model, n_ctx=4096, target_layers=drafter.target_layers)
    loop = SpeculativeLoop(context, drafter)
    prompt = [int(i) for i in np.random.default_rng(1).integers(0, 256, size=100)]
    run = generate(loop, SequenceState(), prompt, 1 + 100 * (n_draft + 1))
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
    beside = Context(target, n_ctx=64)
    context = Context(model, target=beside, n_ctx=2048, is_window=True)
    info = model.info
    n_features = len(model.target_layers) * target.info.n_embd
    batch = Batch(64, n_row=n_features, n_model_row=info.n_embd_inp)
    step = Batch(1, n_row=info.n_embd, n_model_row=info.n_embd_inp)
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
    worst, first = 0.0, 0
    for _ in range(N_ROUNDS):
        n = int(rng.integers(1, 6))
        if first + n > 1500:
            first = 0
        tokens = [int(i) for i in rng.integers(0, 256, size=n)]
        chain = [int(i) for i in rng.integers(0, 256, size=4)]
        rows = rng.standard_normal((n, n_features), dtype=np.float32)
        cpu, gpu = (head.round(first, tokens, rows, chain) for head in heads)
        worst = max(worst, *(float(np.abs(a - b).max()) for a, b in zip(cpu, gpu, strict=True)))
        assert worst < 1e-2
        first += n
    print(f"{kind}: {N_ROUNDS} rounds, the largest difference of a logit is {worst:.2e}")
