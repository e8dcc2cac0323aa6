"""DFlash drafts: a block of tokens in one call, from the target's hidden rows."""

from pyllama_spec.drafters.dflash.drafter import DFlash, open_dflash

__all__ = ["DFlash", "open_dflash"]
