"""States, caches and adapters: a state is reused only with the settings it was computed with."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.errors import ArgumentError, ContextFullError
from pyllama_spec.llama.caches import BaseLlamaCache, LlamaRAMCache
from pyllama_spec.llama.open_model import LlamaState
from tests.faces.tools import GREEDY, open_tiny
from tests.models import model_path
from tests.models.adapter import write_adapter
from tests.oracles import prompt_tokens

PROMPT = prompt_tokens(60)
# Which settings count is told in tests/engine/test_identity.py.
OTHERS: list[dict[str, Any]] = [{"type_k": "f32"}, {"rope_freq_base": 5e3}, {"seed_of_weights": 5}]
EQUALS: list[dict[str, Any]] = [{"n_ctx": 512}, {"draft": "prompt-lookup", "seed": 3}]


class Unaware(BaseLlamaCache):
    """A user's own cache that returns any state that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.state: LlamaState | None = None
        self.asked: list[Sequence[int]] = []

    @property
    def cache_size(self) -> int:
        return 0

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        self.asked.append(key)
        if self.state is None:
            raise KeyError
        return self.state

    def __contains__(self, key: Sequence[int]) -> bool:
        return self.state is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        self.state = value


def opened(seed_of_weights: int = 0, draft: Any = None, **options: Any) -> Llama:
    path = model_path("llama", seed=seed_of_weights, output_scale=3.0)
    return Llama(path, n_threads=1, draft=draft, controller="fixed", **{"n_ctx": 256, **options})


def text(llm: Llama, prompt: Sequence[int] = PROMPT, n: int = 12) -> str:
    found: Any = llm.create_completion(list(prompt), max_tokens=n, **GREEDY)
    return str(found["choices"][0]["text"])


def n_cached(llm: Llama, prompt: Sequence[int]) -> int:
    found: Any = llm.create_completion(list(prompt), max_tokens=1, **GREEDY)
    n: int = found["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert found["usage"]["prompt_tokens"] == len(prompt) > n
    return n


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    target, folder = model_path("llama", seed=0, output_scale=3.0), tmp_path_factory.mktemp("lora")
    return [write_adapter(target, folder / f"{i}.gguf", seed=i) for i in range(3)]


@pytest.mark.parametrize("options", OTHERS, ids=str)
def test_a_state_of_other_settings_is_refused_and_no_cache_gives_it(
    options: dict[str, Any],
) -> None:
    caches: list[Any] = [LlamaRAMCache(), Unaware()]
    with opened() as llm, opened(**options) as other:
        want = text(other)
        text(llm)
        state = llm.save_state()
        with pytest.raises(ArgumentError):
            other.load_state(state)
        for cache in caches:
            other.reset()
            llm.set_cache(cache)
            other.set_cache(cache)
            text(llm)
            assert text(other) == want
            assert text(other) == want
    assert len(caches[0].cache_state) == 2, "both under the same tokens"


@pytest.mark.parametrize("options", EQUALS, ids=str)
def test_a_state_of_equal_settings_is_taken(options: dict[str, Any]) -> None:
    cache = LlamaRAMCache()
    with opened() as llm, opened(**options) as other:
        llm.set_cache(cache)
        want = text(llm, [*PROMPT, 5, 6])
        other.load_state(llm.save_state())
        assert n_cached(other, [*PROMPT, 5, 6]) == len(PROMPT) + 1
        other.reset()
        other.set_cache(cache)
        assert n_cached(other, [*PROMPT, 5, 6]) == len(PROMPT) + 1
        assert text(other, [*PROMPT, 5, 6]) == want
    small = LlamaRAMCache(capacity_bytes=1)
    small[(1, 2)] = next(iter(cache.cache_state.values()))
    assert (1, 2) not in small


def test_a_state_that_cannot_be_read_is_a_miss_in_a_cache() -> None:
    cache = Unaware()
    with opened() as llm, opened(n_ctx=64) as short:
        want = text(llm)
        state = llm.save_state()
        broken = [
            replace(state, memory=state.memory[:-40]), replace(state, memory=b""),
            replace(state, memory=b"x" * 1000), replace(state, drafter=b"nothing"),
            replace(state, settings=()), replace(state, model=""),
        ]  # fmt: skip
        llm.set_cache(cache)
        for one in broken:
            llm.reset()
            cache.state = one
            assert text(llm) == want
        with pytest.raises(ArgumentError):
            llm.load_state(broken[0])
        llm.set_cache(None)
        text(llm, n=100)
        cache.state = llm.save_state()  # more than the other one has room for
        short.set_cache(cache)
        assert text(short, PROMPT, 3) == want[: len(text(short, PROMPT, 3))]
    with opened(n_parallel=2) as wide:  # whose sequences lie otherwise
        wide.set_cache(cache)
        assert text(wide) == want


def test_states_with_adapters_fit_their_own_alone(adapters: list[Path]) -> None:
    with opened(lora_path=adapters[0]) as llm, opened() as other:
        want = text(llm)
        state = pickle.loads(pickle.dumps(llm.save_state()))
        for pairs in ([], [(adapters[1], 1.0)], [(adapters[0], 0.9)]):
            other.set_adapters(pairs)
            with pytest.raises(ArgumentError):
                other.load_state(state)
        other.set_adapters([(adapters[0], 1.0)])
        other.load_state(state)
        assert text(other) == want


@pytest.mark.parametrize("kind", ["llama", "bert", "gemma3", "qwen35"])
@pytest.mark.parametrize("pooling", [0, 1])
def test_texts_of_a_list_are_embedded_as_each_alone(kind: str, pooling: int) -> None:
    texts = ["the cat", "a", "sat on a mat " * 4, "dogs and cats " * 9, "the cat", "x" * 40]
    with open_tiny(kind=kind, embedding=True, pooling_type=pooling) as llm:
        alone = [llm.embed(one) for one in texts]
        assert llm.embed(texts) == alone
        assert llm.embed(texts[::-1]) == alone[::-1]
        assert [one["embedding"] for one in llm.create_embedding(texts)["data"]] == alone


@pytest.mark.parametrize("n_read", [60, 300], ids=["within the padding", "beyond it"])
def test_a_state_with_more_tokens_than_the_context_is_refused(n_read: int) -> None:
    with open_tiny(n_ctx=512) as long, open_tiny(n_ctx=16) as short:
        long.eval([5 + i % 90 for i in range(n_read)])
        short.eval(PROMPT[:4])
        with pytest.raises(ContextFullError):
            short.load_state(long.save_state())
        assert short.n_tokens == 4
        short.sample(temp=0.0)
        long.reset()
        long.eval(list(range(5, 21)))
        short.load_state(long.save_state())  # just fits
        assert short.n_tokens == 16


@pytest.mark.parametrize(
    ("field", "value"),
    [("tokens", (9, 9, 9)), ("n_decoded", 5), ("n_given", 3), ("settings", "?"), ("seed", 8)],
)
def test_a_damaged_field_of_a_pickled_state_is_refused(field: str, value: Any) -> None:
    with opened() as llm:
        text(llm)
        state = pickle.loads(pickle.dumps(llm.save_state()))
        object.__setattr__(state, field, value)
        with pytest.raises(ArgumentError):
            llm.load_state(state)
