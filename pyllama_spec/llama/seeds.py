"""The seeds of requests that bring none."""

from __future__ import annotations

import threading

from pyllama_spec.requests.options import check_seed


class SeedStream:
    """Draws a seed for each request from the model's own: equal requests give different texts.

    The same model's seed and the same requests in the same order give the same texts; several
    threads have no order.

    Args:
        seed: where it begins; None or -1 for anywhere.

    Attributes:
        state: where it is; None where requests are given no seed at all, and draw their own.

    """

    def __init__(self, seed: int | None) -> None:
        self._lock = threading.Lock()
        self.begin(seed)

    def begin(self, seed: int | None) -> None:
        """Starts again from a seed.

        Raises:
            ArgumentError: it is no seed.

        """
        checked = check_seed(seed)
        self.state: int | None = None if checked == -1 else checked

    def draw(self) -> int | None:
        """The next request's."""
        with self._lock:
            if self.state is None:
                return None
            import random  # not for a model without a seed

            # The engine's 2**32 - 1 means "any"; the sampler takes one less for it.
            self.state = random.Random(self.state).getrandbits(32)
            return self.state
