"""The options of a draft beside its name or file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from pyllama_spec.engine.model import Progress


class FileOptions(TypedDict, total=False):
    """The keywords of every drafter with a model.

    n_ctx: the number of tokens of each sequence that the draft remembers; None for as many as are
        of use. With fewer, it drops the oldest and continues.
    p_min: end a draft before a token with a lower probability.
    n_output: of a head, or of a small model with the target's vocabulary, the number of ids that
        it chooses among; those of the text are always among them (output_part.py). 0 for all; None
        for a part of a large vocabulary. A draft with a reduced vocabulary (d2t) chooses among
        that.
    n_gpu_layers, devices, rpc_servers, progress: arguments of Model, for a draft given as a path.
    """

    n_ctx: int | None
    p_min: float
    n_output: int | None
    n_gpu_layers: int
    devices: Sequence[str] | None
    rpc_servers: Sequence[str] | None
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """The options of a drafter that a name or a file gives; Llama() checks its keywords for them.

    Attributes:
        max_draft: the maximum number of tokens to draft per round; None for the kind's own number.
        p_min: end a draft before a token with a lower probability; None for no such limit.
        lookup: if the last so many tokens occurred before, propose what followed there instead of
            asking the draft, if that is likely right. None for the default; 0 for no lookups.
        n_ctx: the number of tokens of a sequence that a draft's model remembers; None for as many
            as are of use to it.
        n_gpu_layers: the number of the draft's layers on the GPU.
        progress: called with 0.0 .. 1.0 while a file is loaded.
        devices: names of the devices that may hold layers; None for all.
        rpc_servers: see Model.
        remembers: whether copies are taken from earlier requests too.
        memory: the file of a store that keeps these requests; None to keep them in the memory of
            the process.
        is_adaptive: whether a controller ends drafts that do not pay; the kind's own number may
            then be larger.
    """

    max_draft: int | None = None
    p_min: float | None = None
    lookup: int | None = None
    n_gpu_layers: int = 0
    progress: Progress | None = None
    is_adaptive: bool = False
    devices: Sequence[str] | None = None
    rpc_servers: Sequence[str] | None = None
    remembers: bool = True
    memory: str | os.PathLike[str] | None = None
    n_ctx: int | None = None

    def of_file(self) -> FileOptions:
        """The options that every drafter with a file takes, as keywords."""
        return {
            "n_ctx": self.n_ctx,
            "p_min": self.p_min or 0.0,
            "n_gpu_layers": self.n_gpu_layers,
            "devices": self.devices,
            "rpc_servers": self.rpc_servers,
            "progress": self.progress,
        }

    def length(self, own: int, adaptive: int) -> int:
        """The maximum number of tokens to draft: the requested one, else the kind's default.

        Args:
            own: the kind's default.
            adaptive: the kind's default if a controller ends drafts that do not pay.
        """
        if self.max_draft is not None:
            return max(self.max_draft, 1)
        return adaptive if self.is_adaptive else own
