"""Checks a caller's prompt and brings it to one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

from pyllama_spec.engine import Vocab
from pyllama_spec.engine.checks import count
from pyllama_spec.errors import ArgumentError, ContextFullError, UnsupportedError

# Characters of a text whose tokens take a moment.
LONG_TEXT = 1 << 16


def check_fits(vocab: Vocab, text: object, n_ctx: int) -> None:
    """Refuses a text that is too long by its bytes alone, before seconds of tokenizing.

    Ids are refused by their number, before they are listed.
    """
    if not isinstance(text, (str, bytes)):
        if isinstance(text, Sequence) and len(text) >= max(n_ctx, LONG_TEXT):
            raise ContextFullError.of_prompt(len(text), n_ctx)
        return
    if len(text) < LONG_TEXT:
        return
    # One more: the prefix may merge with one of its tokens.
    n = vocab.fewest_tokens(text) - 1
    if n >= n_ctx:
        raise ContextFullError.of_prompt(n, n_ctx, at_least(n))


def at_least(n: int) -> str:
    """What an error says of a text that was not tokenized."""
    return f": its bytes make at least {n} tokens (it was not tokenized)"


def prompt_tokens(vocab: Vocab, prompt: object) -> list[int]:
    """Token ids of a text, with names of control tokens as those tokens; or ids as they are."""
    if isinstance(prompt, (str, bytes)):
        return _text_tokens(vocab, prompt)
    if not isinstance(prompt, Sequence):
        raise ArgumentError("prompt", prompt, "a text or a list of token ids")
    for i, token in enumerate(prompt):
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            raise ArgumentError(
                f"prompt[{i}]", token, "a token id", "create_completion() takes lists of prompts"
            )
    try:
        tokens = [index(token) for token in prompt]
    except TypeError as error:  # an array, say: it has an index only if it holds one number
        raise ArgumentError(
            "prompt", problem=f"has an item that is not a token id: {error}"
        ) from None
    if not tokens:
        raise ArgumentError("prompt", problem="has no tokens", remedy="give at least one")
    vocab.check_ids(tokens, "prompt")
    return tokens


def fim_tokens(vocab: Vocab, prompt: object, suffix: object, *, is_spm: bool = False) -> list[int]:
    """The prompt for text between `prompt` and `suffix`: prefix, suffix, middle.

    With `is_spm` the order is suffix, prefix, middle, as some models learned it. A `suffix` of ""
    needs no tokens for a gap.
    """
    if not isinstance(prompt, str) or not isinstance(suffix, str):
        raise ArgumentError("suffix", suffix, "a text, and a text as `prompt`")
    ids = [vocab.special(name) for name in ("fim_pre", "fim_suf", "fim_mid")]
    before, after, middle = ids
    if before is None or after is None or middle is None:
        if not suffix:
            return prompt_tokens(vocab, prompt)
        raise UnsupportedError(
            "needs fill-in-the-middle tokens, which this model has not",
            param="suffix",
            remedy="leave it out",
        )
    bos = [vocab.bos] if vocab.adds_bos and vocab.bos is not None else []
    head = vocab.tokenize(prompt, add_special=False)
    tail = vocab.tokenize(suffix, add_special=False)
    if is_spm:
        return [*bos, after, *tail, before, *head, middle]
    return [*bos, before, *head, after, *tail, middle]


def _text_tokens(vocab: Vocab, text: str | bytes) -> list[int]:
    tokens = vocab.tokenize(text, add_special=False, parse_special=True)
    # A text that begins with the name of BOS, as rendered chats do, gets no second one.
    needs_bos = vocab.adds_bos or not tokens
    if needs_bos and vocab.bos is not None and tokens[:1] != [vocab.bos]:
        tokens.insert(0, vocab.bos)
    if not tokens:
        raise ArgumentError("prompt", "", "a text, as the model has no BOS token")
    return tokens


def chat_top_logprobs(logprobs: object, top_logprobs: object, most: int) -> int | None:
    """How many alternatives a chat reports per token; None for no log-probabilities."""
    if logprobs not in (None, True, False) or not isinstance(logprobs, (bool, type(None))):
        raise ArgumentError("logprobs", logprobs, bool, "give the number as `top_logprobs`")
    n = 0 if top_logprobs is None else count(top_logprobs, "top_logprobs", 0, most)
    return n if logprobs else None


def template_variables(variables: Mapping[str, Any] | None) -> dict[str, Any]:
    """The caller's variables for the chat template."""
    if variables is None:
        return {}
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise ArgumentError("chat_template_kwargs", variables, "an object of names")
    taken = {"messages", "tools"} & set(variables)
    if taken:
        raise ArgumentError(
            "chat_template_kwargs", problem=f"has {', '.join(sorted(taken))}",
            remedy="give that as its own argument",
        )  # fmt: skip
    return dict(variables)
