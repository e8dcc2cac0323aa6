"""Which devices count, and that n_gpu_layers=0 means the CPU."""

from __future__ import annotations

import contextlib
import warnings

import pytest

from pyllama_spec.engine import Context, ContextParams, Model, devices, supports_gpu
from pyllama_spec.engine.context import _flash_attn
from pyllama_spec.engine.model import SplitMode, warn_of_fewer
from pyllama_spec.engine.system import system_info
from pyllama_spec.errors import ArgumentError
from tests.models import model_path
from tests.oracles import tiny

_FEWER = "n_gpu_layers=-1 puts 5 layers of .* on a device, but all are on the CPU: this build finds"


@pytest.mark.parametrize("vocab_only", [False, True])
@pytest.mark.parametrize("split_mode", ["none", "layer", "row", "tensor"])
def test_no_layers_are_on_no_device(split_mode: SplitMode, vocab_only: bool) -> None:
    """No device is opened, and a missing one is no error."""
    path = model_path("llama")
    with Model(path, n_gpu_layers=0, split_mode=split_mode, vocab_only=vocab_only) as model:
        assert model.info.n_device_layers == 0 and not model.is_on_gpu
        assert _flash_attn(model, ContextParams()) == 0


def test_no_build_uses_the_matrix_unit() -> None:
    """Native builds leave the matrix unit out: it rounds a row by its neighbours."""
    assert "AMX_INT8 = 1" not in system_info()


def test_layers_that_nothing_could_take_stay() -> None:
    """A build with a backend and no device, such as RPC without a server, counts as a CPU."""
    path = model_path("llama")
    note = contextlib.nullcontext() if supports_gpu() else pytest.warns(UserWarning, match=_FEWER)
    with note, Model(path, n_gpu_layers=-1) as model:
        assert model.is_on_gpu == supports_gpu() == (model.info.n_device_layers == 5)
        assert (_flash_attn(model, ContextParams()) == 0) != supports_gpu()
    assert len(devices()) > 1 or not supports_gpu()


def test_the_cpu_does_not_hand_on_wide_batches() -> None:
    assert ContextParams().op_offload is False
    with pytest.raises(ArgumentError):
        Context(tiny("llama"), n_ctx=64, op_offload=True)
    with pytest.raises(ArgumentError):
        Context(tiny("llama"), n_ctx=64, op_offload=1)


def test_placement_is_said() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Model(model_path("llama")) as model:
            assert model.placement == {"CPU": 5}
            assert repr(model).endswith(", on the CPU, open>")
        with Model(model_path("llama"), n_gpu_layers=-1, vocab_only=True) as model:
            assert model.placement == {}
            assert repr(model).endswith(", open>") and "CPU" not in repr(model)


@pytest.mark.parametrize("n_asked", [-1, 3, 99])
def test_fewer_layers_than_asked_for(n_asked: int) -> None:
    with pytest.warns(UserWarning, match="but 2 of them are there"):
        warn_of_fewer("a.gguf", n_asked, 2, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_fewer("a.gguf", n_asked, 5, 5)
        warn_of_fewer("a.gguf", 0, 0, 5)
        warn_of_fewer("a.gguf", n_asked, 0, 0)  # a vocabulary
