"""From the file of an EAGLE-3 draft to what drafts with it."""

from __future__ import annotations

from pathlib import Path

from pyllama_spec.drafters.base import Drafter
from pyllama_spec.drafters.eagle3.drafter import Eagle3
from pyllama_spec.drafters.ngram_table import NgramTable
from pyllama_spec.drafters.options import DraftOptions
from pyllama_spec.drafters.with_lookup import MIN_NGRAM, WithLookup
from pyllama_spec.errors import ArgumentError, ModelLoadError, PyllamaSpecError

# Tokens that a head drafts per round where nothing else is said: each costs a decode of its own.
_MAX_DRAFT = 4


def open_eagle3(path: Path, options: DraftOptions) -> Drafter:
    """The head of a file, with copies and n-grams beside it unless options.lookup is 0.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.

    """
    head = Eagle3(
        path,
        _MAX_DRAFT if options.max_draft is None else max(options.max_draft, 1),
        p_min=options.p_min or 0.0,
        n_gpu_layers=options.n_gpu_layers,
        progress=options.progress,
    )
    n_same = MIN_NGRAM if options.lookup is None else options.lookup
    return WithLookup(head, n_same, _table_of(head)) if n_same else head


def _table_of(head: Eagle3) -> NgramTable | None:
    """The n-gram table of a head's file, if it has one."""
    try:
        arrays = head.model.ngram_arrays()
        return None if arrays is None else NgramTable(*arrays, head.model.info.n_vocab)
    except ArgumentError as error:
        head.close()
        raise ModelLoadError(f"{head.model.path}: {error}") from None
    except PyllamaSpecError:
        head.close()
        raise
