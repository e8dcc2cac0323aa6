"""Copies from the text itself and from earlier ones: an index, a memory, and a store on disk."""

from pyllama_spec.drafters.suffix.drafter import Suffix, copies_beside, open_suffix

__all__ = ["Suffix", "copies_beside", "open_suffix"]
