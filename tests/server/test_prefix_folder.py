"""Stored prefixes survive a restart, for the same model and settings alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.llama.open_model import LlamaState
from pyllama_spec.llama_cpp import LlamaDiskCache
from pyllama_spec.server.prefix_folder import PrefixFolder
from tests.faces.tools import open_tiny
from tests.server.world import TEXT, Client, served

LONG = [97 + (i * i + i // 7) % 26 for i in range(150)]
BODY: dict[str, Any] = {"max_tokens": 12, "temperature": 0}
MIN = 64


def opened(folder: Path, size: int = 1 << 26, kind: str = "llama", **more: Any) -> Llama:
    llm = open_tiny("prompt-lookup", kind, **more)
    llm.set_cache(PrefixFolder(folder, size, MIN))
    return llm


def state_of(ids: Iterable[int]) -> LlamaState:
    """A state of some tokens, with a memory that no engine reads."""
    tokens = tuple(ids)
    return LlamaState(tokens, len(tokens), b"memory", None, None, "model", None, (("k", "f16"),))


def ask(client: Client, prompt: list[int]) -> tuple[str, int]:
    """The text, and how much of the prompt was in memory or in the folder."""
    answer = client.right(TEXT, {**BODY, "prompt": prompt})
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def one_run(folder: Path, prompts: list[list[int]], **more: Any) -> list[tuple[str, int]]:
    """A server that starts, answers, and ends."""
    llm = opened(folder, **more)
    cache: Any = llm.cache
    with served(llm) as client:
        answers = [ask(client, prompt) for prompt in prompts]
    cache.close()
    return answers


@pytest.mark.parametrize("n_parallel", [1, 2])
@pytest.mark.parametrize("kind", ["llama", "mamba"])
def test_after_a_start_it_is_not_read_again(tmp_path: Path, kind: str, n_parallel: int) -> None:
    more = {"kind": kind, "n_parallel": n_parallel}
    prompts = [LONG, [*LONG, 98, 99, 100]]
    first = one_run(tmp_path / "own", prompts[:1], **more)
    (alone,) = one_run(tmp_path / "other", prompts[1:], **more)
    (again,) = one_run(tmp_path / "own", prompts[1:], **more)
    assert first[0][1] == alone[1] == 0
    assert again[0] == alone[0]
    if kind == "llama":  # a recurrent state is that of the whole text, which goes on otherwise
        assert again[1] >= len(LONG) - 1


def test_of_other_models_and_settings_it_is_none(tmp_path: Path) -> None:
    one_run(tmp_path, [LONG])
    for more in ({"kind": "qwen2"}, {"type_k": "f32"}, {"rope_freq_base": 5e4}):
        (answer,) = one_run(tmp_path, [LONG], **more)
        assert answer[1] == 0
    assert one_run(tmp_path, [LONG])[0][1] > 0


@pytest.mark.posix
def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    one_run(folder, [LONG])
    (file,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", ["cut", "changed", "header", "encrypted", "empty", "foreign"])
def test_what_is_damaged_is_thrown_away(tmp_path: Path, damage: str) -> None:
    ((text, _),) = one_run(tmp_path, [LONG])
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    if damage == "cut":
        data = data[:-100]
    elif damage == "changed":
        data[len(data) // 2] ^= 1
    elif damage == "header":
        data[45] ^= 0xFF
    elif damage == "encrypted":  # one bit of the directory says so
        data[data.index(b"PK\1\2") + 8] ^= 1
    elif damage == "empty":
        data = bytearray()
    else:
        data = bytearray(b"\x80\x04pickle" * 40)
    file.write_bytes(data)
    ((again, n_cached),) = one_run(tmp_path, [LONG])
    assert (again, n_cached) == (text, 0)
    # In its place there is a whole one again.
    assert one_run(tmp_path, [LONG])[0][1] > 0


def test_it_takes_no_more_than_it_may(tmp_path: Path) -> None:
    prompts = [[97 + (i * k) % 26 for i in range(120)] for k in (1, 3, 5, 7, 9, 11)]
    one_run(tmp_path, prompts[:1])
    (file,) = tmp_path.iterdir()
    size = 3 * file.stat().st_size + 100
    one_run(tmp_path, prompts, size=size)
    assert 0 < sum(one.stat().st_size for one in tmp_path.iterdir()) <= size
    assert one_run(tmp_path, prompts[-1:])[0][1] > 0  # the newest is there
    assert one_run(tmp_path / "none", prompts[:1], size=10)[0][1] == 0
    assert not list((tmp_path / "none").iterdir())


def test_short_and_known_texts_are_not_written(tmp_path: Path) -> None:
    one_run(tmp_path, [[97, 98, 99]])
    assert not list(tmp_path.iterdir())
    one_run(tmp_path, [LONG, LONG, LONG[:100], [*LONG, 97, 98]])
    assert len(list(tmp_path.iterdir())) == 1


def test_a_disk_cache_has_what_was_put_there(tmp_path: Path) -> None:
    cache, one, two = LlamaDiskCache(tmp_path), state_of(range(5)), state_of([*range(4), 9, 10])
    assert (0,) not in cache
    cache[one.tokens], cache[two.tokens] = one, two
    for again in (cache, LlamaDiskCache(tmp_path)):
        assert again[(0, 1, 2, 3, 4, 5)] == one and again[(0, 1, 2, 3, 9)] == two
        assert again.cache_size == sum(file.stat().st_size for file in tmp_path.iterdir())
    with pytest.raises(KeyError):
        cache[(7,)]


@pytest.mark.posix
def test_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "mine.prefix").write_text("a note")
    os.mkfifo(tmp_path / "pipe.prefix")
    PrefixFolder(tmp_path, 1 << 20).close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_is_gone_costs_no_text(tmp_path: Path) -> None:
    """What is generated is given, whether its state can be stored or not."""
    with open_tiny() as llm:
        expected = llm.create_completion("the cat", **BODY)["choices"]
        llm.set_cache(LlamaDiskCache(tmp_path / "states"))
        (tmp_path / "states").rmdir()
        with pytest.warns(UserWarning, match="is not kept"):
            assert llm.create_completion("the cat", **BODY)["choices"] == expected
