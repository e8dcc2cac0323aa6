"""Random requests with many options: one text with any draft, streamed or not, in parallel."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pyllama_spec.errors import PyllamaSpecError
from tests.faces.tools import PROMPT, open_tiny
from tests.models import EOS
from tests.scripted import Perfect

N_CTX = 96
GRAMMARS = ('root ::= ("a" | "b " | "the")+', "root ::= [a-z0-9 ]{3,60}", 'root ::= "{" [0-9]+ "}"')


def random_options(rng: random.Random) -> dict[str, Any]:
    n = rng.choice([1, 5, 17, 40, 150])
    drawn: dict[str, Any] = {
        "bad_words": [rng.choice(["a", "the", "w", " w", "e", "in", "25"]) for _ in range(3)],
        "min_tokens": rng.randrange(n + 1),
        "ignore_eos": True,
        "stop": [rng.choice(["w", "1", " ", "25", "\n", "ab"]) for _ in range(2)],
        "stop_token_ids": [rng.randrange(300) for _ in range(6)],
        "include_stop_str_in_output": True,
        "logit_bias": {EOS: rng.choice([20.0, 60.0, 200.0])},
        "repeat_penalty": 1.3,
        "typical_p": 0.6,
        "mirostat_mode": 2,
        "grammar": rng.choice(GRAMMARS),
        "context_shift": True,
        "n_keep": rng.choice([0, 3, -1]),
        "n": rng.choice([2, 3]),
        "logprobs": 1,
    }
    chosen = {name: value for name, value in drawn.items() if rng.random() < 0.3}
    temperature = rng.choice([0.0, 0.7, 1.5])
    return {"max_tokens": n, "seed": rng.randrange(1000), "temperature": temperature, **chosen}


def answers_of(llm: Any, options: dict[str, Any], *, stream: bool) -> Any:
    """(text, ids, finish_reason, stop_reason) of each choice, or the error."""
    told: dict[int, list[Any]] = {}
    try:
        given = llm.create_completion(PROMPT, stream=stream, return_token_ids=True, **options)
        for part in given if stream else [given]:
            for choice in part["choices"]:
                one = told.setdefault(choice["index"], ["", [], None, None])
                one[0] += choice["text"]
                one[1] += choice["token_ids"]
                if choice["finish_reason"] is not None:
                    one[2:] = choice["finish_reason"], choice["stop_reason"]
    except PyllamaSpecError as error:
        return type(error), str(error)
    return [told[i] for i in sorted(told)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2"])
def test_random_requests(kind: str) -> None:
    n_texts = 0
    with (
        open_tiny(kind=kind, n_ctx=N_CTX) as plain,
        open_tiny("prompt-lookup", kind, n_ctx=N_CTX, n_parallel=3) as many,
    ):
        for seed in range(25):
            options = random_options(random.Random(f"{kind} {seed}"))
            answers = answers_of(plain, options, stream=False)
            assert answers_of(plain, options, stream=True) == answers, options
            for stream in (False, True):
                assert answers_of(many, options, stream=stream) == answers, options
            if not isinstance(answers, list):
                continue
            n_texts += 1
            with open_tiny(Perfect([*PROMPT, *answers[0][1]]), kind, n_ctx=N_CTX) as drafted:
                assert answers_of(drafted, options, stream=False) == answers, options
            for text, ids, _, stop_reason in answers:
                assert len(ids) <= options["max_tokens"]
                assert not any(word in text for word in options.get("bad_words", ()))
                is_kept = "include_stop_str_in_output" in options
                if isinstance(stop_reason, str) and is_kept:
                    assert text.endswith(stop_reason)
    assert n_texts > 20
