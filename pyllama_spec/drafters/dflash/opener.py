"""From the file of a DFlash draft to what drafts with it."""

from __future__ import annotations

from pathlib import Path

from pyllama_spec.drafters.base import Drafter
from pyllama_spec.drafters.dflash.drafter import DFlash
from pyllama_spec.drafters.model_drafter import add_lookup
from pyllama_spec.drafters.options import DraftOptions


def open_dflash(path: Path, options: DraftOptions) -> Drafter:
    """The draft of a file, with copies and n-grams beside it unless options.lookup is 0.

    More tokens than a block was trained with are not guessed, however many are asked for.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.

    """
    draft = DFlash(
        path,
        p_min=options.p_min or 0.0,
        n_gpu_layers=options.n_gpu_layers,
        devices=options.devices,
        rpc_servers=options.rpc_servers,
        progress=options.progress,
    )
    if options.max_draft is not None:
        draft.max_draft = min(max(options.max_draft, 1), draft.max_draft)
    return add_lookup(draft, options)
