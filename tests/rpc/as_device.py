"""A pytest plugin: runs the tests of a device (tests/gpu) on a layer server instead.

python -m pytest tests/gpu -p tests.rpc.as_device
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import pytest

from tests.rpc.tools import Server

_N_ROUNDS, _N_CHAINS = 25, 5  # what more of them would find are faults of a GPU
# Of all architectures those on whose graphs the way to a device depends.
_ARCHS = ("qwen35", "deepseek2", "mimo2", "mamba", "nemotron_h")
_OF_A_GPU = "test_there_is_a_gpu"


def _with_layers(make: Any, address: str, *values: Any, **options: Any) -> Any:
    if options.get("n_gpu_layers", 0) != 0:
        options["rpc_servers"] = [address]
    return make(*values, **options)


def pytest_configure(config: pytest.Config) -> None:
    """Starts the server, with one thread."""
    server = Server()
    config.add_cleanup(server.kill)
    config.stash[_SERVER] = server


_SERVER = pytest.StashKey[Server]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lets what the tests open with layers on a device have them there."""
    address = config.stash[_SERVER].address
    modules: set[ModuleType] = {item.module for item in items if isinstance(item, pytest.Function)}
    for module in modules:
        for name in ("Model", "Eagle3", "DFlash"):
            if hasattr(module, name):
                setattr(module, name, partial(_with_layers, getattr(module, name), address))
        for name, value in (("N_ROUNDS", _N_ROUNDS), ("N_CHAINS", _N_CHAINS), ("N_THREADS", 1)):
            if hasattr(module, name):
                setattr(module, name, value)
    items[:] = [item for item in items if item.name != _OF_A_GPU and _arch(item) in _ARCHS]


def _arch(item: pytest.Item) -> str:
    """The architecture that a test is for; one of them where it is for none."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("arch", _ARCHS[0])) if callspec else _ARCHS[0]
