"""Requests asked for in an event loop: the order of the calls, and what takes long to make.

A request's options may block until an event is set, so that no test depends on a clock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from pyllama_spec import ArgumentError, CancelledError, Llama
from tests.faces.parallel_tools import nothing_stays_behind, open_wide
from tests.faces.tools import GREEDY, PROMPT, text_of

__all__ = ["nothing_stays_behind"]

N_CLIENTS = 6
MESSAGES = [{"role": "user", "content": "the cat"}]
PLACES = pytest.mark.parametrize("n_parallel", [1, 2, 4])


class Held(Mapping[Any, Any]):
    """An option that can be read once an event has come."""

    def __init__(self, values: Mapping[Any, Any] | None = None) -> None:
        self.values_, self.opened, self.entered = values or {}, threading.Event(), threading.Event()

    def _wait(self) -> None:
        self.entered.set()
        assert self.opened.wait(60)

    def __getitem__(self, key: Any) -> Any:
        self._wait()
        return self.values_[key]

    def __iter__(self) -> Iterator[Any]:
        self._wait()
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


class Begun:
    """Notes which texts have begun, in their order."""

    def __init__(self) -> None:
        self.order: list[int] = []

    def of(self, i: int) -> Any:
        def processor(ids: Any, scores: Any) -> Any:
            if i not in self.order:
                self.order.append(i)
            return scores

        return processor


async def soon(condition: Any) -> None:
    """Lets the loop go on until something is so."""
    while not condition():
        await asyncio.sleep(0.001)


def _call(llm: Llama, i: int, begun: Begun, **more: Any) -> Any:
    options = {"max_tokens": 3, "logits_processor": begun.of(i), **GREEDY, **more}
    if i % 2:
        return llm.acreate_chat_completion(MESSAGES, **options)
    return llm.acreate_completion([*PROMPT, 97 + i], **options)


@PLACES
@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("last_made", [(0,), (2,), (0, 1, 3)])
def test_calls_are_served_in_their_order(
    n_parallel: int, is_slow: bool, last_made: tuple[int, ...]
) -> None:
    """The order of the calls decides, however long each takes to prepare."""
    more: dict[str, Any] = {"response_format": {"type": "json_object"}} if is_slow else {}
    with open_wide(n_parallel=n_parallel) as llm:

        async def main() -> None:
            begun, held = Begun(), {i: Held() for i in last_made}
            calls = [
                asyncio.ensure_future(
                    _call(llm, i, begun, **more, **({"logit_bias": held[i]} if i in held else {}))
                )
                for i in range(N_CLIENTS)
            ]
            for one in held.values():
                await soon(one.entered.is_set)
            # Those before it go on, and as many behind it as there are places left.
            n_free = max(n_parallel - len(held), 0) + min(last_made)
            await soon(lambda: len(begun.order) >= n_free)
            for one in reversed(held.values()):
                one.opened.set()
            await asyncio.gather(*calls)
            if n_parallel == 1:
                assert begun.order == list(range(N_CLIENTS))
            assert sorted(begun.order) == list(range(N_CLIENTS))

        asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_what_is_made_quickly_waits_for_no_schema(n_parallel: int) -> None:
    """Quick requests run while more slow schemas are read than there are threads."""
    with open_wide(n_parallel=n_parallel) as llm:

        async def main() -> None:
            held = [Held({"type": "json_object"}) for _ in range(20)]
            slow = [
                asyncio.ensure_future(
                    llm.acreate_completion(PROMPT, max_tokens=3, response_format=one, **GREEDY)
                )
                for one in held
            ]
            await soon(lambda: sum(one.entered.is_set() for one in held) >= 8)
            for _ in range(3):
                assert text_of(await llm.acreate_completion(PROMPT, max_tokens=3, **GREEDY))
                assert (await llm.acreate_chat_completion(MESSAGES, max_tokens=3))["choices"]
            assert not any(one.done() for one in slow)
            for one in held:
                one.opened.set()
            assert all(text_of(one) for one in await asyncio.gather(*slow))

        asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_a_call_that_makes_no_request_holds_up_nobody(n_parallel: int) -> None:
    """A call that is refused, cancelled or closed while it is prepared holds up no other."""
    with open_wide(n_parallel=n_parallel) as llm:

        async def main() -> None:
            begun, held, late_held = Begun(), Held(), Held()
            given_up = asyncio.ensure_future(
                llm.acreate_completion(PROMPT, max_tokens=3, logit_bias=held, **GREEDY)
            )
            refused = asyncio.ensure_future(
                llm.acreate_completion(PROMPT, max_tokens="many", **GREEDY)
            )
            late = asyncio.ensure_future(
                llm.acreate_completion(PROMPT, logit_bias=late_held, timeout_s=0.01)
            )
            calls = [asyncio.ensure_future(_call(llm, i, begun)) for i in range(4)]
            await soon(held.entered.is_set)
            given_up.cancel()
            for one, error in (
                (given_up, asyncio.CancelledError), (refused, ArgumentError),
                (late, CancelledError),
            ):  # fmt: skip
                with pytest.raises(error):
                    await one
            await asyncio.gather(*calls)
            for option in (held, late_held):
                option.opened.set()
            if n_parallel == 1:
                assert begun.order == list(range(4))

        asyncio.run(asyncio.wait_for(main(), 120))
