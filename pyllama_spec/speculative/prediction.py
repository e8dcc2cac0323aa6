"""A text that the answer is expected to repeat, as a draft source."""

from __future__ import annotations

from collections.abc import Sequence

from pyllama_spec.drafters.base import NO_DRAFT, Draft, DraftRequest

# So many tokens have to be equal to find the place in a prediction again: as few as chance allows,
# since what an edit changed is after it.
_MIN_MATCH = 3
# A longer match is no better evidence.
_MAX_MATCH = 24


class Prediction:
    """Drafts from a text that the answer is expected to repeat.

    An edit repeats a file, an answer a form. The round asks a prediction before it asks the
    drafter, so that any drafter has it beside, and the controller weighs it as it weighs any copy.
    It is tokens alone: while the text follows it, drafts continue there, from its first token on;
    where they differ, the last few tokens of the text are searched in it, after that place first.
    """

    def __init__(self, tokens: Sequence[int], n_prompt: int) -> None:
        self._tokens = list(tokens)
        self._n_prompt = self._n_seen = n_prompt
        # Where the text continues in it; None where they have parted. And where that was last.
        self._at: int | None = 0
        self._last_at = self._n_matched = 0
        # The positions in the prediction by the tokens before them.
        self._places: dict[tuple[int, ...], list[int]] = {}
        for end in range(_MIN_MATCH, len(self._tokens)):
            self._places.setdefault(tuple(self._tokens[end - _MIN_MATCH : end]), []).append(end)

    def propose(self, request: DraftRequest) -> Draft:
        """The next tokens of the prediction as a draft; NO_DRAFT if the text differs."""
        tokens = request.tokens
        if len(tokens) < self._n_seen:  # the older half of the text was forgotten
            self._n_prompt = self._n_seen = len(tokens)
            self._at = None
        for token in tokens[self._n_seen :]:
            self._follow(token)
        self._n_seen = len(tokens)
        if self._at is None:
            self._find(tokens)
        if self._at is None:
            return NO_DRAFT
        ids = self._tokens[self._at : self._at + max(request.n_requested, request.n_lookup)]
        return Draft(ids, match_length=max(self._n_matched, 1)) if ids else NO_DRAFT

    def _follow(self, token: int) -> None:
        at = self._at
        if at is not None and at < len(self._tokens) and self._tokens[at] == token:
            self._at = self._last_at = at + 1
            self._n_matched = min(self._n_matched + 1, _MAX_MATCH)
        else:
            self._at, self._n_matched = None, 0

    def _find(self, tokens: Sequence[int]) -> None:
        """Finds the next position in the prediction with the text's last tokens."""
        if len(tokens) - self._n_prompt < _MIN_MATCH:
            return
        places = self._places.get(tuple(tokens[len(tokens) - _MIN_MATCH :]))
        if places:
            self._at = next((at for at in places if at >= self._last_at), places[-1])
            self._last_at, self._n_matched = self._at, _MIN_MATCH
