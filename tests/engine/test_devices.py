"""What counts as a device, and that n_gpu_layers=0 is the CPU."""

from __future__ import annotations

import pytest

from pyllama_spec.engine import Context, ContextParams, Model, devices, supports_gpu
from pyllama_spec.engine.context import _flash_attn
from pyllama_spec.engine.model import SplitMode
from pyllama_spec.errors import ArgumentError
from tests.models import model_path
from tests.oracles import tiny


@pytest.mark.parametrize("vocab_only", [False, True])
@pytest.mark.parametrize("split_mode", ["none", "layer", "row", "tensor"])
def test_no_layers_are_on_no_device(split_mode: SplitMode, vocab_only: bool) -> None:
    """Whatever the build finds: none is opened, and none is missed."""
    path = model_path("llama")
    with Model(path, n_gpu_layers=0, split_mode=split_mode, vocab_only=vocab_only) as model:
        assert model.info.n_device_layers == 0 and not model.is_on_gpu
        assert _flash_attn(model, ContextParams()) == 0


def test_layers_that_nothing_could_take_stay() -> None:
    """A build with a backend and no device, such as one for RPC without a server, is a CPU."""
    with Model(model_path("llama"), n_gpu_layers=-1) as model:
        assert model.is_on_gpu == supports_gpu() == (model.info.n_device_layers == 5)
        assert (_flash_attn(model, ContextParams()) == 0) != supports_gpu()
    assert len(devices()) > 1 or not supports_gpu()


def test_the_cpu_does_not_hand_on_wide_batches() -> None:
    assert ContextParams().op_offload is False
    with pytest.raises(ArgumentError, match="layers on a device, and this one has none"):
        Context(tiny("llama"), n_ctx=64, op_offload=True)
    with pytest.raises(ArgumentError, match="op_offload=1 is not True or False"):
        Context(tiny("llama"), n_ctx=64, op_offload=1)
