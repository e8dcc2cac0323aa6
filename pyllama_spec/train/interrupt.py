"""Defers Ctrl-C to a moment when all state is consistent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptions() -> Iterator[threading.Event]:
    """Records the first Ctrl-C instead of raising within a step; a second one raises.

    The caller checks the event after each step, and raises KeyboardInterrupt. Only the main
    thread gets Ctrl-C, and a process that ignores it keeps ignoring it.
    """
    event = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not is_main or before is not signal.default_int_handler:
        yield event
        return

    def note(number: int, frame: Any) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
