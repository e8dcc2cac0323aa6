"""`build`: one tiny random model of a named architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import dense, encoder, hybrid, moe, mtp, streams
from .config import TinyConfig
from .sketch import Sketch

ARCHITECTURES: dict[str, Callable[[Sketch], None]] = {
    "llama": dense.llama,
    "qwen2": dense.qwen2,
    "qwen3": dense.qwen3,
    "qwen3moe": moe.qwen3moe,
    "gemma2": dense.gemma2,
    "gemma3": dense.gemma3,
    "phi3": dense.phi3,
    "granite": dense.granite,
    "glm4": dense.glm4,
    "olmo2": dense.olmo2,
    "stablelm": dense.stablelm,
    "command-r": dense.command_r,
    "starcoder2": dense.starcoder2,
    "gpt-oss": moe.gpt_oss,
    "deepseek2": moe.deepseek2,
    "qwen35": hybrid.qwen35,
    "lfm2": hybrid.lfm2,
    "mamba2": hybrid.mamba2,
    "mamba": hybrid.mamba,
    "qwen35moe": hybrid.qwen35moe,
    "qwen3next": hybrid.qwen3next,
    "falcon-h1": hybrid.falcon_h1,
    "granitehybrid": hybrid.granite_hybrid,
    "nemotron_h": hybrid.nemotron_h,
    "jamba": hybrid.jamba,
    "plamo2": hybrid.plamo2,
    "kimi-linear": hybrid.kimi_linear,
    "rwkv7": hybrid.rwkv7,
    "bert": encoder.bert,
}
"""The builder of each architecture, by the engine's name for it."""

WITH_HEADS: dict[str, Callable[[Sketch], None]] = {
    "glm4moe": moe.glm4moe,
    "cohere2moe": moe.cohere2moe,
    "nemotron_h_moe": hybrid.nemotron_h_moe,
    "deepseek32": moe.deepseek32,
    "glm-dsa": moe.deepseek32,
    "bailingmoe3": hybrid.bailingmoe3,
    "qwen4exp": streams.qwen4exp,
    "deepseek4": streams.deepseek4,
    "glm5-next": streams.glm5_next,
    "step35": moe.step35,
    "mimo2": moe.mimo2,
    "hy_v3": moe.hy_v3,
}
"""Further architectures, which are here only for their MTP heads."""

HYBRID = frozenset({
    "qwen35", "qwen35moe", "qwen3next", "lfm2", "falcon-h1", "granitehybrid", "nemotron_h", "jamba",
    "plamo2", "kimi-linear",
})  # fmt: skip
RECURRENT = frozenset({"mamba", "mamba2", "rwkv7"})
STATES = tuple(arch for arch in ARCHITECTURES if arch in HYBRID | RECURRENT)
STATES_WITHOUT_SNAPSHOTS = ("rwkv7",)
ENCODERS = frozenset({"bert"})
DECODERS = tuple(arch for arch in ARCHITECTURES if arch not in ENCODERS)


def build(arch: str, path: Path, **options: Any) -> Path:
    """Write a tiny random F32 model and return `path`.

    The file is a function of the arguments alone. `perturb_layer=k` redraws all weights of
    layer `k` and no others: the inputs of layers `0..k` keep their bits, those of later layers
    change. `options` are the fields of `TinyConfig`.
    """
    sketch = Sketch(TinyConfig(arch, **options))
    {**ARCHITECTURES, **WITH_HEADS}[arch](sketch)
    mtp.add_heads(sketch)
    return sketch.write(path)
