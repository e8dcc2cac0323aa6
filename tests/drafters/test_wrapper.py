"""A wrapper passes on the round's calls to every kind of drafter inside it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import DrafterWrapper, Llama
from pyllama_spec.drafters import (
    Committed,
    DFlash,
    Draft,
    Drafter,
    DraftRequest,
    Eagle3,
    LookupFirst,
    Mtp,
    NoDrafter,
    PromptLookup,
    SmallModel,
    Suffix,
)
from tests.faces.tools import GREEDY
from tests.models import model_path

TEXT = list(b"one two three four, " * 6)
# The second text departs from the first one, and the third begins anew.
PROMPTS = (TEXT, [*TEXT[:20], *b"four five one two"], list(b"another one, two, one, two"))


class Halved(DrafterWrapper):
    """Asks for half as many tokens, at least one."""

    def propose_one(self, request: DraftRequest) -> Draft:
        return super().propose_one(request._replace(n_requested=(request.n_requested + 1) // 2))


class HalvedLists(DrafterWrapper):
    """The same by the list form."""

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        return super().propose([r._replace(n_requested=(r.n_requested + 1) // 2) for r in requests])


class Told(DrafterWrapper):
    """Overrides the other half: what it is told."""

    def commit_one(self, done: Committed) -> None:
        super().commit_one(done)


class Memo(Drafter):
    """A user's drafter with a state and without a copy(): it proposes what it was told."""

    name = "memo"

    def __init__(self) -> None:
        self.known: dict[int, list[int]] = {}

    def propose_one(self, request: DraftRequest) -> Draft:
        known = self.known[request.seq]
        assert known == request.tokens[:], "told another text than it is asked for"
        return Draft(known[-8:][: request.n_requested])

    def commit_one(self, done: Committed) -> None:
        known = self.known.setdefault(done.seq, [])
        assert done.start == len(known)
        known.extend(done.tokens)

    def truncate(self, seq: int, n_keep: int) -> None:
        del self.known.get(seq, [])[n_keep:]


def small() -> SmallModel:
    return SmallModel(model_path("llama", seed=9, output_scale=3.0), 4)


KINDS: dict[str, Callable[[], Drafter]] = {
    "none": NoDrafter,
    "grammar": lambda: NoDrafter("grammar", 8),
    "memo": Memo,
    "prompt-lookup": lambda: PromptLookup(6, max_ngram=2, min_ngram=1),
    "suffix": lambda: Suffix(6),
    "eagle3": lambda: Eagle3(model_path("eagle3"), 4),
    "dflash": lambda: DFlash(model_path("dflash")),
    "mtp": lambda: Mtp(None, 4),
    "small model": small,
    "lookup first": lambda: LookupFirst(Eagle3(model_path("eagle3"), 4), 3),
    "lookup first of a user's": lambda: LookupFirst(Memo(), 3),
}
NEVER = ("none", "grammar")


def target_of(kind: str) -> Path:
    return model_path("glm4moe", n_heads=1) if kind == "mtp" else model_path("llama")


def played(kind: str, wrap: Callable[[Drafter], Drafter], n_parallel: int = 1) -> Any:
    """The texts and figures of three requests on two models, each state restored once."""
    drafter = wrap(KINDS[kind]())
    found: list[Any] = []
    with drafter, Llama(
        target_of(kind), draft=drafter, controller="fixed", n_ctx=512, n_threads=1,
        n_parallel=n_parallel,
    ) as llm:  # fmt: skip
        answer = llm(PROMPTS[0], max_tokens=24, **GREEDY)
        found.append(answer)
        state = llm.save_state()
        found += [llm(prompt, max_tokens=24, **GREEDY) for prompt in PROMPTS[1:]]
        llm.load_state(state)
        again = [*PROMPTS[0], *llm.tokenize(answer["choices"][0]["text"].encode(), False)]
        found.append(llm(again, max_tokens=8, **GREEDY))
        if n_parallel > 1:  # copies of one beginning, in common rounds
            found += [llm(PROMPTS[0], max_tokens=16, n=3, **GREEDY)]
    return [
        ([choice["text"] for choice in answer["choices"]], figures(answer["speculation"]))
        for answer in found
    ]


def figures(speculation: dict[str, Any]) -> dict[str, Any]:
    """The figures that a wrapper may not change."""
    keys = ("drafter", "proposed", "drafted", "accepted_histogram", "reason_off")
    return {key: speculation[key] for key in keys}


@cache
def bare(kind: str, n_parallel: int = 1) -> Any:
    found = played(kind, lambda drafter: drafter, n_parallel)
    assert all(about["reason_off"] is None for _, about in found)
    assert any(about["proposed"] for _, about in found) or kind in NEVER
    return found


def quick_ones(kinds: Iterable[str], *quick: str) -> list[Any]:
    """The kinds as cases; the others take as long again, and are slow."""
    return [kind if kind in quick else pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


@pytest.mark.parametrize("kind", quick_ones(KINDS, "memo", "eagle3", "lookup first of a user's"))
def test_a_wrapper_that_changes_nothing_changes_nothing(kind: str) -> None:
    assert played(kind, lambda drafter: Told(DrafterWrapper(drafter))) == bare(kind)


@pytest.mark.parametrize(
    "kind", quick_ones([kind for kind in KINDS if kind not in NEVER], "memo", "eagle3")
)
def test_drafts_are_halved_in_either_form(kind: str) -> None:
    halved = played(kind, Halved)
    assert played(kind, HalvedLists) == halved
    assert [texts for texts, _ in halved] == [texts for texts, _ in bare(kind)]
    assert [about["reason_off"] for _, about in halved] == [None] * len(halved)
    assert any(about["proposed"] for _, about in halved)
    per_round = [
        sum(one["drafted"] for _, one in of) / sum(sum(one["accepted_histogram"]) for _, one in of)
        for of in (halved, bare(kind))
    ]
    assert per_round[0] < per_round[1]


def test_it_passes_on_whatever_a_drafter_has() -> None:
    of_its_own = {"__repr__", "__init__"}
    for name, value in vars(Drafter).items():
        is_part = callable(value) or isinstance(value, property)
        if is_part and not name.startswith("_") and name not in of_its_own:
            assert name in vars(DrafterWrapper), f"DrafterWrapper does not pass on {name}()"
    for name in inspect.get_annotations(Drafter):
        assert name in vars(DrafterWrapper), f"DrafterWrapper does not pass on {name}"
