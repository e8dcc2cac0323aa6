"""Hours of everything that a program may do to a model, with texts, memory and descriptors watched.

    python -m tests.robust.soak --seconds 3600 [--acts N] [--only ACT] [--real] [--log FILE]

Models with each kind of draft stay open; acts are drawn at random: whole texts, streams that are
dropped or closed, cancels from another thread, callbacks that raise, bad requests, several threads
at once, forks, states saved and loaded, models opened and closed. Every 20th text is compared with
what plain decoding gives. A line of figures comes each minute, and at the end a table with the
slopes as JSON. With --real, SmolLM2 Q4_0 with its shipped draft is among the models.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pyllama_spec import CancelledError, ForkedError, Llama, PyllamaSpecError
from tests.models import model_path
from tests.robust.memory_jobs import allocated, rss

_DRAFTS = Path(__file__).resolve().parents[2] / "examples" / "drafts"
# What is kept of past prompts comes to its bound while the figures settle.
_OPTIONS: dict[str, Any] = {
    "n_ctx": 256, "n_threads": 1, "controller": "fixed", "prefix_cache_bytes": 1 << 20,
}  # fmt: skip
N_THREADS = 4


class Kind(NamedTuple):
    """A model as it is opened: the target, its draft, and how many requests at once."""

    target: Path
    draft: str | Path | None
    n_parallel: int = 1


class Figures(NamedTuple):
    """What is watched: seconds since the start, acts so far, bytes, descriptors, threads.

    Attributes:
        rss: resident bytes. Models touch more of their buffers the longer they run, and which of
            them are open is chance.
        allocated: bytes in use in the C heaps, which a leak of ours would raise without end.

    """

    seconds: float
    n_acts: int
    rss: int
    allocated: int
    descriptors: int
    threads: int


def kinds(*, with_real: bool) -> dict[str, Kind]:
    """Every way to draft, alone and side by side."""
    tiny, hybrid = model_path("llama"), model_path("qwen35")
    found = {
        "lookup": Kind(tiny, "prompt-lookup"),
        "lookup, 3 at once": Kind(tiny, "prompt-lookup", 3),
        "EAGLE-3": Kind(tiny, model_path("eagle3")),
        "EAGLE-3, 3 at once": Kind(tiny, model_path("eagle3"), 3),
        "DFlash": Kind(tiny, model_path("dflash")),
        "hybrid, lookup": Kind(hybrid, "prompt-lookup"),
    }
    if with_real:
        from tests.conftest import smollm2

        real = smollm2("Q4_0")
        found["SmolLM2, EAGLE-3"] = Kind(real, _DRAFTS / "smollm2-135m-eagle3.gguf")
    return found


def opened(kind: Kind) -> Llama:
    """The model of a kind."""
    return Llama(kind.target, draft=kind.draft, n_parallel=kind.n_parallel, **_OPTIONS)


class _BreakError(Exception):
    """The error of a callback."""


class Soak:
    """The models, the acts, and what has been seen."""

    def __init__(self, seed: int, every: int, *, with_real: bool) -> None:
        self.rng, self.every = random.Random(seed), every
        self.kinds = kinds(with_real=with_real)
        self.models = {name: opened(kind) for name, kind in self.kinds.items()}
        targets = {kind.target for kind in self.kinds.values()}
        self.plain = {target: Llama(target, **_OPTIONS) for target in targets}
        self.counts: Counter[str] = Counter()
        self.n_texts = self.n_compared = 0
        self.acts: list[Callable[[str], None]] = [
            self.whole, self.whole, self.whole, self.dropped, self.dropped, self.cancelled,
            self.breaking, self.bad, self.threads, self.in_loop, self.forked, self.state,
            self.reopened,
        ]  # fmt: skip

    def act(self) -> None:
        """Runs one of the acts on one of the models."""
        name = self.rng.choice(list(self.models))
        act = self.rng.choice(self.acts)
        if act == self.reopened and "SmolLM2" in name:
            act = self.whole  # a tenth of a second of loading each: others get too little then
        act(name)
        self.counts[act.__name__] += 1

    def request(self) -> tuple[Any, dict[str, Any]]:
        """A prompt, and options under which the text is a function of the model."""
        words = ["the cat ", "and the hat ", "sat on ", "a mat. ", "12 34 ", "\u00e9\u4e2d "]
        text = "".join(self.rng.choices(words, k=self.rng.randrange(1, 14)))
        options: dict[str, Any] = {"max_tokens": self.rng.randrange(1, 48), "temperature": 0}
        if self.rng.random() < 0.4:
            options |= {"temperature": 0.8, "seed": self.rng.randrange(1000), "top_k": 40}
        if self.rng.random() < 0.2:
            options["repeat_penalty"] = 1.1
        if self.rng.random() < 0.1:
            options["grammar"] = 'root ::= [a-z ]+ "."'
        return text, options

    def check(self, name: str, prompt: Any, options: dict[str, Any], text: str) -> None:
        """Each so many-th text beside plain decoding."""
        self.n_texts += 1
        if self.n_texts % self.every:
            return
        plain = self.plain[self.kinds[name].target]
        expected = plain.create_completion(prompt, **options)["choices"][0]["text"]
        if text != expected:
            raise AssertionError(f"{name}: {prompt!r} {options}: {text!r}, plain {expected!r}")
        self.n_compared += 1

    def whole(self, name: str) -> None:
        """A text in one piece."""
        prompt, options = self.request()
        answer = self.models[name].create_completion(prompt, **options)
        self.check(name, prompt, options, answer["choices"][0]["text"])

    def dropped(self, name: str) -> None:
        """A stream that is read to its end, closed, or let go of."""
        prompt, options = self.request()
        stream = self.models[name].create_completion(prompt, stream=True, **options)
        ending, text = self.rng.randrange(3), ""
        for i, chunk in enumerate(stream):
            text += chunk["choices"][0]["text"]
            if ending and i == 3:
                break
        else:
            self.check(name, prompt, options, text)
        if ending == 1:
            stream.close()
        del stream

    def cancelled(self, name: str) -> None:
        """A cancel from another thread, at any time."""
        prompt, options = self.request()
        llm = self.models[name]
        timer = threading.Timer(self.rng.random() * 0.02, llm.cancel)
        timer.start()
        with contextlib.suppress(CancelledError):
            llm.create_completion(prompt, **options)
        timer.join()

    def breaking(self, name: str) -> None:
        """A callback that raises."""
        prompt, options = self.request()
        n_left = self.rng.randrange(4)

        def breaks(ids: Any, scores: Any) -> Any:
            nonlocal n_left
            n_left -= 1
            if n_left < 0:
                raise _BreakError
            return scores

        with contextlib.suppress(_BreakError):
            self.models[name].create_completion(prompt, logits_processor=breaks, **options)

    def bad(self, name: str) -> None:
        """Sends a request that must be refused."""
        bad: Any = self.rng.choice([
            {"grammar": "root ::= ("}, {"temperature": float("nan")}, {"max_tokens": "x"},
            {"response_format": {"type": "json_object", "schema": {"type": "nothing"}}},
            {"logit_bias": {10**9: 1.0}}, {"stop": 7},
        ])  # fmt: skip
        try:
            self.models[name].create_completion("a", **bad)
        except PyllamaSpecError:
            return
        raise AssertionError(f"{bad} was taken")

    def threads(self, name: str) -> None:
        """Several requests from several threads."""
        requests = [self.request() for _ in range(N_THREADS)]
        llm = self.models[name]
        with ThreadPoolExecutor(N_THREADS) as pool:
            complete: Any = llm.create_completion  # overloaded: a pool cannot tell which it is
            running = [pool.submit(complete, p, **o) for p, o in requests]
            answers: list[Any] = [done.result() for done in running]
        for (prompt, options), answer in zip(requests, answers, strict=True):
            self.check(name, prompt, options, answer["choices"][0]["text"])

    def in_loop(self, name: str) -> None:
        """Requests of an event loop: whole, cancelled as by a client that left, late, aborted."""
        llm: Any = self.models[name]

        async def one(way: str) -> None:
            prompt, options = self.request()
            if way == "late":
                with contextlib.suppress(CancelledError):
                    await llm.acreate_completion(prompt, timeout_s=0.01, **options)
            elif way == "aborted":
                stream = await llm.acreate_completion(prompt, stream=True, **options)
                await asyncio.sleep(self.rng.random() * 0.02)
                stream.abort()
            else:
                task = asyncio.ensure_future(llm.acreate_completion(prompt, **options))
                if way == "cancelled":
                    await asyncio.sleep(self.rng.random() * 0.02)
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    self.check(name, prompt, options, (await task)["choices"][0]["text"])

        async def all_of() -> None:
            await asyncio.gather(*map(one, ("whole", "whole", "cancelled", "late", "aborted")))

        asyncio.run(all_of())

    def forked(self, name: str) -> None:
        """A child that is refused, and ends."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self.models[name].create_completion("a", max_tokens=1)
            except ForkedError:
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        if status:
            raise AssertionError(f"{name}: the child ended with {status}")

    def state(self, name: str) -> None:
        """A state that is saved and loaded."""
        llm = self.models[name]
        state = llm.save_state()
        self.whole(name)
        llm.load_state(state)

    def reopened(self, name: str) -> None:
        """A model that is closed and opened."""
        self.models[name].close()
        self.models[name] = opened(self.kinds[name])

    def close(self) -> None:
        """Closes all models."""
        for llm in (*self.models.values(), *self.plain.values()):
            llm.close()


def slope(figures: list[Figures], column: str) -> float:
    """Per act, by least squares over the second half: in the first buffers find their sizes."""
    rest = figures[len(figures) // 2 :]
    acts = np.array([one.n_acts for one in rest], float)
    values = np.array([getattr(one, column) for one in rest], float)
    return float(np.polyfit(acts, values, 1)[0])


def run(soak: Soak, seconds: float, n_most: int | None, log: Any) -> dict[str, Any]:
    """Acts for so long, or so often; figures are taken each minute, or forty times."""
    start, figures, n_acts, due = time.monotonic(), list[Figures](), 0, 0.0
    pause = min(60.0, seconds / 40)
    while (now := time.monotonic() - start) < seconds and n_acts != n_most:
        soak.act()
        n_acts += 1
        if now >= due or (n_most and n_acts % max(n_most // 40, 1) == 0):
            n_open = len(list(Path("/proc/self/fd").iterdir()))
            bytes_now = (rss(), allocated())
            figures.append(Figures(now, n_acts, *bytes_now, n_open, threading.active_count()))
            due = now + pause
            print(json.dumps(figures[-1]._asdict()), file=log, flush=True)
    half = figures[len(figures) // 2 :]
    return {
        "seconds": round(time.monotonic() - start),
        "acts": dict(soak.counts),
        "texts": soak.n_texts,
        "compared": soak.n_compared,
        "rss_first_half_last": [one.rss for one in (figures[0], half[0], figures[-1])],
        "rss_per_act": round(slope(figures, "rss"), 1),
        "allocated_first_half_last": [one.allocated for one in (figures[0], half[0], figures[-1])],
        "allocated_per_act": round(slope(figures, "allocated"), 1),
        "descriptors": [min(f.descriptors for f in half), max(f.descriptors for f in half)],
        "threads": [min(f.threads for f in half), max(f.threads for f in half)],
    }


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--acts", type=int)
    parser.add_argument("--only", metavar="ACT", help="this act alone: whole, dropped, ...")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    options = parser.parse_args()
    soak = Soak(options.seed, options.every, with_real=options.real)
    if options.only:
        soak.acts = [getattr(soak, options.only)]
    with options.log.open("w", encoding="utf-8") as log:
        found = run(soak, options.seconds, options.acts, log)
    soak.close()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
