"""The memory that the loaded models of a server share, and which models are closed for another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pyllama_spec.server.model_list import ModelList
from pyllama_spec.server.served_model import ServedModel
from pyllama_spec.server.serving import log


class Room:
    """The bounds of a list of models, and what they leave for a further model.

    Args:
        models: all models of the server.
        listed: the bounds.

    """

    def __init__(self, models: Sequence[ServedModel], listed: ModelList) -> None:
        self._models = models
        self._max_bytes, self._max_loaded = listed.memory_bytes, listed.max_loaded

    def others(self, one: ServedModel) -> list[ServedModel]:
        """The other loaded models."""
        return [m for m in self._models if m is not one and m.service is not None]

    def fits(self, one: ServedModel, n_bytes: int, without: Sequence[ServedModel] = ()) -> bool:
        """Whether a model fits beside the loaded ones, without some of them."""
        others = [m for m in self.others(one) if m not in without]
        if self._max_loaded is not None and len(others) >= self._max_loaded:
            return False
        most = self._max_bytes
        return most is None or n_bytes + sum(m.n_bytes for m in others) <= most

    def oldest_idle(self) -> ServedModel | None:
        """The idle model that was unused for longest; None if all are in use."""
        idle = [one for one in self._models if one.spec is not None and one.is_idle]
        return min(idle, key=lambda one: one.last_used) if idle else None

    def drain_others(self, one: ServedModel, n_bytes: int) -> None:
        """Drains the models whose memory another one needs, loaded for longest first."""
        others = sorted(self.others(one), key=lambda other: other.loaded_at)
        if any(other.n_waiting and other.draining is None for other in others):
            return  # just loaded: requests that waited for it come first
        needed: list[ServedModel] = []
        for other in others:
            if not self.fits(one, n_bytes, needed):
                needed.append(other)
        for other in list(needed):  # a later one may have room enough without the first
            fewer = [m for m in needed if m is not other]
            if self.fits(one, n_bytes, fewer):
                needed = fewer
        for other in others:
            if other not in needed:
                end_draining(other)
            elif other.draining is None:
                other.draining = asyncio.get_running_loop().create_future()
                log.info("%s takes no new requests: %s needs its memory", other.name, one.name)

    def end_draining(self) -> None:
        """Ends the draining of all models: those still loaded need not be closed any more."""
        for one in self._models:
            end_draining(one)


def end_draining(one: ServedModel) -> None:
    """Ends the draining of a model that is closed or can stay; waiting loads check again."""
    if one.draining is not None:
        one.draining.set_result(None)
        one.draining = None
