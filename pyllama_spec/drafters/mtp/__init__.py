"""MTP: the head in the target's own file that predicts further tokens (docs/mtp.md)."""

from pyllama_spec.drafters.mtp.drafter import Mtp, open_mtp

__all__ = ["Mtp", "open_mtp"]
