"""Messages on the network: a known graph is named instead of sent, at any width."""

from __future__ import annotations

import random
from contextlib import closing

from pyllama_spec.engine import Batch, Context, Model
from tests.models import model_path
from tests.rpc.proxy import Proxy
from tests.rpc.tools import Server


def test_a_width_that_was_there_is_one_message() -> None:
    rng = random.Random(1)
    with Server() as server, closing(Proxy(server.address)) as proxy:
        model = Model(model_path("perm"), n_gpu_layers=-1, rpc_servers=[proxy.address])
        with model, Context(model, n_ctx=256, n_threads=1) as context:
            batch = Batch(32)

            def decode(at: int, n: int) -> None:
                batch.clear()
                batch.extend([5] * n, at, output_all=True)
                context.decode(batch)

            decode(0, 20)
            for width in range(1, 10):
                decode(20, width)
                context.memory.rollback(0, 20)
            proxy.reset()
            for _ in range(20):
                decode(20, rng.randint(1, 9))
                context.logits(0)
                context.memory.rollback(0, 20)
            assert proxy.messages["graph_compute"] == 0
            assert proxy.messages["graph_recompute"] == 20
            assert proxy.messages["alloc_buffer"] == proxy.messages["free_buffer"] == 0
