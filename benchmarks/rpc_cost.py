"""The cost of a network per round: messages, bytes and waits, on loopback with a delay added.

``python -m benchmarks.rpc_cost -m TARGET.gguf -d DRAFT.gguf`` starts an RPC server behind the proxy
of rpc_proxy.py, and generates with all of the target's layers there, with each delay. The waits of
a round are the time that the delay adds to it, over twice the delay: its round trips.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.rpc_proxy import Proxy
from pyllama_spec import Llama

_PROMPT = "Write a function that adds up the numbers of a list, and a test for it."
_ANSWERED = ("get_tensor", "get_tensor_2d", "copy_tensor", "get_alloc_size", "alloc_buffer")


@contextmanager
def server() -> Iterator[str]:
    """Runs an RPC server on loopback; yields its address."""
    command = [sys.executable, "-m", "pyllama_spec.cli", "rpc-server", "--port", "0", "-t", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("ready: ").split(",")[0]
        finally:
            process.terminate()


def measure(proxy: Proxy, llm: Llama, n_tokens: int, repeats: int) -> dict[str, float]:
    """Generates; returns figures of a round, the medians of the repeats."""
    figures: list[dict[str, float]] = []
    for turn in range(repeats + 1):
        proxy.reset()
        generation = llm.generate_steps(_PROMPT, max_tokens=n_tokens, temperature=0.0)
        for _ in generation:
            pass
        if turn == 0:
            continue  # it decodes the prompt, and builds the graphs
        timing, stats = generation.record.timing, generation.record.stats
        n = stats.rounds or timing.n_decoded
        figures.append({
            "ms": 1000 * timing.decode_s / n,
            "tokens": timing.n_decoded / n,
            "messages": sum(proxy.messages.values()) / n,
            "answered": sum(proxy.messages[name] for name in _ANSWERED) / n,
            "graphs": proxy.messages["graph_compute"] / n,
            "sent": proxy.sent / n / 1000,
            "received": proxy.received / n / 1000,
        })  # fmt: skip
    return {key: median(one[key] for one in figures) for key in figures[0]}


def main() -> None:
    """Prints a line for each side and delay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-d", "--draft", default=None)
    parser.add_argument("--n-draft", type=int, default=4)
    parser.add_argument("--delays", default="0,5,20", help="milliseconds, one way")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    delays = [float(word) / 1000 for word in args.delays.split(",")]
    sides = [None] if args.draft is None else [None, args.draft]
    with server() as address, closing(Proxy(address)) as proxy:
        for side in sides:
            own: dict[str, Any] = {} if side is None else {"lookup": 0, "n_draft": args.n_draft}
            proxy.delay_s = 0.0
            with Llama(
                args.model, draft=side, controller="fixed", n_gpu_layers=-1, n_ctx=1024,
                rpc_servers=[proxy.address], n_threads=1, **own,
            ) as llm:  # fmt: skip
                base = 0.0
                for delay in delays:
                    proxy.delay_s = delay
                    one = measure(proxy, llm, args.tokens, args.repeat)
                    base = one["ms"] if delay == delays[0] else base
                    _show("plain" if side is None else "draft", delay, base, one)


def _show(side: str, delay: float, base: float, one: dict[str, float]) -> None:
    waits = (one["ms"] - base) / 2000 / delay if delay else 0.0
    print(
        f"{side} {delay * 1000:>4.0f} ms: {one['ms']:>7.1f} ms a round, "
        f"{one['tokens']:.2f} tokens, {1000 * one['tokens'] / one['ms']:>6.2f} tokens/s, "
        f"{one['messages']:.1f} messages, {one['answered']:.1f} answered, "
        f"{one['graphs']:.2f} whole graphs, {one['sent']:.1f} kB sent, "
        f"{one['received']:.1f} kB received, {waits:.1f} waits",
        flush=True,
    )


if __name__ == "__main__":
    main()
