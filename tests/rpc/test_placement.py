"""Layers on servers: the same text, whole drafts accepted, and rows equal to the CPU's."""

from __future__ import annotations

from collections.abc import Iterator
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
from pyllama_spec.errors import ArgumentError, UnsupportedError
from tests.models import model_path
from tests.rpc.tools import PERM_PROMPT, Server, head_path, perm_text

N = 30


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    with Server() as one, Server() as other:
        yield one, other


def opened(addresses: list[str], **options: Any) -> Llama:
    values: dict[str, Any] = {
        "n_gpu_layers": -1, "rpc_servers": addresses, "n_ctx": 256, "n_threads": 1,
        "draft": head_path(), "controller": "fixed", "n_draft": 4, "lookup": 0,
    }  # fmt: skip
    return Llama(str(model_path("perm")), **{**values, **options})


def check_whole(llm: Llama) -> None:
    """The text is the permutation's, and all that was drafted is accepted."""
    generation = llm.generate_steps(PERM_PROMPT, max_tokens=N, temperature=0.0)
    for _ in generation:
        pass
    stats = generation.record.stats
    assert list(generation.record.tokens) == perm_text(N)
    assert stats.reason_off is None and stats.accepted == stats.drafted > 0


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


@pytest.mark.parametrize("head", [None, -1], ids=["local head", "remote head"])
def test_perm_is_accepted_whole(servers: tuple[Server, Server], head: int | None) -> None:
    with opened([servers[0].address], draft_gpu_layers=head) as llm:
        assert llm.model.placement == {f"RPC0[{servers[0].address}]": 5}
        assert f"on RPC0[{servers[0].address}]" in repr(llm)
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


@pytest.mark.parametrize("options", [{}, {"offload_kqv": False}, {"flash_attn": True}])
def test_a_target_over_two_servers(
    servers: tuple[Server, Server], options: dict[str, bool]
) -> None:
    one, other = (server.address for server in servers)
    with opened([one, other], tensor_split=[2, 3], **options) as llm:
        assert llm.model.placement == {f"RPC0[{one}]": 2, f"RPC0[{other}]": 3}
        check_whole(llm)


def test_a_part_and_a_choice(servers: tuple[Server, Server]) -> None:
    one, other = (server.address for server in servers)
    with opened([one], n_gpu_layers=2) as llm:
        assert llm.model.placement == {"CPU": 3, f"RPC0[{one}]": 2}
        check_whole(llm)
    with opened([one, other], devices=[f"RPC0[{other}]"]) as llm:
        assert llm.model.placement == {f"RPC0[{other}]": 5}
        check_whole(llm)


def test_two_models_at_once(servers: tuple[Server, Server]) -> None:
    """On one server, on another one, and beside a local one; each may be closed first."""
    one, other = (server.address for server in servers)
    with opened([one]) as a, opened([other]) as b, Llama(
        str(model_path("perm")), n_gpu_layers=0, n_ctx=256
    ) as local:  # fmt: skip
        assert local.model.placement == {"CPU": 5}
        third = opened([one])
        for llm in (a, b, third, local, a, b):
            assert llm.generate_steps is not None
            text = llm(PERM_PROMPT, max_tokens=5, temperature=0.0)["choices"][0]["text"]
            assert text == local(PERM_PROMPT, max_tokens=5, temperature=0.0)["choices"][0]["text"]
        # Freeing what it had there makes the server forget the graphs of all.
        third.close()
        check_whole(a)
        check_whole(b)


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
                generation = llm.generate_steps(
                    PERM_PROMPT, max_tokens=20, temperature=0.0, logits_processor=processor
                )
                for _ in generation:
                    pass
                texts.append(list(generation.record.tokens))
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


@pytest.mark.parametrize(
    "servers_given", ["127.0.0.1:1", [], ["localhost"], ["a:0"], ["::1:50052"], [3], ["a:1", "a:1"]]
)
def test_servers_that_are_none(servers_given: Any) -> None:
    with pytest.raises(ArgumentError, match="rpc_servers"):
        Model(model_path("llama"), n_gpu_layers=-1, rpc_servers=servers_given)


@pytest.mark.parametrize("mode", ["row", "tensor"])
def test_servers_that_would_share_layers(mode: Any) -> None:
    """The refusal comes before any connection."""
    with pytest.raises(UnsupportedError, match="split"):
        Model(model_path("llama"), n_gpu_layers=-1, rpc_servers=["127.0.0.1:1"], split_mode=mode)


def test_servers_without_layers() -> None:
    with pytest.raises(ArgumentError, match="n_gpu_layers"):
        Model(model_path("llama"), rpc_servers=["127.0.0.1:1"])
