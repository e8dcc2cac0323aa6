"""Samplers of requests: with a guide, with logits processors; and what observes their rows.

Regular expressions and Lark grammars are followed by llguidance, of the extra [llguidance]. Only
committed tokens reach its matcher, so that nothing has to be undone when a draft is rejected: the
sampler draws at each row of a verify batch, and the matcher advances over the drawn token. A mask
of the vocabulary is computed only where the first choice is forbidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from pyllama_spec.constraints import Guide
from pyllama_spec.engine import Context, Model, Sampler, Vocab
from pyllama_spec.engine.closeable import closed_on_failure
from pyllama_spec.errors import ArgumentError, EngineError, UnsupportedError, shown
from pyllama_spec.requests.options import LogitsProcessor, RequestOptions
from pyllama_spec.speculative import StepSampler

Ids = npt.NDArray[np.int32]
# The prefix of a control token's name in the bytes that llguidance gets.
_CONTROL_MARK = b"\xff"
_TOKENIZERS: WeakKeyDictionary[Model, Any] = WeakKeyDictionary()


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise UnsupportedError(
            "regular expressions and Lark grammars need the package llguidance: "
            "pip install pyllama_spec[llguidance]"
        ) from None
    return llguidance


class _LLGuidanceVocab:
    """A vocabulary in llguidance's format."""

    def __init__(self, vocab: Vocab) -> None:
        n = vocab.n_tokens
        ends = [i for i in range(n) if vocab.is_eog(i)]
        special = [i for i in range(n) if vocab.is_control(i) or vocab.is_eog(i)]
        hidden = set(special)
        self.tokens = [
            (_CONTROL_MARK if i in hidden else b"") + vocab.piece(i, special=True) for i in range(n)
        ]
        self.special_token_ids = special
        self.eos_token_id = vocab.eos if vocab.eos is not None else ends[0] if ends else 0
        self.bos_token_id = vocab.bos
        self.end_ids = ends or [self.eos_token_id]
        self._vocab = vocab

    def __call__(self, text: bytes | str) -> list[int]:
        return self._vocab.tokenize(text, add_special=False)


def _tokenizer(model: Model) -> Any:
    """A model's tokenizer for llguidance, cached: creating it takes tenths of a second."""
    tokenizer = _TOKENIZERS.get(model)
    if tokenizer is None:
        library = _library()
        vocab = _LLGuidanceVocab(model.vocab)
        tokenizer = library.LLTokenizer(
            library.TokenizerWrapper(vocab), n_vocab=model.vocab.n_tokens, eos_token=vocab.end_ids
        )
        _TOKENIZERS[model] = tokenizer
    return tokenizer


class GuidedSampler(StepSampler):
    """A sampler constrained by a guide."""

    def __init__(self, model: Model, sampler: Sampler, guide: Guide) -> None:
        library = _library()
        make = {
            "regex": library.LLMatcher.grammar_from_regex,
            "lark": library.LLMatcher.grammar_from_lark,
            "json_schema": library.LLMatcher.grammar_from_json_schema,
        }[guide.kind]
        try:
            grammar = make(guide.text)
        except ValueError as error:
            raise _malformed(guide, str(error)) from None
        self._sampler = sampler
        self._matcher = library.LLMatcher(_tokenizer(model), grammar, log_level=0)
        if self._matcher.is_error():
            raise _malformed(guide, self._matcher.get_error())
        self._mask = np.zeros((model.vocab.n_tokens + 31) // 32, dtype=np.uint32)

    def sample(self, context: Context, i: int) -> int:
        """See StepSampler.sample."""
        token = self._sampler.sample(context, i)
        if self._sampler.skips_grammar or self._matcher.validate_tokens([token]):
            return token
        return self._sampler.sample_row(self._masked(context.logits(i)))

    def sample_row(self, logits: npt.NDArray[np.float32]) -> int:
        """Samples from a given row of logits: [n_vocab] float32."""
        token = self._sampler.sample_row(logits)
        if self._sampler.skips_grammar or self._matcher.validate_tokens([token]):
            return token
        return self._sampler.sample_row(self._masked(logits))

    def _masked(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        mask = self._mask
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[: logits.size]
        masked: npt.NDArray[np.float32] = np.where(allowed, logits, np.float32(-np.inf))
        return masked

    def accept(self, token: int, *, generated: bool = True) -> None:
        """See StepSampler.accept. A prompt's tokens do not concern the guide."""
        is_skipped = self._sampler.skips_grammar
        self._sampler.accept(token, generated=generated)
        if generated and not is_skipped and not self._matcher.consume_token(token):
            self._check()
            raise EngineError(f"the grammar does not allow token {token}")

    def forced(self, max_draft: int) -> Sequence[int]:
        """The forced next tokens in the vocabulary's own spelling, usable as a draft."""
        if self._sampler.skips_grammar:
            return ()
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens[:max_draft]

    def _check(self) -> None:
        if self._matcher.is_error():
            why = _one_line(self._matcher.get_error())
            if why.startswith("NoExtension"):  # its word for it
                raise EngineError("the grammar cannot be followed: nothing may follow")
            raise UnsupportedError(f"the grammar cannot be followed: {why}; write a simpler one")


def _one_line(why: str) -> str:
    """An error's message in one line, without parser state and excerpt."""
    return " ".join(why.partition("<state>")[0].split())[:300]


def _malformed(guide: Guide, why: str) -> ArgumentError:
    what = {"regex": "regular expression", "lark": "Lark grammar", "json_schema": "JSON schema"}
    return ArgumentError(
        "grammar", problem=f"cannot be used as {what[guide.kind]}: {_one_line(why)}"
    )


def guided_sampler(model: Model, sampler: Sampler, guide: Guide | None) -> GuidedSampler | None:
    """A sampler constrained by a guide, if the request has one; closes the other if it fails."""
    if guide is None:
        return None
    with closed_on_failure(sampler):
        return GuidedSampler(model, sampler, guide)


class _History:
    """The ids so far as an array for user functions; appending costs constant time."""

    def __init__(self, prompt: Sequence[int], capacity: int) -> None:
        self._ids = np.empty(max(capacity, len(prompt)) + 1, dtype=np.int32)
        self._ids[: len(prompt)] = prompt
        self._n = len(prompt)

    def append(self, token: int) -> None:
        self._ids[self._n] = token
        self._n += 1

    def view(self) -> Ids:
        """shape: [n] int32, read-only; later tokens do not change it."""
        ids = self._ids[: self._n]
        ids.flags.writeable = False
        return ids


def _called(function: Callable[..., Any], kind: str, ids: Ids, logits: Any) -> Any:
    """Calls a user function; returns its result."""
    try:
        return function(ids, logits)
    except (StopIteration, GeneratorExit) as error:
        raise ArgumentError(
            kind, problem=f"of {function!r} raised {type(error).__name__}"
        ) from error


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


class Observer:
    """Records committed tokens with their rows, for log-probabilities and stopping criteria."""

    def __init__(
        self, context: Context, options: RequestOptions, prompt: Sequence[int], max_tokens: int
    ) -> None:
        self._context = context
        self._n_top = options.logprobs
        self._criteria = options.criteria
        self.history = _History(prompt, len(prompt) + max_tokens)
        self.logprobs: list[TokenLogprob] = []
        self._n_tokens = 0
        # How many tokens there were when a stopping criterion said stop.
        self.n_stop: int | None = None

    def __call__(self, row: int, token: int) -> None:
        """Records a committed token, whose row of the last batch this is."""
        if self._n_top is not None:
            logits = self._context.logits(row)
            self.logprobs.append(token_logprob(logits, token, self._n_top))
        if self._criteria and self.n_stop is None:
            ids, logits = self.history.view(), np.array(self._context.logits(row))
            if any(_called(stop, "stopping criterion", ids, logits) for stop in self._criteria):
                self.n_stop = self._n_tokens
        self._n_tokens += 1
        self.history.append(token)


class ProcessedSampler(StepSampler):
    """A sampler with logits processors, which see each position once, after committed tokens."""

    def __init__(
        self,
        sampler: Sampler | GuidedSampler,
        processors: Sequence[LogitsProcessor],
        history: _History,
    ) -> None:
        self._sampler = sampler
        self._processors = processors
        self._history = history

    def sample(self, context: Context, i: int) -> int:
        """See StepSampler.sample."""
        scores = np.array(context.logits(i))
        shape = scores.shape
        for processor in self._processors:
            returned = _called(processor, "logits processor", self._history.view(), scores)
            try:
                scores = np.asarray(returned, dtype=np.float32)
            except (TypeError, ValueError, OverflowError) as error:
                raise ArgumentError(
                    "logits_processor", processor, f"scores as its result: {error}"
                ) from None
            if returned is None or scores.shape != shape:
                raise ArgumentError(
                    "logits_processor", problem=f"returned {shown(returned)}",
                    expected=f"the scores, an array of shape {shape}",
                )  # fmt: skip
        if np.isnan(scores).any() or not np.isfinite(scores).any():
            raise ArgumentError(
                "logits_processor", problem="left no token, or a NaN, in the scores"
            )
        return self._sampler.sample_row(scores)

    def accept(self, token: int, *, generated: bool = True) -> None:
        """See StepSampler.accept."""
        self._sampler.accept(token, generated=generated)
