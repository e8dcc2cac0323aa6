"""A real target with a draft of random weights: the text is that of plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from tests.dflash_tools import KINDS
from tests.models import model_path
from tests.tiers import release_except

DRAFTS: dict[str, dict[str, Any]] = {
    "eagle3": {
        "n_vocab": 49152,
        "target_n_embd": 576,
        "n_embd": 576,
        "fc_norm": True,
        "norm_output": True,
    },
    **{kind: {"mask_token": 5, **options} for kind, options in KINDS.items()},
}


def random_draft(kind: str, target: Path) -> Path:
    """A small draft of random weights for SmolLM2-135M."""
    return model_path(
        "eagle3" if kind == "eagle3" else "dflash", target=target, target_layers=(2, 15, 27),
        n_head=9, n_head_kv=3, n_ff=768, n_draft_vocab=4096, own_embedding=False,
        weight_type="bf16", **DRAFTS[kind],
    )  # fmt: skip


@pytest.mark.parametrize("kind", release_except(DRAFTS, ("eagle3", "dspark")))
def test_smollm2_says_the_same(smollm2_bf16: Path, kind: str) -> None:
    texts = []
    for draft in (None, random_draft(kind, smollm2_bf16)):
        options: dict[str, Any] = {"lookup": 0, "controller": "fixed"} if draft else {}
        with Llama(smollm2_bf16, draft=draft, n_ctx=256, n_threads=1, **options) as llm:
            for temperature in (0.0, 0.9):
                result = llm.create_completion(
                    "Once upon a time", max_tokens=48, temperature=temperature, seed=3
                )
                texts.append(result["choices"][0]["text"])
                if draft:
                    assert result["speculation"]["reason_off"] is None
                    assert result["speculation"]["drafted"] > 32
    assert texts[:2] == texts[2:]
