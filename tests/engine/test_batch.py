"""Batches: input, the arrays for the engine, and refused values."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGUFReader

from pyllama_spec.engine import Batch, Context
from pyllama_spec.errors import ArgumentError, PyllamaSpecError
from tests.models import model_path
from tests.oracles import forced_rows, prompt_tokens, tiny, tiny_context

TOKENS = prompt_tokens(12, seed=2)


def contents(batch: Batch) -> list[tuple[int, int, int, bool]]:
    """The engine's arrays: id, position, sequence and output of each token."""
    raw = batch.as_struct()
    return [(raw.ids[i], raw.pos[i], raw.seq[i], bool(raw.output[i])) for i in range(raw.n_tokens)]


def test_add_and_extend_say_the_same() -> None:
    one, many = Batch(12), Batch(12)
    for part, start in (([5, 6, 7], 0), ([8], 3), ([], 4), ([9, 10], 4)):
        for i, token in enumerate(part):
            one.add(token, start + i, 2, output=i == len(part) - 1)
        many.extend(part, start, 2, output_last=True)
    assert contents(one) == contents(many)
    assert [row[3] for row in contents(one)] == [False, False, True, True, False, True]
    assert (one.n_tokens, one.max_pos) == (many.n_tokens, many.max_pos) == (6, 5)
    many.clear()
    many.extend([1, 2], 7, output_all=True)
    assert contents(many) == [(1, 7, 0, True), (2, 8, 0, True)]


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_rows_in_place_of_ids(arch: str) -> None:
    """Embeddings given as rows give the logits of their ids, with one position each or four."""
    reader = GGUFReader(model_path(arch))
    table = next(t.data for t in reader.tensors if t.name == "token_embd.weight")
    model = tiny(arch)
    expected = forced_rows(model, TOKENS)[0]
    with tiny_context(model) as context:
        batch = Batch(16, n_row=model.info.n_embd_inp)
        for i, token in enumerate(TOKENS):
            batch.add(None, i, output=True, row=np.array(table[token]))
        context.decode(batch)
        got = np.stack([context.logits(i) for i in range(len(TOKENS))])
        np.testing.assert_array_equal(got, expected)


def test_what_the_context_refuses_leaves_it_as_it_was() -> None:
    with tiny_context(tiny("llama"), n_seq_max=2, n_ctx=64, n_batch=8) as context:
        good = Batch(2)
        good.extend([1, 2], 0)
        context.decode(good)
        for tokens in ([(1, 2, 0), (-1, 3, 0)], [(1, 0, 2)], [(1, 9, 0)], [(1, 32, 0)]):
            bad = Batch(2)
            for token, position, seq in tokens:
                bad.add(token, position, seq)
            with pytest.raises(PyllamaSpecError):
                context.decode(bad)
            assert [context.memory.positions(seq)[1] for seq in (0, 1)] == [1, -1]
        good.clear()
        good.extend([3], 2, output_last=True)
        context.decode(good)
        expected = forced_rows(tiny("llama"), [1, 2, 3])[0][-1]
        np.testing.assert_array_equal(context.logits(0), expected)


def test_positions_that_the_model_has_no_embeddings_for() -> None:
    """Such positions are refused; the engine would assert on any thread."""
    with Context(tiny("bert"), n_ctx=1024, n_batch=1024, n_ubatch=1024, embeddings=True) as context:
        batch = Batch(1024)
        batch.extend([5] * 600, 0, output_all=True)
        with pytest.raises(ArgumentError):
            context.decode(batch, encode=True)
        batch.clear()
        batch.extend([5] * 512, 0, output_all=True)
        context.decode(batch, encode=True)
        assert np.isfinite(context.embeddings(511)).all()


def test_more_logits_than_the_context_has_room_for() -> None:
    with tiny_context(tiny("llama"), n_outputs_max=2) as context:
        batch = Batch(4)
        batch.extend([1, 2, 3], 0, output_all=True)
        with pytest.raises(ArgumentError):
            context.decode(batch)
        batch.clear()
        batch.extend([1], 0)
        batch.extend([2, 3], 1, output_all=True)
        context.decode(batch)
        expected = forced_rows(tiny("llama"), [1, 2, 3])[0][-1]
        np.testing.assert_array_equal(context.logits(2), expected)
