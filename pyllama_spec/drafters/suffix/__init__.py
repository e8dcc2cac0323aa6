"""Copies from the text itself and from earlier ones: an index, a memory, and a store on disk."""

from pyllama_spec.drafters.suffix.drafter import Suffix, can_look_up, copies_beside, open_suffix

__all__ = ["Suffix", "can_look_up", "copies_beside", "open_suffix"]
