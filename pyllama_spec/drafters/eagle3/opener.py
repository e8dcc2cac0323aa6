"""From the file of an EAGLE-3 draft to what drafts with it."""

from __future__ import annotations

from pathlib import Path

from pyllama_spec.drafters.base import Drafter
from pyllama_spec.drafters.eagle3.drafter import Eagle3
from pyllama_spec.drafters.model_drafter import add_lookup
from pyllama_spec.drafters.options import DraftOptions

# Tokens that a head drafts per round where nothing else is said: each costs a decode of its own.
_MAX_DRAFT = 4
# And where only those are drafted that pay.
_MAX_ADAPTIVE = 8


def open_eagle3(path: Path, options: DraftOptions) -> Drafter:
    """The head of a file, with copies and n-grams beside it unless options.lookup is 0.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.

    """
    own = _MAX_ADAPTIVE if options.is_adaptive else _MAX_DRAFT
    head = Eagle3(
        path,
        own if options.max_draft is None else max(options.max_draft, 1),
        p_min=options.p_min or 0.0,
        n_gpu_layers=options.n_gpu_layers,
        devices=options.devices,
        rpc_servers=options.rpc_servers,
        progress=options.progress,
    )
    return add_lookup(head, options)
