"""The engine loads converted files, and their drafts are the head's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from pyllama_spec import Llama
from pyllama_spec.engine import Model
from tests.convert.dflash_tools import convert_written, make_draft
from tests.convert.tools import Head, Tensors, convert, flat_config, to_checkpoint, write_head
from tests.models import Eagle3Config, model_path, perm_continuation, perm_next

PROMPT = list(b"abcdefghijklmnop")


def perm_head(**options: Any) -> Head:
    """The head that knows what the PERM target will say, as a checkpoint."""
    path = model_path("perm_eagle3", **options)
    tensors: Tensors = {t.name: np.array(t.data) for t in GGUFReader(path).tensors}
    cfg = Eagle3Config(
        n_vocab=320, target_n_embd=320, target_layers=options.get("target_layers", (1,)),
        n_embd=320, n_head_kv=4, n_ff=320, n_draft_vocab=320 if options.get("reduced") else None,
        norm_output=options.get("norm_output", False),
    )  # fmt: skip
    return Head(cfg, to_checkpoint(cfg, tensors), flat_config(cfg), tensors)


def acceptance(draft: Path) -> tuple[int, int]:
    """Accepted and drafted tokens of 40 generated ones; the text is PERM's."""
    with Llama(
        model_path("perm"), draft=str(draft), n_draft=4, controller="fixed", n_ctx=256, n_threads=1
    ) as llama:
        generation = llama.generate_steps(PROMPT, max_tokens=40, temperature=0.0)
        with generation:
            for _ in generation:
                pass
    record = generation.record
    assert list(record.tokens) == perm_continuation(PROMPT[-1], 40, perm_next())
    return record.stats.accepted, record.stats.drafted


@pytest.mark.parametrize("kind", [None, "q8_0"])
@pytest.mark.parametrize("layout", ["specforge", "flat"])
def test_every_draft_is_accepted(tmp_path: Path, layout: str, kind: str | None) -> None:
    """PERM accepts every draft, so the head's numbers and its table are right."""
    head = perm_head(reduced=True, target_layers=(1, 2, 4))
    folder = write_head(tmp_path / "draft", layout, head, "F32")
    out = convert(folder, tmp_path / "out.gguf", target=model_path("perm"), kind=kind).path
    accepted, drafted = acceptance(out)
    assert accepted == drafted > 0


def test_rope_of_the_engine(tmp_path: Path) -> None:
    """A head that derives its position from RoPE drafts differently if the rows are reordered."""
    head = perm_head(read_token=True)
    folder = write_head(tmp_path / "draft", "specforge", head, "F32")
    out = convert(folder, tmp_path / "out.gguf", target=model_path("perm")).path
    accepted, drafted = acceptance(out)
    assert accepted == drafted > 0
    head.tensors["layers.0.self_attn.k_proj.weight"] = head.gguf["blk.0.attn_k.weight"]
    write_head(folder, "specforge", head, "F32")
    out = convert(folder, tmp_path / "out.gguf", target=model_path("perm")).path
    assert acceptance(out)[0] == 0


# ---- the engine finds every tensor that it needs in converted DFlash files, and no other


DRAFTS: list[tuple[str, str, dict[str, Any]]] = [
    ("dflash", "zlab", {}),
    ("dflash", "muse", {"sinks": True}),
    ("dspark", "deepspec", {"own": ("token_embd", "output")}),
    ("dspark", "speculators", {"reduced": True}),
    ("dflash2", "zlab", {"n_layer": 3}),
]


@pytest.mark.parametrize("type_", [None, "q8_0"])
@pytest.mark.parametrize(("kind", "layout", "options"), DRAFTS)
def test_files_load(
    tmp_path: Path, kind: str, layout: str, options: dict[str, Any], type_: Any
) -> None:
    report = convert_written(tmp_path, layout, make_draft(kind, **options), kind=type_)
    with Model(report.path) as model:
        assert model.metadata["general.architecture"] == "dflash"
        assert model.metadata["dflash.block_size"] == "7"
