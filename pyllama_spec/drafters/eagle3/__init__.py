"""EAGLE-3 drafts: a head that reads the target's hidden rows, in a chain (docs/eagle3.md)."""

from pyllama_spec.drafters.eagle3.drafter import Eagle3, open_eagle3

__all__ = ["Eagle3", "open_eagle3"]
