"""How llama-server's variables and the spellings of its flags are read."""

from __future__ import annotations

from typing import Any

import pytest

from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.server import llama_server


@pytest.mark.parametrize("line, variable, value, expected", [
    ("", "LLAMA_ARG_NO_KV_OFFLOAD", "0", ("offload_kqv", False)),  # whatever its value is
    ("", "LLAMA_ARG_KV_OFFLOAD", "off", ("offload_kqv", False)),
    ("-kvo", "LLAMA_ARG_NO_KV_OFFLOAD", "1", ("offload_kqv", True)),
    ("", "LLAMA_ARG_SWA_FULL", "1", ("swa_full", True)),
    ("-c 64 -np 4", "LLAMA_ARG_KV_UNIFIED", "on", ("n_ctx", 64)),
    ("-c 64 -np 4 -kvu", "LLAMA_ARG_NO_KV_UNIFIED", "1", ("n_ctx", 64)),
    ("-c 64 -np 4", "LLAMA_ARG_NO_KV_UNIFIED", "1", ("n_ctx", 16)),
])  # fmt: skip
def test_a_variable_may_switch_off(
    line: str, variable: str, value: str, expected: tuple[str, Any]
) -> None:
    meant = llama_server.plan(["-m", "t.gguf", *line.split()], {variable: value})
    assert meant.keywords[expected[0]] == expected[1]
    both = {variable: value, "LLAMA_ARG_ENDPOINT_SLOTS": "1", "LLAMA_ARG_NO_ENDPOINT_SLOTS": "1"}
    assert not llama_server.plan(["-m", "t.gguf"], both).settings.has_slots


@pytest.mark.parametrize("line, expected", [
    ("--ctx_size 64 --n_gpu_layers 3 -np 1", {"n_ctx": 64, "n_gpu_layers": 3}),
    ("--cache_type-k q8_0 --no_mmap", {"type_k": "q8_0", "use_mmap": False}),
    ("--chat-template my_format", {"chat_format": "my_format"}),  # a value stays as it is
])  # fmt: skip
def test_a_flag_may_have_underscores(line: str, expected: dict[str, Any]) -> None:
    meant = llama_server.plan(["-m", "t.gguf", *line.split(), "--no_warmup"], {})
    assert {key: meant.keywords[key] for key in expected} == expected
    with pytest.raises(UnsupportedError, match="no model is fetched"):
        llama_server.plan(["--hf_repo", "a/b"], {})
    with pytest.raises(ArgumentError, match="not known here: --no_such"):
        llama_server.plan(["-m", "t.gguf", "--no_such"], {})
