"""llama-cpp-python's draft models: callables from the ids so far to further ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters import Draft, Drafter, DraftRequest, PromptLookup
from pyllama_spec.drafters.base import NO_DRAFT, name_of_code
from pyllama_spec.drafters.registry import known_drafts
from pyllama_spec.engine.checks import count
from pyllama_spec.errors import ArgumentError, both_given

Ids = npt.NDArray[np.intc]
# What one draft may have at most; a verify batch is exact up to 32 rows.
_MAX_DRAFT = 16


class LlamaDraftModel(ABC):
    """The interface of llama-cpp-python's draft models."""

    @abstractmethod
    def __call__(self, input_ids: Ids, /, **kwargs: Any) -> Ids:
        """Proposes any number of ids after the ids so far."""


class LlamaPromptLookupDecoding(LlamaDraftModel):
    """Copies the tokens after an earlier occurrence of the text's last tokens.

    Given as Llama(draft_model=...) it is pyllama_spec.PromptLookup.
    """

    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10) -> None:
        self.max_ngram_size = count(max_ngram_size, "max_ngram_size", 1)
        self.num_pred_tokens = count(num_pred_tokens, "num_pred_tokens", 1)

    @staticmethod
    def find_candidate_pred_tokens(
        input_ids: Ids, max_ngram_size: int, num_pred_tokens: int
    ) -> Ids:
        """The ids after the first place that ends like the text: [<= num_pred_tokens]."""
        ids = np.asarray(input_ids)
        for n in range(min(max_ngram_size, len(ids) - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(ids, n)
            for at in np.nonzero((windows == ids[-n:]).all(axis=1))[0]:
                candidates = ids[at + n : at + n + num_pred_tokens]
                if len(candidates):
                    return candidates
        return np.array([], dtype=np.intc)

    def __call__(self, input_ids: Ids, /, **kwargs: Any) -> Ids:
        """See LlamaDraftModel."""
        return self.find_candidate_pred_tokens(input_ids, self.max_ngram_size, self.num_pred_tokens)


class _Called(Drafter):
    """A drafter that calls the user's draft model."""

    max_draft = _MAX_DRAFT

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model
        self.name = name_of_code(model)

    def propose_one(self, request: DraftRequest) -> Draft:
        """The draft model's ids after the ids so far."""
        ids = np.array(request.tokens[:], dtype=np.intc)
        tokens = [int(token) for token in self._model(ids)[: request.n_requested]]
        return Draft(tokens) if tokens else NO_DRAFT


def drafter_of(draft_model: object, draft: object = None) -> Drafter:
    """The drafter for a draft model of llama-cpp-python."""
    if draft is not None:
        raise both_given("draft", "draft_model")
    if isinstance(draft_model, Drafter):
        return draft_model
    if isinstance(draft_model, LlamaPromptLookupDecoding):
        n = min(draft_model.num_pred_tokens, _MAX_DRAFT)
        return PromptLookup(max_ngram=draft_model.max_ngram_size, min_ngram=1, max_draft=n)
    if hasattr(draft_model, "create_completion"):
        # It can be called, and gives an answer in place of ids.
        raise ArgumentError("draft_model", problem="takes no open model", remedy=known_drafts())
    if callable(draft_model) and not isinstance(draft_model, type):
        return _Called(draft_model)
    raise ArgumentError(
        "draft_model", draft_model, "a LlamaPromptLookupDecoding() or a LlamaDraftModel",
        '`draft` takes "prompt-lookup", a path or a Drafter',
    )  # fmt: skip
