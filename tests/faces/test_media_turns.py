"""Who reads pictures, until when, and for whom they are kept."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.engine.media import Part, Prepared, Projector
from pyllama_spec.errors import CancelledError, ContextFullError, DeadlineError
from tests.fuzz import runner
from tests.media_tools import file_of, picture, seeing, url_of
from tests.models import model_path


class Watched:
    """The outcomes of the computed pictures, and an event as the first one begins."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outcomes: list[str] = []
        self.begun = threading.Event()
        computed = Projector.computed

        def watched(eyes: Projector, prepared: Prepared) -> tuple[Part, ...]:
            self.begun.set()
            try:
                parts = computed(eyes, prepared)
            except BaseException as error:
                self.outcomes.append(type(error).__name__)
                raise
            self.outcomes.append("done")
            return parts

        monkeypatch.setattr(Projector, "computed", watched)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


@pytest.fixture
def llm() -> Iterator[Llama]:
    model = seeing("qwen3vl")
    path = model_path("projector", family="qwen3vl", n_layer=8)
    with Llama(model.path, mmproj_path=path, n_ctx=4096, n_threads=1, n_parallel=2) as llm:
        yield llm


def asked(side: int, seed: int = 0, **options: Any) -> dict[str, Any]:
    """A chat about a picture; one of 280 takes seconds."""
    content = [url_of(file_of(picture(side, side, seed))), {"type": "text", "text": "what?"}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 4, **options}


def test_what_does_not_fit_is_refused_before_a_row_is_computed(
    llm: Llama, watched: Watched
) -> None:
    request = asked(32)
    request["messages"][0]["content"].append(url_of(file_of(picture(600, 600))))
    with pytest.raises(ContextFullError):
        llm.create_chat_completion(**request)
    assert not watched.outcomes


def test_no_more_pictures_are_scaled_than_fit(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 70 bytes takes megabytes then."""
    n_scaled, prepared_image = 0, Projector.prepared_image

    def counted(eyes: Projector, pixels: Any) -> Prepared:
        nonlocal n_scaled
        n_scaled += 1
        return prepared_image(eyes, pixels)

    monkeypatch.setattr(Projector, "prepared_image", counted)
    request = asked(320)
    request["messages"][0]["content"] *= 50
    with pytest.raises(ContextFullError):
        llm.create_chat_completion(**request)
    assert 1 < n_scaled < 20


def test_the_first_token_comes_after_the_picture(llm: Llama) -> None:
    begin = time.perf_counter()
    timing = llm.create_chat_completion(**asked(200))["timing"]
    wall_s = time.perf_counter() - begin
    assert timing["first_token_s"] > 0.8 * wall_s
    assert timing["queue_s"] < 0.2 * wall_s


@pytest.mark.parametrize("queued", [False, True])
def test_a_cancelled_task_ends_its_own_picture(llm: Llama, watched: Watched, queued: bool) -> None:
    async def run() -> None:
        first = asyncio.ensure_future(llm.acreate_chat_completion(**asked(280)))
        await asyncio.to_thread(watched.begun.wait)
        second = asyncio.ensure_future(llm.acreate_chat_completion(**asked(280, 1)))
        await asyncio.sleep(0.1)
        gone, stays = (second, first) if queued else (first, second)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert (await stays)["choices"][0]["finish_reason"]

    asyncio.run(run())
    assert watched.outcomes == (["done"] if queued else ["CancelledError", "done"])


def test_a_deadline_ends_a_picture(llm: Llama, watched: Watched) -> None:
    with pytest.raises(DeadlineError):
        llm.create_chat_completion(**asked(280, timeout_s=0.2))
    assert watched.outcomes == ["CancelledError"]


def test_cancel_ends_all_pictures(llm: Llama, watched: Watched) -> None:
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(llm.create_chat_completion, **asked(280, seed)) for seed in range(2)
        ]  # fmt: skip
        assert llm._eyes is not None
        while len(llm._eyes._asking) < 2:  # one reads, the other waits for its turn
            time.sleep(0.01)
        llm.cancel()
        for call in calls:
            with pytest.raises(CancelledError):
                call.result()
    assert "done" not in watched.outcomes
    assert llm.create_chat_completion(**asked(32))


def test_pictures_are_kept_for_their_user_alone(llm: Llama, watched: Watched) -> None:
    for user in ("one", "two"):
        with ThreadPoolExecutor(8) as pool:
            calls = [
                pool.submit(llm.create_chat_completion, **asked(64), user=user) for _ in range(8)
            ]  # fmt: skip
            assert all(call.result() for call in calls)
    assert watched.outcomes == ["done"] * 2


def test_a_forked_child_waits_for_no_thread_of_its_parent(llm: Llama) -> None:
    assert llm._eyes is not None
    with llm._eyes._reading:
        end = runner.run(lambda: llm.create_chat_completion(**asked(32)))
    assert end.kind == "ForkedError", end
