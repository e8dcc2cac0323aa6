"""Drafters: a file or folder per kind, and a registry. None of them imports the loop."""

from typing import TYPE_CHECKING

from pyllama_spec.drafters.base import (
    NO_DRAFT,
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    DraftStop,
    Features,
    NoDrafter,
    SequenceErrors,
    TokenView,
)
from pyllama_spec.drafters.draws import SharedNoise, TokenDraws
from pyllama_spec.drafters.options import DraftOptions
from pyllama_spec.drafters.prompt_lookup import PromptLookup
from pyllama_spec.drafters.registry import make_drafter, needs_file, open_draft, register
from pyllama_spec.lazy_imports import lazy_names

if TYPE_CHECKING:
    from pyllama_spec.drafters.heads import DFlash, Eagle3, Mtp
    from pyllama_spec.drafters.lookup_first import DrafterWrapper, LookupFirst
    from pyllama_spec.drafters.small_model import SmallModel
    from pyllama_spec.drafters.suffix import Suffix
else:
    # A kind is imported when a file of it is opened, or when a program asks for its class.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "DFlash": "pyllama_spec.drafters.heads",
            "DrafterWrapper": "pyllama_spec.drafters.lookup_first",
            "Eagle3": "pyllama_spec.drafters.heads",
            "LookupFirst": "pyllama_spec.drafters.lookup_first",
            "Mtp": "pyllama_spec.drafters.heads",
            "SmallModel": "pyllama_spec.drafters.small_model",
            "Suffix": "pyllama_spec.drafters.suffix",
        },
    )

__all__ = [
    "NO_DRAFT",
    "Committed",
    "DFlash",
    "Draft",
    "DraftOptions",
    "DraftRequest",
    "DraftStop",
    "Drafter",
    "DrafterWrapper",
    "Eagle3",
    "Features",
    "LookupFirst",
    "Mtp",
    "NoDrafter",
    "PromptLookup",
    "SequenceErrors",
    "SharedNoise",
    "SmallModel",
    "Suffix",
    "TokenDraws",
    "TokenView",
    "make_drafter",
    "needs_file",
    "open_draft",
    "register",
]
