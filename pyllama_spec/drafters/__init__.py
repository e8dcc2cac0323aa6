"""Drafters: one file per kind. None of them knows the loop."""

from pyllama_spec.drafters.base import NO_DRAFT, Draft, Drafter, Features, NoDrafter
from pyllama_spec.drafters.prompt_lookup import PromptLookup

__all__ = ["NO_DRAFT", "Draft", "Drafter", "Features", "NoDrafter", "PromptLookup"]
