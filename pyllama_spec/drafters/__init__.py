"""Drafters: one file per kind. None of them knows the loop."""

from pyllama_spec.drafters.base import (
    NO_DRAFT,
    AttachedDrafter,
    Draft,
    Drafter,
    Features,
    NoDrafter,
    ResumingDrafter,
    SavingDrafter,
)
from pyllama_spec.drafters.eagle3 import Eagle3
from pyllama_spec.drafters.prompt_lookup import PromptLookup
from pyllama_spec.drafters.with_lookup import WithLookup

__all__ = [
    "NO_DRAFT",
    "AttachedDrafter",
    "Draft",
    "Drafter",
    "Eagle3",
    "Features",
    "NoDrafter",
    "PromptLookup",
    "ResumingDrafter",
    "SavingDrafter",
    "WithLookup",
]
