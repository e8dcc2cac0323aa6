"""Vocabularies as objects."""

from __future__ import annotations

from typing import Any, NoReturn

from pyllama_spec.errors import UnsupportedError
from pyllama_spec.llama.llama import BaseLlamaTokenizer, LlamaTokenizer

__all__ = ["BaseLlamaTokenizer", "LlamaHFTokenizer", "LlamaTokenizer"]


class LlamaHFTokenizer(BaseLlamaTokenizer):
    """Refused: texts use the vocabulary of the model's file."""

    def __init__(self, hf_tokenizer: Any) -> None:
        raise UnsupportedError(
            f"LlamaHFTokenizer({type(hf_tokenizer).__name__}): tokenizers of transformers are not "
            "supported by this version; the vocabulary of the model's file is used"
        )

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str) -> NoReturn:
        """Refused, as the class is."""
        raise UnsupportedError(
            f"LlamaHFTokenizer({pretrained_model_name_or_path!r}): tokenizers of transformers are "
            "not supported by this version; leave tokenizer= out"
        )
