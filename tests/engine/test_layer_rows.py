"""Layer inputs of several layers, copied side by side in one call."""

from __future__ import annotations

import numpy as np

from pyllama_spec.engine import Batch
from pyllama_spec.engine.context import LayerRows
from tests.oracles import prompt_tokens, tiny, tiny_context

LAYERS = (1, 2)


def test_copies_are_the_views() -> None:
    with tiny_context(tiny("llama"), target_layers=LAYERS) as context:
        rows = LayerRows(context, LAYERS, 0, 0)
        for n, first, count in ((12, 0, 12), (5, 2, 3), (1, 0, 1), (9, 8, 1)):
            batch = Batch(n)
            batch.extend(prompt_tokens(n, seed=n), context.memory.positions(0)[1] + 1)
            context.decode(batch)
            part = rows.part(first, count)
            expected = [context.layer_input(layer)[first : first + count] for layer in LAYERS]
            assert len(part) == 2
            assert all(np.array_equal(a, b) for a, b in zip(part, expected, strict=True))
            assert np.array_equal(part[-1], expected[-1])
            assert len(part[:1]) == 1
            buffer = np.full((count + 3, 2 * 64), 7.0, dtype=np.float32)
            part.copy_to(buffer, 1)
            assert np.array_equal(buffer[1 : 1 + count], np.concatenate(expected, axis=1))
            assert (buffer[0] == 7.0).all()
            assert (buffer[1 + count :] == 7.0).all()
