"""The module equals docs/eagle3.md: against the NumPy reference, and against the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pyllama_spec.drafters import Eagle3
from pyllama_spec.engine import Model
from pyllama_spec.gguf.target import read_target
from pyllama_spec.train.corpus.selection import Sample
from pyllama_spec.train.kinds.eagle3 import Eagle3Head, HeadShape, initialise
from pyllama_spec.train.run.chains import Pairs, run_chains
from pyllama_spec.train.run.export import export_head
from pyllama_spec.train.run.head import DraftHead
from pyllama_spec.train.run.objective import SoftCrossEntropy, draft_losses
from pyllama_spec.train.run.target_weights import TargetWeights, read_weights
from pyllama_spec.train.run.texts import Texts
from tests.models import model_path
from tests.parity.eagle3_reference import Reference
from tests.train.chains import logits_of_steps, random_texts

Floats = npt.NDArray[np.float32]
N_VOCAB, N_EMBD, N_DRAFT = 320, 64, 96
SHAPE = HeadShape(
    n_vocab=N_VOCAB, n_draft_vocab=N_DRAFT, n_embd=N_EMBD,
    target_layers=(1, 2, 3), n_head=4, n_head_kv=2, n_ff=96, is_plain=False, rope_base=10000.0,
    rms_eps=1e-5,
)  # fmt: skip
SHAPES = {
    "eagle-3.1": SHAPE,
    "plain": replace(SHAPE, is_plain=True),
    "two layers, all heads": replace(SHAPE, target_layers=(0, 4), n_head_kv=4),
}


def random_head(shape: HeadShape, seed: int = 3) -> Eagle3Head:
    """A head for the tiny llama with random weights, norms too."""
    weights = weights_of(model_path("llama"))
    head = Eagle3Head(shape, weights.embedding, some_ids(seed))
    initialise(head, weights, unit_sample(len(shape.target_layers)), seed)
    change_at_random(head, seed)
    return head


def weights_of(path: Path) -> TargetWeights:
    """What training reads of a target."""
    with Model(path) as model:
        return read_weights(path, model.info)


def some_ids(seed: int) -> npt.NDArray[np.int64]:
    """The target's id of each draft id."""
    return np.sort(np.random.default_rng(seed).permutation(N_VOCAB)[:N_DRAFT]).astype(np.int64)


def change_at_random(head: DraftHead, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            scale = 0.3 if parameter.ndim == 1 else parameter.shape[1] ** -0.5
            parameter += scale * torch.randn(parameter.shape, generator=generator)


def unit_sample(n_layers: int, n_embd: int = N_EMBD) -> Sample:
    """Statistics of layer inputs of unit size."""
    none, ones = np.zeros((0, n_embd), np.float32), np.ones(n_layers * n_embd, np.float32)
    return Sample(none, np.zeros(0, np.int64), none, ones[:n_layers], ones)


def unit_weights(embedding: Floats, output: Floats) -> TargetWeights:
    """A target without a last norm."""
    return TargetWeights("", embedding, output, None, 10000.0, 1e-5, 96, "test")


def export(head: Eagle3Head, folder: Path, kind: str = "f32") -> Path:
    path, record = folder / "head.gguf", {"command": "pyllama-spec train", "tokens": 12}
    export_head(
        head, read_target(model_path("llama")), path, arch="eagle3", name="test", n_ctx=512,
        export_type=kind, record=record,
    )  # fmt: skip
    return path


def all_steps(head: Eagle3Head, texts: Texts, n_steps: int) -> dict[tuple[int, int], Floats]:
    """Logits by start and depth."""
    return logits_of_steps(head, texts, run_chains(head, texts, n_steps))


@pytest.mark.parametrize("name", SHAPES)
def test_chains_are_the_steps_of_inference(name: str, tmp_path: Path) -> None:
    """Every step of every chain equals a head that makes that chain alone, step by step."""
    head = random_head(SHAPES[name])
    reference = Reference(export(head, tmp_path), model_path("llama"))
    texts = random_texts([9, 5, 12], len(head.shape.target_layers) * N_EMBD)
    n_steps = 4
    got = all_steps(head, texts, n_steps)
    tokens, rows = texts.tokens.tolist(), texts.features.numpy()
    n_compared, first = 0, 0
    for length in texts.lengths:
        for start in range(length - 2):
            reference.truncate(0)
            for p in range(start + 1):  # pairs of features
                token = tokens[first + p + 1]
                logits, own = reference.step(token, rows[first + p], p, own=False)
            for depth in range(n_steps):
                if depth:
                    token = tokens[first + start + depth + 1]
                    logits, own = reference.step(token, own, start + depth, own=True)
                if start + depth + 2 >= length:
                    assert (first + start, depth) not in got
                    break
                np.testing.assert_allclose(got[first + start, depth], logits, atol=2e-4)
                n_compared += 1
        first += length
    assert n_compared == len(got) > 50


@pytest.mark.parametrize("missed_share", [1.0, 0.4, 0.0])
def test_the_loss_is_the_mean_over_all_steps_of_chains_that_live(missed_share: float) -> None:
    """The loss equals a sum over single chains; right picks continue, and a share of wrong ones."""
    head, texts = random_head(SHAPE), random_texts([60, 60], 3 * N_EMBD)
    rng, n_steps, decay = np.random.default_rng(2), 3, 0.8
    n = len(texts.tokens)
    texts.target_ids = torch.from_numpy(np.stack([rng.permutation(N_DRAFT)[:4] for _ in range(n)]))
    texts.target_p = torch.from_numpy(rng.dirichlet(np.ones(5), n)[:, :4].astype(np.float32))
    logits = all_steps(head, texts, n_steps)
    picked = {key: int(head.d2t[int(row.argmax())]) for key, row in logits.items()}
    for (start, depth), token in picked.items():  # so that many picks are right
        if depth == 0 and start % 2:
            texts.tokens[start + 2] = token
    logits = all_steps(head, texts, n_steps)
    drawn = torch.Generator().manual_seed(9)
    losses = draft_losses(
        head, run_chains(head, texts, n_steps), texts, n_steps, torch.float32, missed_share,
        torch.Generator().manual_seed(9),
    )  # fmt: skip
    total, mass, living = 0.0, 0.0, set(texts.starts.tolist())
    n_right = n_wrong = 0
    for depth in range(n_steps):
        here = [s for s in texts.starts.tolist() if s in living and (s, depth) in logits]
        lucky = (torch.rand(len(here), generator=drawn) < missed_share).tolist()
        for start, is_drawn in zip(here, lucky, strict=True):
            row, at = torch.from_numpy(logits[start, depth]).double(), start + depth + 1
            p, log_q = texts.target_p[at], torch.log_softmax(row, -1)[texts.target_ids[at]]
            total -= decay**depth * float((p * log_q).sum())
            mass += decay**depth * float(p.sum())
            is_right = int(head.d2t[int(row.argmax())]) == int(texts.tokens[at + 1])
            n_right, n_wrong = n_right + is_right, n_wrong + (not is_right)
            if not (is_right or is_drawn):
                living.discard(start)
    assert min(n_right, n_wrong) > 20
    assert float(losses.total.detach()) == pytest.approx(total / mass, rel=1e-4)


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_every_type_of_file_is_loaded_by_the_drafter(kind: str, tmp_path: Path) -> None:
    path = export(random_head(SHAPE), tmp_path, kind)
    with Model(model_path("llama")) as model, Eagle3(path) as drafter:
        drafter.model.check_draft_of(model)
        assert drafter.target_layers == (1, 2, 3)
        assert drafter.model.metadata["pyllama_spec.train.tokens"] == "12"


@pytest.mark.parametrize("rank", [0, 5])
def test_the_loss_has_the_value_and_the_gradient_of_its_formula(rank: int) -> None:
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    n, n_vocab = 300, 50
    y, output = random(n, 12), random(n_vocab, 12)
    low, bias = (random(n, rank), random(n_vocab, rank)) if rank else (None, None)
    p = torch.softmax(random(n, 4), -1) * torch.rand(n, 1, generator=generator)
    p[:, 3] = 0
    ids = torch.stack([torch.randperm(n_vocab, generator=generator)[:4] for _ in range(n)])
    ids[:, 3] = 0  # one that cannot be drafted; it may be twice there
    scale = random(n)
    inputs = [x.requires_grad_() for x in (y, low, bias) if x is not None]
    targets = (ids, p, torch.float64)
    by_row, best = SoftCrossEntropy.apply(y, output, low, bias, *targets)
    gradients = torch.autograd.grad((scale * by_row).sum(), inputs)
    logits = y @ output.T
    if low is not None and bias is not None:
        logits = logits + low @ bias.T
    expected_q = torch.log_softmax(logits, -1)
    rows = -(p * expected_q.gather(1, ids)).sum(-1)
    by_formula = torch.autograd.grad((scale * rows).sum(), inputs)
    torch.testing.assert_close(by_row.double(), rows, rtol=1e-5, atol=1e-5)
    assert (best == logits.argmax(-1)).all()
    for a, b in zip(gradients, by_formula, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


def test_a_chain_ends_after_a_token_that_cannot_be_drafted() -> None:
    head = random_head(SHAPE)
    texts = random_texts([10], 3 * N_EMBD)
    assert sorted(depth for start, depth in all_steps(head, texts, 4) if start == 2) == [0, 1, 2, 3]
    texts.in_vocab[5] = False  # what step 1 from position 2 is to predict
    assert sorted(depth for start, depth in all_steps(head, texts, 4) if start == 2) == [0, 1]


def test_a_head_begins_with_what_the_target_was_about_to_say() -> None:
    """Without its own layer, its logits equal the target's output for the last feature."""
    weights = weights_of(model_path("llama"))
    assert weights.output_norm is not None
    head = Eagle3Head(SHAPE, weights.embedding, np.arange(N_DRAFT, dtype=np.int64))
    initialise(head, weights, unit_sample(3), 1)
    with torch.no_grad():
        head.weight("fc.weight").copy_(torch.eye(64).repeat(1, 3) * torch.tensor([0, 0, 1.0])
                                       .repeat_interleave(64))  # fmt: skip
        head.weight("blk.0.attn_output.weight").zero_()
        head.weight("blk.0.ffn_down.weight").zero_()
        rows = torch.randn(5, 192, generator=torch.Generator().manual_seed(1))
        _, y = head.finish(Pairs(head.rows_of(rows), rows), torch.zeros(5, 4, 16))
        h = rows[:, 128:]
        normed = h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        rows = torch.from_numpy(weights.output[:N_DRAFT] * weights.output_norm)
        expected = torch.log_softmax(normed @ rows.T, -1)
        got = torch.log_softmax(head.logits(y, torch.zeros(0)), -1)
        cosine = torch.cosine_similarity(
            got - got.mean(-1, keepdim=True), expected - expected.mean(-1, keepdim=True)
        )
    assert (cosine > 0.999).all()


@pytest.mark.parametrize("arch", ["qwen35", "lfm2"])
def test_the_targets_last_norm_is_found(arch: str) -> None:
    """LFM2 files use the name that others use for the norm of the embedding."""
    weights = weights_of(model_path(arch))
    assert weights.output_norm is not None
    assert 0 < np.abs(weights.output_norm - 1).max() < 1
