"""A real target with a random draft: the text is exact, and nothing is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from tests.dflash_tools import KINDS
from tests.models import model_path
from tests.tiers import release_except

SUBJECTS = (
    "why the sky is blue", "how to boil an egg", "what a prime number is", "the rules of chess",
    "how a bicycle stays upright", "what a mortgage is", "how bread rises", "the water cycle",
)  # fmt: skip
FORMS = ("Explain {} to a child.", "Write a short poem about {}.", "List five facts about {}.")
PROMPTS = [form.format(subject) for subject in SUBJECTS for form in FORMS]
N_TOKENS = 128


DRAFTS: dict[str, dict[str, Any]] = {
    "eagle3": {"n_vocab": 49152, "target_n_embd": 576, "n_embd": 576},
    **{kind: {"mask_token": 5, **options} for kind, options in KINDS.items()},
}


def random_draft(kind: str, target: Path, **options: Any) -> Path:
    """A small draft of random weights for SmolLM2-135M."""
    return model_path(
        "eagle3" if kind == "eagle3" else "dflash", target=target, target_layers=(2, 15, 27),
        n_head=9, n_head_kv=3, n_ff=768, n_draft_vocab=4096, own_embedding=False,
        weight_type="bf16", **DRAFTS[kind], **options,
    )  # fmt: skip


@pytest.mark.parametrize("every", release_except((6, 1), (6,)))
def test_a_head_of_random_weights(smollm2_q4_0: Path, every: int) -> None:
    head = random_draft("eagle3", smollm2_q4_0, fc_norm=True, norm_output=True)
    drafted = accepted = 0
    with (
        Llama(smollm2_q4_0, n_ctx=512) as plain,
        Llama(
            smollm2_q4_0, draft=head, n_draft=2, lookup=0, controller="fixed", n_ctx=512
        ) as speculative,
    ):
        for prompt in PROMPTS[::every]:
            messages = [{"role": "user", "content": prompt}]
            texts = []
            for llm in (plain, speculative):
                result = llm.create_chat_completion(messages, max_tokens=N_TOKENS, temperature=0)
                texts.append(result["choices"][0]["message"]["content"])
            assert texts[0] == texts[1]
            stats = result["speculation"]
            assert stats["reason_off"] is None
            drafted += stats["drafted"]
            accepted += stats["accepted"]
    assert len(PROMPTS) == 24
    assert drafted > 3000 // every
    assert accepted / drafted < 0.02, json.dumps({"drafted": drafted, "accepted": accepted})


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
