"""Every request uses the adapters that it was made with, beside any others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.engine import Adapter
from tests.faces.parallel_tools import nothing_stays_behind, open_wide
from tests.faces.tools import PROMPT, SAMPLED, open_tiny, text_of
from tests.models import model_path
from tests.models.adapter import write_adapter

__all__ = ["nothing_stays_behind"]

SETS = ("none", "A", "B", "half of A", "A and B")
ASKED: dict[str, Any] = {"max_tokens": 40, **SAMPLED}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two adapters of the tiny model."""
    folder, target = tmp_path_factory.mktemp("adapters"), model_path("llama")
    return [write_adapter(target, folder / f"{seed}.gguf", seed=seed) for seed in (1, 2)]


def sets(llm: Llama, files: list[Path]) -> dict[str, list[tuple[Adapter, float]]]:
    """Some choices of adapters, by name."""
    a, b = (Adapter(llm.model, file) for file in files)
    return {
        "none": [], "A": [(a, 1.0)], "B": [(b, 1.0)], "half of A": [(a, 0.5)],
        "A and B": [(a, 1.0), (b, 1.0)],
    }  # fmt: skip


@pytest.fixture(scope="module")
def texts(files: list[Path]) -> dict[str, str]:
    """The text of each choice alone."""
    found = {}
    for name in SETS:
        with open_tiny() as llm:
            llm.set_adapters(sets(llm, files)[name])
            found[name] = text_of(llm(PROMPT, **ASKED))
    assert len(set(found.values())) == len(SETS)
    return found


@pytest.mark.parametrize(
    ("n_parallel", "draft"),
    [
        (1, None), (2, "prompt-lookup"),
        *(
            pytest.param(n, draft, marks=pytest.mark.slow)
            for n, draft in ((1, "eagle3"), (2, "eagle3"), (5, None), (5, "eagle3"))
        ),
    ],
)  # fmt: skip
def test_streams_with_different_adapters_side_by_side(
    n_parallel: int, draft: str | None, files: list[Path], texts: dict[str, str]
) -> None:
    """They begin alike, but the memory of other adapters is not reused."""
    path: Any = model_path("eagle3") if draft == "eagle3" else draft
    with open_tiny(path, n_parallel=n_parallel) as llm:
        chosen = sets(llm, files)
        for _ in range(2):
            streams, found = {}, dict.fromkeys(SETS, "")
            for name in SETS:
                llm.set_adapters(chosen[name])
                streams[name] = llm(PROMPT, stream=True, **ASKED)
            while streams:
                for name in list(streams):
                    chunk = next(streams[name], None)
                    if chunk is None:
                        del streams[name]
                    else:
                        found[name] += text_of(chunk)
            assert found == texts


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_each_request_of_a_loop_has_its_own(
    n_parallel: int, files: list[Path], texts: dict[str, str]
) -> None:
    """Parallel requests, whole and streamed; the others keep those of set_adapters()."""

    async def ask(llm: Llama, chosen: list[tuple[Adapter, float]], *, stream: bool) -> str:
        with llm.with_adapters(chosen):
            if not stream:
                return text_of(await llm.acreate_completion(PROMPT, **ASKED))
            handle: Any = await llm.acreate_completion(PROMPT, stream=True, **ASKED)
        async with handle:  # outside: it has what it was made with
            return "".join([text_of(chunk) async for chunk in handle])

    async def all_of(llm: Llama, chosen: dict[str, list[tuple[Adapter, float]]]) -> None:
        names = [name for name in SETS for _ in range(2)]
        asked = [ask(llm, chosen[name], stream=i % 2 == 0) for i, name in enumerate(names)]
        rest = llm.acreate_completion(PROMPT, **ASKED)
        *found, other = await asyncio.gather(*asked, rest)
        assert found == [texts[name] for name in names]
        assert text_of(other) == texts["B"]

    with open_wide(n_parallel=n_parallel) as llm:
        chosen = sets(llm, files)
        llm.set_adapters(chosen["B"])
        asyncio.run(all_of(llm, chosen))
        for name in ("A", "none", "A and B"):
            with llm.with_adapters(chosen[name]):
                stream = llm(PROMPT, stream=True, **ASKED)
                assert text_of(llm(PROMPT, **ASKED)) == texts[name]
                with llm.with_adapters(chosen["half of A"]):
                    assert text_of(llm(PROMPT, **ASKED)) == texts["half of A"]
                assert text_of(llm(PROMPT, **ASKED)) == texts[name]
            assert text_of(llm(PROMPT, **ASKED)) == texts["B"]
            assert "".join(map(text_of, stream)) == texts[name]
