"""A real target with a random head: the text is exact, and nothing is accepted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyllama_spec import Llama
from tests.models import model_path
from tests.tiers import release_except

SUBJECTS = (
    "why the sky is blue", "how to boil an egg", "what a prime number is", "the rules of chess",
    "how a bicycle stays upright", "what a mortgage is", "how bread rises", "the water cycle",
)  # fmt: skip
FORMS = ("Explain {} to a child.", "Write a short poem about {}.", "List five facts about {}.")
PROMPTS = [form.format(subject) for subject in SUBJECTS for form in FORMS]
N_TOKENS = 128


def random_head(target: Path, **options: object) -> Path:
    """A small head of random weights for SmolLM2-135M."""
    return model_path(
        "eagle3", target=target, n_vocab=49152, target_n_embd=576, target_layers=(2, 15, 27),
        n_embd=576, n_head=9, n_head_kv=3, n_ff=768, n_draft_vocab=4096, own_embedding=False,
        weight_type="bf16", **options,
    )  # fmt: skip


@pytest.mark.parametrize("every", release_except((6, 1), (6,)))
def test_a_head_of_random_weights(smollm2_q4_0: Path, every: int) -> None:
    head = random_head(smollm2_q4_0, fc_norm=True, norm_output=True)
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


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_sampled_text_with_a_seed(smollm2_bf16: Path, temperature: float) -> None:
    head = random_head(smollm2_bf16)
    texts = []
    for draft in (None, head):
        with Llama(smollm2_bf16, draft=draft, controller="fixed", n_ctx=256) as llm:
            result = llm.create_completion(
                "Once upon a time", max_tokens=48, temperature=temperature, seed=3
            )
            texts.append(result["choices"][0]["text"])
    assert texts[0] == texts[1]
