"""Tests whether a grammar accepts a whole text, with the engine's sampler, token by token."""

from __future__ import annotations

import math

import numpy as np

from pyllama_spec.engine import Sampler, SamplerParams
from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.schema import schema_rules
from tests.oracles import tiny


class GrammarWalk:
    """Texts beside one grammar; the toy's tokens are bytes."""

    def __init__(self, grammar: str) -> None:
        self._model = tiny("llama")
        self._first = Sampler(self._model, SamplerParams(temperature=0.0, grammar=grammar))

    @classmethod
    def of_schema(cls, schema: object) -> GrammarWalk:
        return cls(schema_rules(schema).grammar)

    def takes(self, text: str) -> bool:
        """Whether the grammar allows the text, and the answer may end after it."""
        vocab = self._model.vocab
        end = next(i for i in range(vocab.n_tokens) if vocab.is_eog(i))
        with_end = np.full(vocab.n_tokens, -math.inf, dtype=np.float32)
        with_end[end] = 0.0
        walked = self._first.clone()
        try:
            for token in vocab.tokenize(text, add_special=False):
                walked.accept(token)
            return walked.sample_row(with_end) == end
        except PyllamaSpecError:
            return False
        finally:
            walked.close()
