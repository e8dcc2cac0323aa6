"""MTP: the head for further tokens that the target's own file carries (docs/mtp.md)."""

from pyllama_spec.drafters.mtp.drafter import Mtp, open_mtp

__all__ = ["Mtp", "open_mtp"]
