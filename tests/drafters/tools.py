"""Helpers for tests of drafters: known texts, a drafter that knows them, and one that fails."""

from __future__ import annotations

from collections.abc import Sequence

from pyllama_spec.drafters import Committed, Draft, Drafter, DraftRequest
from tests.oracles import prompt_tokens, run_once, tiny, tiny_context

N_TOKENS = 24
PROMPTS = [prompt_tokens(9 + 5 * i, seed=50 + i) for i in range(3)]


def plain_texts() -> list[list[int]]:
    """Each prompt with its continuation, one after the other and without drafts."""
    with tiny_context(tiny("llama")) as context:
        return [run_once(context, None, prompt, N_TOKENS).text for prompt in PROMPTS]


class OnlyProposeOne(Drafter):
    """Knows some texts by heart, and goes by the text that it is given."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self.texts = [list(text) for text in texts]

    def propose_one(self, request: DraftRequest) -> Draft:
        """The next tokens of the known text with this beginning."""
        known = len(request.tokens)
        for text in self.texts:
            if text[:known] == list(request.tokens):
                return Draft(text[known : known + request.n_requested])
        raise LookupError(f"{known} tokens that are in no text")


class Moody(Drafter):
    """Fails for one sequence, wherever it is asked or told something of it."""

    def __init__(self, where: str = "propose") -> None:
        self.bad, self.where = 1, where
        self.heard: list[tuple[str, int]] = []

    def _hear(self, what: str, seq: int) -> None:
        self.heard.append((what, seq))
        if seq == self.bad and what == self.where:
            raise ValueError(f"not sequence {seq}")

    def propose_one(self, request: DraftRequest) -> Draft:
        self._hear("propose", request.seq)
        return Draft([10 + request.seq] * request.n_requested)

    def commit_one(self, done: Committed) -> None:
        self._hear("commit", done.seq)

    def truncate(self, seq: int, n_keep: int) -> None:
        self.heard.append(("truncate", seq))


def requests(n: int = 3, of: int = 3) -> list[DraftRequest]:
    return [DraftRequest(seq, [7, 8], n) for seq in range(of)]
