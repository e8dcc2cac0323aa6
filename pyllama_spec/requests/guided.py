"""Regular expressions and Lark grammars by llguidance; needs the extra [llguidance].

Only committed tokens reach a matcher, so that nothing has to be undone when a draft
is rejected: the sampler draws at each row of a verify batch, and the matcher advances over the
drawn token. A mask of the vocabulary is computed only where the first choice is forbidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from pyllama_spec.constraints import Guide
from pyllama_spec.engine import Context, Model, Sampler, Vocab
from pyllama_spec.errors import ArgumentError, EngineError, UnsupportedError
from pyllama_spec.speculative import StepSampler

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
        """See TokenSampler.sample."""
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
        """See TokenSampler.accept. A prompt's tokens do not concern the guide."""
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
