"""Memories and saved states used wrongly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyllama_spec.errors import ArgumentError, PyllamaSpecError, UnsupportedError

from .harness import CaseList
from .tools import batch_of, decoded, opened

CASES = CaseList()

Call = Callable[[Path], object]


def _memory(act: Callable[[Any], object], arch: str = "llama") -> Call:
    return lambda _: act(decoded(arch).memory)


def _restore(change: Callable[[bytes], Any], arch: str = "llama") -> Call:
    """Restores the changed state of one context in another."""
    return lambda _: opened(arch).memory.restore(0, change(decoded().memory.save()))


CASES.table(
    "memory",
    {
        "sequence_negative": (_memory(lambda m: m.positions(-1)), ArgumentError, "-1"),
        "sequence_past_the_last": (_memory(lambda m: m.remove(7)), ArgumentError, "sequence 7"),
        "sequence_huge": (_memory(lambda m: m.remove(2**40)), ArgumentError, str(2**40)),
        "sequence_text": (_memory(lambda m: m.remove("0")), ArgumentError, "'0'"),
        "copy_from_nowhere": (_memory(lambda m: m.copy(3, 0)), ArgumentError, "sequence 3"),
        "position_text": (_memory(lambda m: m.remove(0, "a")), ArgumentError, "'a'"),
        "part_of_a_state": (
            _memory(lambda m: m.remove(0, 1, 3), "mamba"), UnsupportedError, "1 .. 2 of",
        ),
        "of_an_encoder": (lambda _: opened("bert").memory.clear(), UnsupportedError, "memory"),
        "restore_nothing": (_restore(lambda _: b""), ArgumentError, "not 0"),
        "restore_text": (_restore(lambda _: "state"), ArgumentError, "str"),
        "restore_none": (_restore(lambda _: None), ArgumentError, "NoneType"),
        "restore_garbage": (_restore(lambda _: b"\x93" * 999), ArgumentError, "Memory.save()"),
        "restore_cut": (_restore(lambda s: s[:-7]), ArgumentError, "checksum"),
        "restore_flipped": (
            _restore(lambda s: s[:50] + bytes([s[50] ^ 4]) + s[51:]), ArgumentError, "checksum",
        ),
        "restore_other_model": (_restore(lambda s: s, "gemma3"), ArgumentError, "does not fit"),
        "restore_recurrent": (_restore(lambda s: s, "mamba"), ArgumentError, "does not fit"),
        "restore_hybrid": (_restore(lambda s: s, "qwen35"), ArgumentError, "does not fit"),
        "restore_in_small_context": (
            lambda _: opened(n_ctx=256, n_seq_max=1).memory.restore(0, _long_state()),
            PyllamaSpecError, "does not fit",
        ),
    },
)  # fmt: skip


def _long_state() -> bytes:
    context = opened(n_ctx=1024)
    for pos in range(0, 992, 32):
        context.decode(batch_of([7] * 32, pos))
    return context.memory.save()
