"""Copies tokens from the text itself and from earlier texts: an index, a memory, a disk store."""

from pyllama_spec.drafters.suffix.drafter import Suffix, copies_beside

__all__ = ["Suffix", "copies_beside"]
