"""Maps ids between a target's vocabulary and its draft model's.

Two models of one family have the same ids, but for padding at the end. Others have the same texts
under other ids, as far as they have them at all: an id of the one stands for the id of the other
whose token has the same bytes. What the draft lacks is put into its text as several of its tokens;
what the target lacks ends a draft. A wrong guess only costs a row of a verify batch, so
that the map has to be good and not perfect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine.vocab import Vocab
from pyllama_spec.errors import ArgumentError

# Ids by which vocabularies of one family are padded differently, as in the engine's own pairing.
MAX_PADDING = 128
# The minimum share of the target's tokens with a counterpart.
_LEAST_SHARE = 0.05
# End tokens have another name in each family: where the names differ, roles are compared.
_ROLES = ("bos", "eos", "eot", "sep", "pad", "fim_pre", "fim_suf", "fim_mid")


class VocabMap:
    """The map between the vocabularies of a target and a draft model.

    Attributes:
        target: the vocabulary of the target.
        is_identity: whether the ids are equal, except for padding.
        n_target: the number of the target's ids.
        n_shared: the number of the target's ids with a counterpart in the draft.

    """

    def __init__(self, target: Vocab, draft: Vocab) -> None:
        self.target, self._draft = target, draft
        self.n_target = target.n_tokens
        n_common = min(target.n_tokens, draft.n_tokens)
        self.is_identity = abs(target.n_tokens - draft.n_tokens) <= MAX_PADDING and all(
            target.piece(i, special=True) == draft.piece(i, special=True) for i in range(n_common)
        )
        self._to_target: Sequence[int] = ()
        self._to_draft: list[tuple[int, ...] | None] = []
        if self.is_identity:
            self._n_draft = n_common
            self.n_shared = n_common
        else:
            self._n_draft = draft.n_tokens
            self._map()

    def _map(self) -> None:
        target, draft = self.target, self._draft
        of_key: dict[tuple[bytes, bytes], int] = {}
        for i in range(draft.n_tokens):
            of_key.setdefault(_key(draft, i), i)  # of several with the same bytes the first is used
        to_target = [-1] * draft.n_tokens
        self._to_draft = [None] * target.n_tokens
        roles = {target.special(role): draft.special(role) for role in _ROLES}
        # From behind, so that of several with the same bytes the first is what a guess becomes.
        for i in reversed(range(target.n_tokens)):
            key = _key(target, i)
            other = of_key.get(key) if any(key) else None
            if other is None:
                other = roles.get(i)
            if other is not None:
                self._to_draft[i] = (other,)
                to_target[other] = i
        self._to_target = to_target
        self.n_shared = sum(ids is not None for ids in self._to_draft)

    @property
    def coverage(self) -> float:
        """The share of the target's ids that have a counterpart."""
        return self.n_shared / self.n_target

    def check(self, name: str) -> None:
        """Raises unless enough of the target's ids have a counterpart.

        Raises:
            ArgumentError: next to no ids have a counterpart.

        """
        if self.coverage < _LEAST_SHARE:
            raise ArgumentError(
                f"{name} shares {self.n_shared} of the target's {self.n_target} tokens, too few to "
                "draft for it; give a model of the target's family"
            )

    def of_draft(self, token: int) -> int:
        """The target's id of a draft id; -1 for none."""
        if self.is_identity:
            return token if token < self.n_shared else -1
        return self._to_target[token]

    @cached_property
    def counterparts(self) -> npt.NDArray[np.int32] | None:
        """[draft ids] int32, of_draft() of each; None if the map is the identity."""
        n = self._draft.n_tokens
        if self.is_identity and n == self.n_shared:
            return None
        return np.array([self.of_draft(i) for i in range(n)], np.int32)

    def to_draft(self, token: int) -> tuple[int, ...]:
        """The draft's ids of a target id: one, or those of its text; () for none."""
        if self.is_identity:
            return (token,) if token < self._n_draft else ()
        ids = self._to_draft[token]
        if ids is None:
            ids = self._to_draft[token] = self._tokenized(token)
        return ids

    def all_to_draft(self, tokens: Iterable[int]) -> list[int]:
        """The draft's ids of a run of target ids."""
        return [id_ for token in tokens for id_ in self.to_draft(token)]

    def _tokenized(self, token: int) -> tuple[int, ...]:
        piece = self.target.piece(token)
        if not piece:
            return ()
        ids = self._draft.tokenize(piece, add_special=False)
        # Such as half a character: a tokenizer may replace it, and the draft would see another
        # text.
        return tuple(ids) if self._draft.detokenize(ids).lstrip() == piece.lstrip() else ()


def _key(vocab: Vocab, token: int) -> tuple[bytes, bytes]:
    """The bytes of a token, or a control token's name."""
    piece = vocab.piece(token)
    return (piece, b"") if piece else (b"", vocab.piece(token, special=True))
