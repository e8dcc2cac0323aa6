"""A model's vocabulary as an object, with llama-cpp-python's interface."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from pyllama_spec.engine import Model, Vocab


class _Texts(Protocol):
    def tokenize(self, text: str | bytes, add_bos: bool, special: bool) -> list[int]: ...

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None, special: bool
    ) -> bytes: ...


class VocabTexts:
    """A vocabulary under llama-cpp-python's names."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab

    def tokenize(self, text: str | bytes, add_bos: bool, special: bool) -> list[int]:
        """Token ids of a text in UTF-8."""
        return self._vocab.tokenize(text, add_special=add_bos, parse_special=special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None, special: bool
    ) -> bytes:
        """The bytes of a run of tokens.

        At the beginning of a text, which a BOS token says, the space is left out that vocabularies
        of SentencePiece put before a first word. Nothing else depends on the tokens before.
        """
        data = self._vocab.detokenize(tokens, special=special)
        begins = len(tokens) > 0 and tokens[0] == self._vocab.bos and not prev_tokens
        return data[1:] if begins and data[:1] == b" " else data


class BaseLlamaTokenizer:
    """The interface of tokenizers."""

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of a text in UTF-8."""
        raise NotImplementedError

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """The bytes of a run of tokens."""
        raise NotImplementedError


class LlamaTokenizer(BaseLlamaTokenizer):
    """The vocabulary of an open model."""

    # Llama(tokenizer=...) takes such a one: it changes nothing.
    is_of_the_model = True

    def __init__(self, llama: _Texts) -> None:
        self._llama = llama

    def tokenize(self, text: str | bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of a text. Names of control tokens are those tokens unless special=False."""
        return self._llama.tokenize(text, add_bos, special)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """The bytes of a run of tokens; control tokens are empty unless `special`."""
        return self._llama.detokenize(tokens, prev_tokens, special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of a str; invalid Unicode is dropped."""
        return self.tokenize(text.encode("utf-8", errors="ignore"), add_bos, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; bytes of incomplete characters are dropped."""
        return self.detokenize(tokens).decode("utf-8", errors="ignore")

    @classmethod
    def from_ggml_file(cls, path: str | os.PathLike[str]) -> LlamaTokenizer:
        """Opens the vocabulary of a model's file, without its weights."""
        return cls(VocabTexts(Model(path, vocab_only=True).vocab))
