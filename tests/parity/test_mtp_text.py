"""The text with an MTP head equals plain decoding, greedy and seeded, bit by bit.

The heads are right sometimes: those of PERM as often as the temperature or the target's layers
allow, and random heads only by chance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import Mtp, NoDrafter
from pyllama_spec.engine import SamplerParams
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.models import model_path
from tests.models.mtp import SEVERAL
from tests.mtp_tools import ARCHS, mtp_context, with_head
from tests.oracles import GREEDY, LoopRun, generate, sampled, tiny
from tests.tiers import release_except

N_TOKENS = 40
KINDS: dict[str, dict[str, Any]] = {
    "random": {"output_scale": 3.0},
    "noisy": {"output_scale": 8.0, "mixing": 0.1},
    "perm": {"output_scale": 8.0, "mixing": 0.03},
}
SAMPLINGS = {"greedy": GREEDY, "seeded": sampled(7)}
PROMPTS = [[int(i) for i in np.random.default_rng(n).integers(0, 256, n)] for n in (1, 20, 45)]


def _texts(arch: str, kind: str, params: SamplerParams, k: int, n_heads: int = 1) -> list[LoopRun]:
    """The texts of all prompts, one after the other on one sequence; k 0: plain, without a head."""
    name, options = (arch, KINDS[kind]) if kind == "random" else ("perm_mtp", KINDS[kind])
    more = {"arch": arch} if kind != "random" else {}
    options = {**options, **more, "n_heads": n_heads}
    model = with_head(name, **options) if k else tiny(name, **options)
    drafter = Mtp(max_draft=k) if k else NoDrafter()
    with mtp_context(model, drafter) as context:
        loop, seq = SpeculativeLoop(context, drafter), SequenceState()
        runs = [generate(loop, seq, p, N_TOKENS, params, keep_rows=True) for p in PROMPTS]
        drafter.close()
    return runs


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_that_of_plain_decoding(arch: str, sampling: str, kind: str) -> None:
    plain = _texts(arch, kind, SAMPLINGS[sampling], 0)
    drafted = _texts(arch, kind, SAMPLINGS[sampling], 4)
    for one, other in zip(plain, drafted, strict=True):
        assert other.tokens == one.tokens
        np.testing.assert_array_equal(np.array(other.rows), np.array(one.rows))
        assert other.stats.reason_off is None
    stats = [run.stats for run in drafted]
    n_accepted, n_drafted = (sum(getattr(s, n) for s in stats) for n in ("accepted", "drafted"))
    assert n_drafted > 0
    # Between them the cases have all that can become of a draft.
    if kind == "random":
        assert n_accepted < n_drafted
    elif arch == "qwen35" and (kind, sampling) in (("noisy", "greedy"), ("perm", "seeded")):
        assert 0 < n_accepted < n_drafted
    elif kind == "perm":
        assert n_accepted > 0


@pytest.mark.parametrize("arch", release_except(SEVERAL, ("step35",)))
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_with_several_heads(arch: str, sampling: str, kind: str) -> None:
    plain = _texts(arch, kind, SAMPLINGS[sampling], 0, 3)
    drafted = _texts(arch, kind, SAMPLINGS[sampling], 4, 3)
    for one, other in zip(plain, drafted, strict=True):
        assert other.tokens == one.tokens
        np.testing.assert_array_equal(np.array(other.rows), np.array(one.rows))
        assert other.stats.reason_off is None
    assert max(step.n_drafted for run in drafted for step in run.steps) == 3


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
def test_chats_with_a_schema_side_by_side(arch: str) -> None:
    """Through the public interface, with controller, copies and forced tokens beside the head."""
    path = model_path(arch, n_heads=1, output_scale=3.0)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    options: dict[str, Any] = {
        "max_tokens": 24, "temperature": 0.8, "seed": 5,
        "response_format": {"type": "json_object", "schema": schema},
    }  # fmt: skip
    prompts = [f"Say {i} as JSON." for i in range(5)]
    texts = []
    for draft in (None, "mtp", "auto"):
        for n_parallel in (1, 3):
            with Llama(
                path, draft=draft, n_ctx=256, n_threads=1, n_parallel=n_parallel, seed=3
            ) as llm:
                answer = llm.create_completion(prompts, **options)
                texts.append([choice["text"] for choice in answer["choices"]])
    assert all(text == texts[0] for text in texts)
