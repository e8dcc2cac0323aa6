"""Helpers for tests of MTP heads: models with a head, loops on them, faulty rows."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec.drafters import Drafter
from pyllama_spec.engine import Context, Model
from pyllama_spec.speculative import SpeculativeLoop
from tests.models import model_path

ARCHS = (
    "qwen35", "qwen35moe", "qwen3next", "deepseek2", "glm4moe", "cohere2moe", "nemotron_h_moe",
    "deepseek32", "glm-dsa", "bailingmoe3", "qwen4exp", "deepseek4", "glm5-next", "step35",
    "mimo2", "hy_v3",
)  # fmt: skip
"""The architectures whose heads this version drafts with; SEVERAL may have several in a file."""


@cache
def with_head(kind: str, **options: Any) -> Model:
    """A tiny model with its MTP head, loaded once per test run."""
    return Model(model_path(kind, **options), load_mtp=True)


def mtp_context(model: Model, drafter: Drafter, **overrides: Any) -> Context:
    """A small context on one thread that keeps what the head reads, with up to ten snapshots."""
    values: dict[str, Any] = {
        "n_ctx": 256, "n_batch": 64, "n_ubatch": 32, "n_threads": 1, **overrides,
    }  # fmt: skip
    n_rs_seq = min(10, max(values["n_ubatch"] - 2, 0))
    return Context(
        model, **{"n_rs_seq": n_rs_seq, "target_layers": drafter.target_layers, **values}
    )


def perm_loop(drafter: Drafter, arch: str = "qwen35", **params: Any) -> SpeculativeLoop:
    model = with_head("perm_mtp", arch=arch)
    return SpeculativeLoop(mtp_context(model, drafter, **params), drafter)


def without(source: Path, path: Path, *names: str) -> Path:
    """A copy of a GGUF without some tensors."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(source)
    arch = reader.get_field("general.architecture").contents()  # type: ignore[union-attr]
    writer = GGUFWriter(path, arch)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=sub)
    for tensor in reader.tensors:
        if tensor.name not in names:
            writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def head_alone(source: Path, path: Path, *more: str) -> Path:
    """A copy of a file with two layers and a head, without the layers."""
    from gguf import GGUFReader

    names = [tensor.name for tensor in GGUFReader(source).tensors]
    return without(source, path, *(n for n in names if n.startswith(("blk.0.", "blk.1."))), *more)
