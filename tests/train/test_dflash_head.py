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
)
from pyllama_spec.train.run.export import export_head
from pyllama_spec.train.run.texts import Texts
from tests.models import model_path
from tests.parity.dflash_reference import Reference
from tests.train.chains import random_texts
from tests.train.test_head import (
    N_DRAFT,
    N_EMBD,
    N_VOCAB,
    change_at_random,
    some_ids,
    unit_sample,
    weights_of,
)  # fmt: skip

MASK = 301
SHAPE = DFlashShape(
    n_vocab=N_VOCAB, n_draft_vocab=N_DRAFT, n_embd=N_EMBD,
    target_layers=(1, 2, 3), n_head=4, n_head_kv=2, n_ff=96, rope_base=10000.0, rms_eps=1e-5,
    n_layer=2, block_size=5, mask_token=MASK, markov_rank=8,
)  # fmt: skip
SHAPES = {
    "two layers": SHAPE,
    "three layers, all heads": replace(SHAPE, n_layer=3, n_head_kv=4, target_layers=(0, 4)),
    "one layer": replace(SHAPE, n_layer=1, block_size=3),
}


def random_head(shape: DFlashShape, seed: int = 3) -> DFlashHead:
    """A draft for the tiny llama with random weights, norms too."""
    weights = weights_of(model_path("llama"))
    head = DFlashHead(shape, weights.embedding, some_ids(seed))
    initialise(head, weights, unit_sample(len(shape.target_layers)), seed)
    change_at_random(head, seed)
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
            hidden = reference.hidden(ids, start + 1)
            np.testing.assert_allclose(rows[block], hidden, atol=1e-4)
            chain = reference.chain(ids, start + 1)
            before = torch.tensor([ids[0], *chain.ids[:-1]])
            wanted = chain.logits[:, d2t]
            with torch.no_grad():
                got = head.logits(rows[block], before)
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
