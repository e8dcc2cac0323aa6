"""A DFlash draft's blocks equal the NumPy reference, and each slot sees only what it should."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pyllama_spec.engine import Model
from pyllama_spec.gguf.target import read_target
from pyllama_spec.train.kinds.dflash import (
    DFlashHead,
    DFlashShape,
    block_rows,
    choose_mask_token,
    initialise,
    run_blocks,
)
from pyllama_spec.train.run.export import export_head
from pyllama_spec.train.run.objective import by_expected_length, count_accepted, draft_losses
from pyllama_spec.train.run.target_weights import read_weights
from pyllama_spec.train.run.texts import Texts
from tests.models import model_path
from tests.parity.dflash_reference import Reference
from tests.train.chains import random_texts
from tests.train.test_head import N_DRAFT, N_EMBD, N_VOCAB

MASK = 301
SHAPE = DFlashShape(
    n_vocab=N_VOCAB, n_draft_vocab=N_DRAFT, n_embd=N_EMBD,
    target_layers=(1, 2, 3), n_head=4, n_head_kv=2, n_ff=96, rope_base=10000.0, rms_eps=1e-5,
    n_layer=2, block_size=5, mask_token=MASK, markov_rank=0,
)  # fmt: skip
MARKOV = replace(SHAPE, markov_rank=8)
SHAPES = {
    "two layers": SHAPE,
    "three layers, all heads": replace(SHAPE, n_layer=3, n_head_kv=4, target_layers=(0, 4)),
    "followers": MARKOV,
    "followers, one layer": replace(MARKOV, n_layer=1, block_size=3),
}


def random_head(shape: DFlashShape, seed: int = 3) -> DFlashHead:
    """A draft for the tiny llama with random weights, norms too."""
    path = model_path("llama")
    with Model(path) as model:
        weights = read_weights(path, model.info)
    d2t = np.sort(np.random.default_rng(seed).permutation(N_VOCAB)[:N_DRAFT]).astype(np.int64)
    head = DFlashHead(shape, weights.embedding, d2t)
    rms = np.ones(len(shape.target_layers) * N_EMBD, np.float32)
    initialise(head, weights.output, weights.output_norm, rms, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            scale = 0.3 if parameter.ndim == 1 else parameter.shape[1] ** -0.5
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return head


def export(head: DFlashHead, folder: Path, kind: str = "f32") -> Path:
    path, target = folder / "draft.gguf", read_target(model_path("llama"))
    export_head(
        head, target, path, arch="dflash", name="test", n_ctx=512, export_type=kind, record={},
        keys={"tokenizer.ggml.mask_token_id": MASK},
    )  # fmt: skip
    return path


def texts_for(shape: DFlashShape, lengths: list[int]) -> Texts:
    return random_texts(lengths, len(shape.target_layers) * N_EMBD)


@pytest.mark.parametrize("name", SHAPES)
def test_blocks_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    """Every slot of every block agrees, with followers along the draft's own picks."""
    shape = SHAPES[name]
    head, texts = random_head(shape), texts_for(shape, [9, 5, 12])
    reference = Reference(export(head, tmp_path), model_path("llama"))
    with torch.no_grad():
        rows = block_rows(head, texts)
    tokens, features, first, block = texts.tokens.tolist(), texts.features.numpy(), 0, 0
    d2t = head.d2t.numpy()
    for length in texts.lengths:
        for start in range(length - 2):
            reference.truncate(0)
            reference.inject(features[first : first + start + 1], range(start + 1))
            ids = [tokens[first + start + 1], *[MASK] * (shape.block_size - 1)]
            hidden = reference.hidden(ids, start + 1)[shape.first_slot :]
            np.testing.assert_allclose(rows[block], hidden, atol=1e-4)
            if shape.markov_rank:
                chain = reference.chain(ids, start + 1)
                before = torch.tensor([ids[0], *chain.ids[:-1]])
                wanted = chain.logits[shape.first_slot :][:, d2t]
                with torch.no_grad():
                    got = head.logits(rows[block], before)
            else:
                wanted = reference.block(ids, start + 1)[1:][:, d2t]
                with torch.no_grad():
                    got = head.logits(rows[block], torch.zeros(0))
            np.testing.assert_allclose(got, wanted, atol=1e-4)
            block += 1
        first += length
    assert block == len(texts.starts) > 15


def test_a_slot_sees_features_before_its_anchor_and_nothing_else() -> None:
    head, texts = random_head(SHAPE), texts_for(SHAPE, [9, 12])
    with torch.no_grad():
        rows = block_rows(head, texts)
        for at in (3, 8, 14):
            changed = replace(texts, features=texts.features.clone())
            changed.features[at] += 1.0
            moved = (block_rows(head, changed) - rows).abs().amax(-1) > 1e-6
            same_text = (texts.starts < 9) == (at < 9)
            sees = (texts.starts >= at) & same_text
            # All slots of the blocks that see it, and no slot of the others.
            assert (moved == sees[:, None]).all()
            changed = replace(texts, tokens=texts.tokens.clone())
            changed.tokens[at] = (texts.tokens[at] + 7) % 256
            moved = (block_rows(head, changed) - rows).abs().amax(-1) > 1e-6
            assert (moved == (texts.starts + 1 == at)[:, None]).all(), "a token is its anchor's"


ALPHA = 0.4


def slow_losses(head: DFlashHead, texts: Texts, missed_share: int) -> float:
    """The loss of whole blocks one after the other."""
    with torch.no_grad():
        rows = block_rows(head, texts).double()
    ends, owner = (x.tolist() for x in texts.ends())
    total, d2t = 0.0, head.d2t.tolist()
    matrix = head.weight("output.weight").detach().double()
    for i, start in enumerate(texts.starts.tolist()):
        losses, smooth = [], []
        for depth in range(head.shape.n_steps):
            at = start + depth + 1
            if at + 1 >= ends[owner[start]] or (depth and not texts.in_vocab[at]):
                break
            logits = matrix @ rows[i, depth]
            if head.shape.markov_rank:
                low = head.weight("markov_w1.weight")[texts.tokens[at]].detach().double()
                logits = logits + head.weight("markov_w2.weight").detach().double() @ low
            log_q, token = torch.log_softmax(logits, -1), int(texts.tokens[at + 1])
            losses.append(-float((texts.target_p[at] * log_q[texts.target_ids[at]]).sum()))
            q = float(log_q[d2t.index(token)].exp()) if token in d2t else 0.0
            smooth.append((1 - ALPHA) * q + ALPHA)
            if missed_share == 0 and d2t[int(logits.argmax())] != token:
                break
        for depth, loss in enumerate(losses):
            total += loss * sum(np.prod(smooth[: m + 1]) for m in range(depth, len(losses)))
    return total / len(texts.starts)


@pytest.mark.parametrize("missed_share", [0, 1])
@pytest.mark.parametrize("shape", [SHAPE, MARKOV], ids=["plain", "followers"])
def test_the_loss_is_its_formula(missed_share: int, shape: DFlashShape) -> None:
    head, texts = random_head(shape), texts_for(shape, [50, 40])
    rng, n = np.random.default_rng(2), len(texts.tokens)
    texts.target_ids = torch.from_numpy(np.stack([rng.permutation(N_DRAFT)[:4] for _ in range(n)]))
    texts.target_p = torch.from_numpy(rng.dirichlet(np.ones(5), n)[:, :4].astype(np.float32))
    ends, owner = texts.ends()
    with torch.no_grad():  # so that many first picks are right, and some second ones
        for depth in (0, 1):
            rows = block_rows(head, texts)[:, depth]
            at = texts.starts + depth + 1
            before = texts.tokens[at.clamp(max=n - 1)]
            picks = head.d2t[head.logits(rows, before).argmax(-1)]
            chosen = (texts.starts % 3 == 0) & (at + 1 < ends[owner[texts.starts]])
            texts.tokens[at[chosen] + 1] = picks[chosen]
    texts.in_vocab = torch.isin(texts.tokens, head.d2t)
    losses = draft_losses(
        head, run_blocks(head, texts), texts, shape.n_steps,
        lambda steps, n_drafts: by_expected_length(steps, n_drafts, ALPHA), torch.float32,
        missed_share, torch.Generator().manual_seed(9),
    )  # fmt: skip
    expected = slow_losses(head, texts, missed_share)
    assert float(losses.total.detach()) == pytest.approx(expected, rel=1e-4)
    losses.total.backward()
    gradient = head.weight("blk.0.attn_q.weight").grad
    assert gradient is not None
    assert float(gradient.abs().max()) > 0
    accepted = count_accepted(head, run_blocks(head, texts), texts)
    assert 10 < int((accepted > 0).sum()) < len(accepted)


def test_the_mask_is_a_token_that_no_text_has() -> None:
    path = model_path("llama")
    with Model(path) as model:
        vocab, embedding = model.vocab, np.ones((N_VOCAB, 4), np.float32)
        control = [t for t in range(N_VOCAB) if vocab.is_control(t) and not vocab.is_eog(t)]
        free = [t for t in control if t != vocab.bos]
        counts = np.ones(N_VOCAB, np.int64)
        counts[free] = 0
        counts[40] = 0
        if free:
            assert choose_mask_token(vocab, counts, embedding) == free[-1]
        counts[free] = 1
        assert choose_mask_token(vocab, counts, embedding) == 40
        embedding[40] = 1e-5  # a row that nobody trained
        assert choose_mask_token(vocab, counts, embedding) != 40
