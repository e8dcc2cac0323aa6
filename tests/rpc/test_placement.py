"""Layers on servers: the same text, whole drafts, rows equal to the CPU's, few messages."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from pyllama_spec import Llama
from pyllama_spec.engine import (
    Batch,
    Context,
    Model,
    devices,
    quantize,
    server_devices,
    supports_gpu,
)
from pyllama_spec.engine.context import _flash_attn
from tests.models import model_path
from tests.rpc.proxy import Proxy
from tests.rpc.tools import PERM_PROMPT, Server, check_whole, head_path, opened


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    with Server() as one, Server() as other:
        yield one, other


@pytest.mark.parametrize("n_layers", [-1, 2], ids=["all", "some"])
def test_a_head_in_the_targets_file_lies_with_it(
    servers: tuple[Server, Server], n_layers: int
) -> None:
    """The head's rows come from a server or stay here, and go to the head's device."""
    path, address = model_path("perm_mtp", arch="qwen35"), servers[0].address
    options: dict[str, Any] = {"draft": "mtp", "model_path": path, "n_gpu_layers": n_layers}
    with Llama(**{
        "rpc_servers": [address], "n_ctx": 256, "n_threads": 1, "controller": "fixed", "lookup": 0,
        **options,
    }) as llm:  # fmt: skip
        assert sum(llm.model.placement.values()) == 4  # two layers, the head, the output
        assert llm.model.placement[f"RPC0[{address}]"] == (4 if n_layers < 0 else 2)
        check_whole(llm)


@pytest.mark.parametrize(
    ("placed", "options"),
    [
        ([5], {}), ([5], {"draft_gpu_layers": -1}), ([2], {"n_gpu_layers": 2}),
        *(
            ([2, 3], {"tensor_split": [2, 3], **more})
            for more in ({}, {"offload_kqv": False}, {"flash_attn": True})
        ),
    ],
)  # fmt: skip
def test_perm_is_accepted_whole(
    servers: tuple[Server, Server], placed: list[int], options: dict[str, Any]
) -> None:
    """The whole target or a part of it, on one server or two, with the head here or there."""
    addresses = [server.address for server in servers[: len(placed)]]
    wanted = dict(zip([f"RPC0[{address}]" for address in addresses], placed, strict=True))
    if n_here := 5 - sum(placed):
        wanted["CPU"] = n_here
    with opened(*addresses, **options) as llm:
        assert llm.model.placement == wanted
        assert placed != [5] or f"on RPC0[{addresses[0]}]" in repr(llm)
        check_whole(llm)


def test_a_remote_head_of_a_local_target(servers: tuple[Server, Server]) -> None:
    from pyllama_spec.drafters import Eagle3

    head = Eagle3(head_path(), 4, n_gpu_layers=-1, rpc_servers=[servers[0].address])
    assert head.model.is_on_gpu
    with head, Llama(
        str(model_path("perm")), draft=head, controller="fixed", n_ctx=256, n_threads=1
    ) as llm:  # fmt: skip
        assert llm.model.placement == {"CPU": 5}
        check_whole(llm)


def test_rows_are_those_of_the_cpu(servers: tuple[Server, Server], tmp_path: Path) -> None:
    """In BF16 without flash attention, bit by bit: layer inputs and logits, at several widths."""
    path = tmp_path / "bf16.gguf"
    quantize(model_path("llama"), path, "BF16")
    prompt = [int(i) for i in np.random.default_rng(5).integers(0, 256, size=40)]
    rows: list[list[Any]] = []
    for addresses in (None, [servers[0].address]):
        model = Model(path, n_gpu_layers=-1 if addresses else 0, rpc_servers=addresses)
        context = Context(model, n_ctx=128, flash_attn=False, target_layers=[0, 1, 2], n_threads=1)
        found, at = [], 0
        for n in (24, 5, 1, 8):
            batch = Batch(64)
            batch.extend(prompt[at : at + n], at, output_all=True)
            context.decode(batch)
            found += [context.layer_input(i).copy() for i in (0, 1, 2)]
            found += [context.logits(i).copy() for i in range(n)]
            at += n
        rows.append(found)
    assert all(np.array_equal(a, b) for a, b in zip(*rows, strict=True))


def test_equal_logits_are_settled_as_on_the_cpu(
    servers: tuple[Server, Server], tmp_path: Path
) -> None:
    """The smaller id wins, whether the row comes here or the server chooses."""
    path = tmp_path / "ties.gguf"
    quantize(model_path("llama"), path, "BF16")
    reader = GGUFReader(path, "r+")
    (output,) = (tensor for tensor in reader.tensors if tensor.name == "output.weight")
    output.data[1::2] = output.data[0::2]
    reader.data.flush()
    texts: list[list[int]] = []
    for addresses in (None, [servers[0].address]):
        with Llama(
            str(path), n_gpu_layers=-1 if addresses else 0, rpc_servers=addresses, n_ctx=128,
            flash_attn=False, n_threads=1,
        ) as llm:  # fmt: skip
            for processor in (None, [lambda _, row: row]):
                record = llm.generate_steps(
                    PERM_PROMPT, max_tokens=20, temperature=0.0, logits_processor=processor
                ).read_all()
                texts.append(list(record.tokens))
    assert all(text == texts[0] for text in texts)
    assert all(token % 2 == 0 for token in texts[0])


def test_a_build_without_a_server_in_use_is_a_cpu(servers: tuple[Server, Server]) -> None:
    """Even after earlier devices: without flash attention, with exact rows."""
    (found,) = server_devices(servers[0].address)
    assert found.name == f"RPC0[{servers[0].address}]" and found.total_bytes > 0
    if supports_gpu():  # another backend of this build
        return
    assert [device.name for device in devices()] == ["CPU"]
    with pytest.warns(UserWarning, match="all are on the CPU"):
        model = Model(model_path("llama"), n_gpu_layers=-1)
    with model, Context(model, n_ctx=64) as context:
        assert not model.is_on_gpu and context.exact_rows > 1
        assert _flash_attn(model, context.params) == 0


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
            proxy.messages.clear()
            for _ in range(20):
                decode(20, rng.randint(1, 9))
                context.logits(0)
                context.memory.rollback(0, 20)
            assert proxy.messages["graph_compute"] == 0
            assert proxy.messages["graph_recompute"] == 20
            assert proxy.messages["alloc_buffer"] == proxy.messages["free_buffer"] == 0


def test_the_tests_of_a_device() -> None:
    """Every placement, transferred bytes, numbers beside the CPU's, and freed memory."""
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-p", "tests.rpc.as_device", "-q"]
    command += ["-m", "not posix"] * (sys.platform == "win32")
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d\d+ passed", done.stdout, re.MULTILINE), done.stdout
