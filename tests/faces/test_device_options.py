"""The options of the command line for devices."""

from __future__ import annotations

import argparse

import pytest

from pyllama_spec.cli.device_options import (
    add_context_options,
    add_layer_options,
    context_keywords,
    layer_keywords,
)
from pyllama_spec.cli.entry import main
from tests.models import model_path


def _parse(words: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_layer_options(parser)
    add_context_options(parser)
    args = parser.parse_args(words)
    return {**layer_keywords(args), **context_keywords(args)}


def test_without_options_all_is_on_the_cpu() -> None:
    assert _parse([]) == {
        "n_gpu_layers": 0, "draft_gpu_layers": None, "devices": None, "rpc_servers": None,
        "rpc_timeout": None, "offload_kqv": True, "op_offload": False, "flash_attn": None,
    }  # fmt: skip


@pytest.mark.parametrize("command", ["generate", "chat", "bench", "doctor", "train eagle3"])
@pytest.mark.parametrize("option", ["--devices", "--n-gpu-layers"])
def test_every_command_has_them(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert option in capsys.readouterr().out


def test_a_device_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(model_path("llama"))
    for command in (["generate", "-p", "a"], ["bench", "-d", "prompt-lookup"], ["doctor"]):
        assert main([*command, "-m", path, "-ngl", "1", "--devices", "Nowhere7"]) == 1
        said = capsys.readouterr().err.strip()
        assert "there is no device 'Nowhere7'" in said and "\n" not in said
