"""Streams that nobody reads: copies of suspended ones are bounded, and dropped ones end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyllama_spec.speculative import ProfitController
from tests.faces.parallel_tools import nothing_stays_behind, open_wide
from tests.faces.test_request_handles import PLACES, Gate, stream_of, text_of_whole, until
from tests.faces.tools import GREEDY, PROMPT, SAMPLED, open_tiny, text_of
from tests.models import model_path

__all__ = ["nothing_stays_behind"]


class _Pauseless(ProfitController):
    def pause(self, seq: int) -> None:
        raise RuntimeError("no pause")


@PLACES
def test_a_controller_that_cannot_pause_ends_its_stream(n_parallel: int) -> None:
    """The error reaches the stream's reader, and the next request gets the place."""
    options: dict[str, Any] = {"max_tokens": 200, "temperature": 0.0, "ignore_eos": True}
    with open_tiny("prompt-lookup", controller=_Pauseless(), n_parallel=n_parallel) as llm:
        streams = [stream_of(llm, PROMPT, **options) for _ in range(n_parallel)]
        for stream in streams:
            next(stream)
        assert text_of_whole(llm, PROMPT, **options)
        (lost,) = (one for one in streams if one.status.stage == "ended")
        with pytest.raises(RuntimeError):
            list(lost)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen35", "mamba2", "lfm2"])
@pytest.mark.parametrize("n_copies", [0, 1])
def test_streams_without_copies_are_read_again(kind: str, n_copies: int) -> None:
    """The copies of suspended streams stay within their limit, and no text is lost."""
    drafts: list[Any] = [None, "prompt-lookup"]
    drafts += [model_path("eagle3"), model_path("dflash")] if kind == "llama" else []
    prompts = [[*PROMPT, 97], PROMPT * 3, [*PROMPT * 3, 98], PROMPT * 2]
    options: dict[str, Any] = {"max_tokens": 12, **SAMPLED}
    with open_tiny(kind=kind) as llm:
        texts = [text_of_whole(llm, p, **options) for p in prompts]
    for draft in drafts:
        with open_tiny(draft, kind) as llm:
            ours, most = llm._opened.runtime.runner._line, []
            streams = [stream_of(llm, p, **options) for p in prompts]
            found, left = [""] * len(prompts), list(range(len(prompts)))
            ours.max_copies_bytes = 1 << 30 if n_copies else 0
            while left:
                for i in list(left):
                    chunk = next(streams[i], None)
                    if chunk is None:
                        left.remove(i)
                        continue
                    found[i] += text_of(chunk)
                    sizes = [t.saved.n_bytes for t in ours.aside if t.saved is not None]
                    most.append(sum(sizes))
                    assert most[-1] <= ours.max_copies_bytes
                    if len(most) == 2 * len(prompts) and n_copies:
                        ours.max_copies_bytes = max(sizes) * 3 // 2  # from here on
            assert found == texts
            assert (max(most) > 0) == bool(n_copies)
            assert not n_copies or most[2 * len(prompts) - 1] > ours.max_copies_bytes


@PLACES
@pytest.mark.parametrize("way", ["start", "event loop"])
def test_a_stream_that_is_dropped_before_its_first_read(n_parallel: int, way: str) -> None:
    """It ends at once; else it would compute on, and count against max_waiting for good."""
    with open_wide(n_parallel=n_parallel, max_waiting=1, n_ctx=512) as llm:
        for i in range(4):
            gate = Gate()
            options: Any = {"max_tokens": 200, "stream": True, "logits_processor": gate, **GREEDY}
            if way == "start":
                handle: Any = llm.create_completion([*PROMPT, i], **options)
                handle.start()
            else:
                handle = asyncio.run(llm.acreate_completion([*PROMPT, i], **options))
            assert gate.entered.wait(60)
            ticket = handle._generation._ticket
            del handle
            gate.opened.set()
            until(lambda t=ticket: t.is_over)  # type: ignore[misc]
            assert ticket.is_cancelled and gate.calls < 200
            assert text_of_whole(llm, PROMPT, max_tokens=3, **GREEDY)
