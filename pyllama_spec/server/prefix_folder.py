"""Stores states of past requests in a folder, so that a restarted server can reuse them.

A thread writes the files, so that no request waits for a disk; under load some are dropped.
"""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress

from pyllama_spec.engine.checks import count
from pyllama_spec.llama.caches import LlamaDiskCache
from pyllama_spec.llama.open_model import LlamaState

_MAX_QUEUED = 2


class PrefixFolder(LlamaDiskCache):
    """See the module's docstring; for Llama.set_cache().

    Args:
        folder: the folder; created with access for its owner alone.
        capacity_bytes: the most bytes of all files; the least recently used are removed first.
        min_tokens: the length of the shortest stored text: a state is worth a file where reading
            its tokens again takes longer than reading the file.

    Raises:
        ArgumentError: the folder cannot be created or read.
    """

    min_new = 64

    def __init__(
        self, folder: str | os.PathLike[str], capacity_bytes: int, min_tokens: int = 256
    ) -> None:
        super().__init__(folder, capacity_bytes)
        self.min_tokens = count(min_tokens, "min_tokens", 1)
        self._queue: queue.Queue[tuple[str, LlamaState] | None] = queue.Queue(_MAX_QUEUED)
        self._writer = threading.Thread(target=self._write_all, name="pyllama_spec-prefixes")
        self._writer.daemon = True
        self._writer.start()

    def _put(self, owner: str, state: LlamaState) -> None:
        with suppress(queue.Full):
            self._queue.put_nowait((owner, state))

    def close(self) -> None:
        """Waits for all pending writes. May be called twice."""
        if self._writer.is_alive():
            self._queue.put(None)
            self._writer.join()

    def _write_all(self) -> None:
        while (one := self._queue.get()) is not None:
            with suppress(OSError):  # a full disk: it is not kept
                self._write(*one)
