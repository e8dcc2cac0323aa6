"""Drafts of Hugging Face layouts -> GGUF. Needs the extra: pip install pyllama_spec[convert]."""

from pyllama_spec.convert.conversion import ConversionReport, convert_draft
from pyllama_spec.convert.layer_ids import Convention
from pyllama_spec.gguf.writer import KINDS, Kind
from pyllama_spec.lazy_imports import public_names

__all__ = ["KINDS", "Convention", "ConversionReport", "Kind", "convert_draft"]

__dir__ = public_names(__name__)
