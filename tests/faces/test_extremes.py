"""Sampling options at their extremes: each works, or is refused by name at once."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pyllama_spec import ArgumentError, Llama
from pyllama_spec.engine.sampler import MIN_TEMPERATURE
from tests.faces.tools import PROMPT, open_tiny, text_of

_INF, _NAN = math.inf, math.nan
_TINY = (1e-300, 1e-45, 1e-40, 1e-38, 1e-20, 1e-7, 1e-6)
_HUGE = (1e4, 1e6, 1e10, 1e20, 1e30, 1e38, 3.4e38, 1e39, 1e300, _INF, _NAN)
_REALS = (0.0, *_TINY, *_HUGE, *(-x for x in _TINY), *(-x for x in _HUGE))
_WHOLES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 10**30, -1, -2, -(2**31), -(10**30))

# What has to be set for an option to count.
_BESIDE: dict[str, dict[str, Any]] = {
    "xtc_probability": {"xtc_threshold": 0.1}, "xtc_threshold": {"xtc_probability": 0.5},
    "dry_base": {"dry_multiplier": 1.0, "dry_allowed_length": 1},
    "dry_multiplier": {"dry_allowed_length": 1},
    "dry_allowed_length": {"dry_multiplier": 1.0}, "dry_penalty_last_n": {"dry_multiplier": 1.0},
    "penalty_last_n": {"repeat_penalty": 1.3},
    "mirostat_tau": {"mirostat_mode": 2}, "mirostat_eta": {"mirostat_mode": 1},
    "repeat_penalty": {"penalize_prompt": True}, "frequency_penalty": {"penalize_prompt": True},
    "presence_penalty": {"penalize_prompt": True},
}  # fmt: skip
_OF_REALS = (
    "temperature", "top_p", "min_p", "typical_p", "top_n_sigma", "repeat_penalty",
    "frequency_penalty", "presence_penalty", "dry_multiplier", "dry_base", "xtc_probability",
    "xtc_threshold", "mirostat_tau", "mirostat_eta",
)  # fmt: skip
_OF_WHOLES = (
    "top_k", "min_keep", "penalty_last_n", "dry_allowed_length", "dry_penalty_last_n", "seed",
    "min_tokens", "mirostat_mode",
)  # fmt: skip


def _outcome(llm: Llama, name: str, **options: Any) -> bool:
    """Whether the option works; otherwise it is refused by name."""
    try:
        found = llm.create_completion(PROMPT, max_tokens=4, **{"seed": 1, **options})
    except ArgumentError as error:
        assert name.removesuffix("_mode") in str(error), (options, error)
        assert error.partial_tokens == ()
        return False
    assert found["usage"]["completion_tokens"] > 0, options
    return True


@pytest.mark.parametrize("name", [*_OF_REALS, *_OF_WHOLES])
def test_each_option_works_or_is_refused_by_name(name: str) -> None:
    with open_tiny(n_ctx=256) as llm:
        values: tuple[Any, ...] = _REALS if name in _OF_REALS else _WHOLES
        works = [_outcome(llm, name, **_BESIDE.get(name, {}), **{name: one}) for one in values]
        assert any(works)
        assert not all(works)


@pytest.mark.parametrize("draft", [None, "prompt-lookup"])
@pytest.mark.parametrize("more", [{}, {"repeat_penalty": 1.4}, {"logit_bias": {101: 3.0}}], ids=str)
def test_a_temperature_that_divides_to_infinity_is_greedy(
    draft: str | None, more: dict[str, Any]
) -> None:
    with open_tiny(draft, n_ctx=256) as llm:
        texts = {
            text_of(
                llm.create_completion(PROMPT, max_tokens=24, temperature=one, seed=seed, **more)
            )
            for seed, one in enumerate((0.0, 1e-300, 1e-45, 1e-38, 1e-20, MIN_TEMPERATURE / 2))
        }
    assert len(texts) == 1
