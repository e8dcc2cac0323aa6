"""Drafts of Hugging Face layouts -> GGUF. Needs the extra: pip install pyllama_spec[convert]."""

from pyllama_spec.convert.conversion import ConversionReport, convert_draft
from pyllama_spec.convert.layer_ids import Convention
from pyllama_spec.convert.publish import LAYOUTS, publish_eagle3
from pyllama_spec.gguf.writer import KINDS, Kind

__all__ = [
    "KINDS", "LAYOUTS", "Convention", "ConversionReport", "Kind", "convert_draft",
    "publish_eagle3",
]  # fmt: skip
