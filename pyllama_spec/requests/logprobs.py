"""Log-probabilities of generated tokens, as the model gives them before any sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine import Vocab


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural logarithm of one token's probability, and the likeliest ids with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprob(logits: npt.NDArray[np.float32], token: int, n_top: int) -> TokenLogprob:
    """The log-softmax of one token and of the n_top likeliest, of logits [n_vocab] float32."""
    row = logits.astype(np.float64)
    peak = row.max()
    log_sum = peak + np.log(np.exp(row - peak).sum())
    n_top = min(n_top, row.size)
    top: tuple[tuple[int, float], ...] = ()
    if n_top:
        ids = np.argpartition(-row, n_top - 1)[:n_top]
        # Equal logits: the smaller id first, so that the order is the same every time.
        ids = ids[np.lexsort((ids, -row[ids]))]
        top = tuple((int(i), float(row[i] - log_sum)) for i in ids)
    return TokenLogprob(token, float(row[token] - log_sum), top)


def completion_logprobs(
    vocab: Vocab, entries: Sequence[TokenLogprob], offset: int
) -> dict[str, list[Any]]:
    """A completion's `logprobs` object. `offset`: characters before the first token."""
    out: dict[str, list[Any]] = {
        "tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": [],
    }  # fmt: skip
    for entry in entries:
        text = token_text(vocab, entry.token)
        by_text: dict[str, float] = {}
        for i, value in entry.top:  # of ids with one text the likeliest counts
            by_text.setdefault(token_text(vocab, i), value)
        by_text[text] = entry.logprob
        # OpenAI's order: likeliest first, the token itself among them.
        top = dict(sorted(by_text.items(), key=itemgetter(1), reverse=True))
        out["tokens"].append(text)
        out["text_offset"].append(offset)
        out["token_logprobs"].append(entry.logprob)
        out["top_logprobs"].append(top)
        offset += len(vocab.piece(entry.token).decode(errors="ignore"))
    return out


def chat_logprobs(vocab: Vocab, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The `logprobs` object of a chat completion."""
    content = [
        {
            **_chat_token(vocab, entry.token, entry.logprob),
            "top_logprobs": [_chat_token(vocab, i, value) for i, value in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def token_text(vocab: Vocab, token: int) -> str:
    """One token as text; incomplete characters become U+FFFD."""
    return vocab.piece(token, special=True).decode(errors="replace")


def _chat_token(vocab: Vocab, token: int, logprob: float) -> dict[str, Any]:
    data = vocab.piece(token, special=True)
    return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}
