"""The engine's sampler chains."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine.binding import Handle, Owner, check, ffi, lib
from pyllama_spec.engine.checks import FLOAT32_MAX, check_options, int32
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.model import Model
from pyllama_spec.errors import ArgumentError, PyllamaSpecError, UnsupportedError
from pyllama_spec.options import option


class Distribution:
    """Probabilities of ids. All other ids have probability 0.

    Args:
        ids: [n] the ids, without duplicates.
        weights: [n] numbers from 0 on, proportional to the probabilities.

    Attributes:
        ids: [n] int32, the ids with a probability above 0, in the given order.
        p: [n] float64, their probabilities, with the sum 1.
    """

    __slots__ = ("ids", "p")

    def __init__(self, ids: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        all_ids, p = np.asarray(ids, np.int32), np.asarray(weights, np.float64)
        if all_ids.ndim != 1 or all_ids.shape != p.shape:
            raise ArgumentError(
                "p",
                problem=f"has the shape {p.shape}",
                expected=f"{all_ids.shape}: a weight for each id",
            )
        total = float(p.sum())
        # NaN fails each comparison.
        if not (0.0 < total < np.inf and p.min() >= 0.0 and all_ids.min() >= 0):
            raise ArgumentError(
                "p", problem=f"has the sum {total}", expected="weights from 0 on, and one above 0"
            )
        is_possible = p > 0.0
        if not is_possible.all():
            all_ids, p = all_ids[is_possible], p[is_possible]
        self.ids: npt.NDArray[np.int32] = all_ids
        self.p: npt.NDArray[np.float64] = p / total

    @classmethod
    def of_logits(cls, ids: npt.NDArray[np.int32], logits: npt.NDArray[np.float32]) -> Distribution:
        """The softmax of logits, with sums in float64.

        Args:
            ids: [n] the ids, without duplicates.
            logits: [n] their logits; minus infinity means probability 0.
        """
        wide = logits.astype(np.float64)
        peak = wide.max(initial=-np.inf)
        if not np.isfinite(peak):
            raise ArgumentError(
                "logits", problem=f"have the maximum {peak}", expected="a finite one"
            )
        return cls(ids, np.exp(wide - peak))

    @property
    def largest(self) -> float:
        """The probability of the likeliest id."""
        return float(self.p.max())

    def of(self, token: int) -> float:
        """The probability of an id."""
        at = np.flatnonzero(self.ids == token)
        return float(self.p[at[0]]) if len(at) else 0.0

    def draw(self, u: float) -> int:
        """The id that a random number from [0, 1) selects."""
        sums = np.cumsum(self.p)
        at = int(np.searchsorted(sums, u * sums[-1], side="right"))
        return int(self.ids[min(at, len(self.ids) - 1)])

    def beyond(self, other: Distribution) -> Distribution | None:
        """The remainder after subtracting another distribution: max(0, p - q), normalised."""
        most = int(max(self.ids.max(), other.ids.max()))
        q = np.zeros(most + 1)  # of a vocabulary: pages that nothing is written to cost nothing
        q[other.ids] = other.p
        rest = np.maximum(self.p - q[self.ids], 0.0)
        return Distribution(self.ids, rest) if rest.any() else None


# More than a draft has of tokens, at several bytes each.
_MAX_FORCED_BYTES = 256
# The engine looks at each alternative for each token: an enum of 100,000 values took seconds.
MAX_GRAMMAR_KIB = 1024
DRY_BREAKERS = ("\n", ":", '"', "*")


@dataclass(frozen=True, slots=True)
class SamplerParams:
    """The parameters of a sampler chain. temperature=0 is greedy.

    Attributes:
        temperature: divides the logits. 0, and everything below MIN_TEMPERATURE, takes the largest:
            the quotients would overflow a float32.
        top_k, top_p, min_p, typical_p, top_n_sigma: limit the candidates; 0, 1, 0, 1, -1 are off.
        min_keep: the least number of candidates that these limits leave.
        penalty_last_n: how many past tokens the penalties cover; -1 for the whole context.
        repeat_penalty, frequency_penalty, presence_penalty: 1, 0, 0 are off.
        dry_*: the DRY repetition penalty; multiplier 0 is off.
        xtc_probability, xtc_threshold: excludes top choices; probability 0 is off.
        mirostat: 0 off, 1 or 2; it replaces these limits.
        seed: the seed of the random draws; None for a new one each time.
        shared_noise: whether to draw a token as the largest sum of logit and shared_noise(), which
            a draft model can add too, instead of by a random number. Not with mirostat. See
            SharedNoise in drafters/draws.py.
        logit_bias: added to the logits of these ids, at most 1e20; -inf forbids one.
        grammar: GBNF rules that the text must follow, from the rule `root` on.
        grammar_triggers: patterns; with any, the grammar starts once one is generated.
        grammar_trigger_tokens: ids that start it as well.
        grammar_prefill: ids that a grammar without triggers accepts first: the part of the answer
            that the prompt ends with.
        min_tokens: no end token and none of stop_token_ids comes within this many tokens, unless
            nothing else is allowed, for example at the end of a grammar.
        ignore_eos: no end token comes at all, with the same exception.
        stop_token_ids: see min_tokens; the reader of the tokens ends the text there.
        thought_tags: the text that starts a thought, and the texts that may end it.
        thought_is_open: whether the prompt ends inside a thought.
        thought_budget: the most tokens in all thoughts of an answer; None for no limit.
        thought_close: ids inserted when the budget is used up, once per thought.
        grammar_skips_thoughts: whether the grammar applies only outside thoughts; inside them it
            neither restricts nor sees a token.
    """

    temperature: float = option(0.8, low=0, high=1e4)
    top_k: int = option(40, low=-1)
    top_p: float = option(0.95, low=0, high=1)
    min_p: float = option(0.05, low=0, high=1)
    typical_p: float = option(1.0, low=0, high=1)
    top_n_sigma: float = option(-1.0, low=-FLOAT32_MAX, high=FLOAT32_MAX)
    min_keep: int = option(1, low=0)
    penalty_last_n: int = option(64, low=-1)
    repeat_penalty: float = option(1.0, low=1e-6, high=1e4)
    frequency_penalty: float = option(0.0, low=-1e6, high=1e6)
    presence_penalty: float = option(0.0, low=-1e6, high=1e6)
    dry_multiplier: float = option(0.0, low=-FLOAT32_MAX, high=FLOAT32_MAX)
    dry_base: float = option(1.75, low=-FLOAT32_MAX, high=FLOAT32_MAX)
    dry_allowed_length: int = option(2, low=0)
    dry_penalty_last_n: int = option(64, low=-1)
    dry_breakers: tuple[str, ...] = DRY_BREAKERS
    xtc_probability: float = option(0.0, low=0, high=1)
    xtc_threshold: float = option(0.1, low=0, high=1)
    mirostat: int = option(0, low=0, high=2)
    mirostat_tau: float = option(5.0, low=-FLOAT32_MAX, high=FLOAT32_MAX)
    mirostat_eta: float = option(0.1, low=-FLOAT32_MAX, high=FLOAT32_MAX)
    seed: int | None = option(None, low=0, high=2**32 - 1)
    shared_noise: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: str | None = None
    grammar_triggers: tuple[str, ...] = ()
    grammar_trigger_tokens: tuple[int, ...] = ()
    grammar_prefill: tuple[int, ...] = ()
    min_tokens: int = option(0, low=0)
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    thought_tags: tuple[str, ...] = ()
    thought_is_open: bool = False
    thought_budget: int | None = option(None, low=0)
    thought_close: tuple[int, ...] = ()
    grammar_skips_thoughts: bool = False

    def __post_init__(self) -> None:
        check_options(self)
        if 0 < self.temperature < MIN_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)
        _check_thoughts(self)
        _check_bias(self.logit_bias)
        n_kib = len(self.grammar or "") >> 10
        if n_kib > MAX_GRAMMAR_KIB:
            raise UnsupportedError(
                f"of {n_kib:,} KiB is too large, since each token would take seconds",
                param="grammar", expected=f"at most {MAX_GRAMMAR_KIB:,} KiB",
                remedy="give fewer or shorter values, or check the text afterwards",
            )  # fmt: skip

    @property
    def is_greedy(self) -> bool:
        """Whether the sampler takes the largest logit, without randomness."""
        return self.temperature <= 0

    @property
    def n_history(self) -> int:
        """The number of past tokens that the penalties read; -1 for all."""
        wants = [0]
        if self.repeat_penalty != 1 or self.frequency_penalty or self.presence_penalty:
            wants.append(self.penalty_last_n)
        if self.dry_multiplier:
            wants.append(self.dry_penalty_last_n)
        return -1 if min(wants) < 0 else max(wants)


# With a lower temperature, and a larger bias, penalties and all, logits would not fit a float32.
MIN_TEMPERATURE = 1e-6
_MAX_BIAS = 1e20

# The C struct has the same names; annotations are texts here.
_NUMBERS = tuple(f.name for f in fields(SamplerParams) if f.type in ("float", "int"))


def _check_thoughts(params: SamplerParams) -> None:
    if params.thought_budget is None and not params.grammar_skips_thoughts:
        return
    if len(params.thought_tags) < 2 or not all(params.thought_tags):
        raise ArgumentError(
            "thought_tags", params.thought_tags, "the two texts that begin and end a thought",
            "a budget and a grammar that skips thoughts need them",
        )  # fmt: skip
    if params.thought_budget is not None and not params.thought_close:
        raise ArgumentError(
            "thought_budget", params.thought_budget, "the ids that end a thought in `thought_close`"
        )


def _check_bias(bias: Mapping[int, float]) -> None:
    for token, value in bias.items():
        int32(token, "logit_bias")
        # -inf forbids a token; +inf would leave nothing to choose from, as NaN does.
        # An int that no float can hold compares all the same.
        is_number = isinstance(value, (int, float))
        if not is_number or not (value == -math.inf or -FLOAT32_MAX <= value <= _MAX_BIAS):
            raise ArgumentError(
                f"logit_bias[{token}]", value, f"a number up to {_MAX_BIAS:g}, or -inf"
            )


def _any_seed() -> int:
    return int.from_bytes(os.urandom(4), "little")


def _engine_seed(seed: int) -> int:
    """2**32 - 1 means "draw a seed" to the engine; any other number does as well."""
    return min(seed, 2**32 - 2)


def shared_noise(seed: int, place: int, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """The Gumbel noise that SamplerParams.shared_noise adds to the logits of ids.

    Args:
        seed: the sampler's seed.
        place: the number of answer tokens before this one.
        ids: [n] int32, contiguous.

    Returns:
        [n] float64: -log(-log(u)), where u is a hash of the three, in 0 .. 1.
    """
    out = np.empty(len(ids))
    lib.llama_spec_shared_noise(
        _engine_seed(seed), place, ffi.from_buffer("int32_t[]", ids), len(ids),
        ffi.from_buffer("double[]", out),
    )  # fmt: skip
    return out


class Sampler(Owner):
    """A sampler chain with its state: random numbers, penalty history, grammar position.

    sample() does not advance penalties or grammar; accept() does, and only over tokens that are
    committed. Keeps its model alive.

    Raises:
        ArgumentError: a parameter is out of range, or the grammar cannot be parsed.
        UnsupportedError: the grammar is too large.
    """

    def __init__(self, model: Model, params: SamplerParams | None = None) -> None:
        self.model, self.params = model, params or SamplerParams()
        self.seed = _any_seed() if self.params.seed is None else self.params.seed
        raw, keep = self._raw_params(self.params, _engine_seed(self.seed))
        out = ffi.new("llama_spec_sampler **")
        code = lib.llama_spec_sampler_new(model.handle, raw, out)
        del keep  # copied by the engine
        check(code, "cannot make the sampler")
        self._adopt(out[0])

    def _adopt(self, handle: Any) -> None:
        self._handle = Handle(
            handle, lib.llama_spec_sampler_free, "the sampler is closed; make another"
        )
        self._id, self._n_chain = ffi.new("int32_t *"), ffi.new("int32_t *")
        self._make_room(16)
        self._text = ffi.new("char[]", _MAX_FORCED_BYTES)
        # The buffers of distribution(), made by the first call: as wide as the vocabulary.
        self._candidates: tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]] | None = None

    def _make_room(self, n: int) -> None:
        """Makes room for drafts of up to n tokens."""
        self._draft = ffi.new("int32_t[]", n)
        self._chain = ffi.new("int32_t[]", n + 1)

    @staticmethod
    def _raw_params(params: SamplerParams, seed: int) -> tuple[Any, list[Any]]:
        raw = ffi.new("struct llama_spec_sampler_params *")
        for name in _NUMBERS:
            setattr(raw, name, getattr(params, name))
        raw.seed, raw.shared_noise = seed, params.shared_noise
        keep: list[Any] = []

        def made(kind: str, values: Any) -> Any:
            keep.append(ffi.new(kind, values))
            return keep[-1]

        def text(value: str) -> Any:
            return made("char[]", value.encode())

        def texts(name: str, values: Sequence[str]) -> None:
            setattr(raw, name, made("char *[]", [text(value) for value in values]))
            setattr(raw, f"n_{name}", len(values))

        def ids(name: str, values: Iterable[int]) -> None:
            listed = list(values)
            setattr(raw, name, made("int32_t[]", listed or [0]))
            setattr(raw, f"n_{name}", len(listed))

        texts("dry_breakers", params.dry_breakers)
        ids("stop_ids", params.stop_token_ids)
        raw.ignore_ends = params.ignore_eos
        if params.logit_bias:
            raw.bias_ids = made("int32_t[]", list(params.logit_bias))
            raw.bias = made("float[]", list(params.logit_bias.values()))
            raw.n_bias = len(params.logit_bias)
        if params.grammar is not None:
            raw.grammar = text(params.grammar)
            texts("grammar_triggers", params.grammar_triggers)
            ids("trigger_tokens", params.grammar_trigger_tokens)
            ids("grammar_prefill", params.grammar_prefill)
        raw.thought_budget = -1 if params.thought_budget is None else params.thought_budget
        if params.thought_tags:
            raw.thought_start = text(params.thought_tags[0])
            texts("thought_ends", params.thought_tags[1:])
            ids("thought_close", params.thought_close)
            raw.thought_is_open = params.thought_is_open
            raw.grammar_skips_thoughts = params.grammar_skips_thoughts
        return raw, keep

    @property
    def place(self) -> int:
        """The number of accepted tokens that were generated."""
        return int(lib.llama_spec_sampler_place(self.handle))

    def sample(self, context: Context, i: int) -> int:
        """Draws a token from the logits of token i of the context's last batch."""
        check(lib.llama_spec_sample(self.handle, context.handle, i, self._id), "cannot sample")
        token: int = self._id[0]
        return token

    def distribution(self, context: Context, i: int) -> Distribution:
        """The distribution that sample() would draw from at token i of the context's last batch.

        It is the result of the whole chain: penalties, biases, cuts and temperature. A random
        sampler, such as XTC, has decided by then. It uses the chain's random numbers, as sample()
        does, and advances nothing else.

        Raises:
            PyllamaSpecError: the row has no logits, no token is allowed, or the parameters define
                no such distribution: temperature 0, mirostat or a grammar.
        """
        if self._candidates is None:
            n = self.model.info.n_vocab
            self._candidates = np.empty(n, np.int32), np.empty(n, np.float32)
        ids, logits = self._candidates
        code = lib.llama_spec_candidates(
            self.handle, context.handle, i, ffi.from_buffer("int32_t[]", ids),
            ffi.from_buffer("float[]", logits), self._id,
        )  # fmt: skip
        check(code, "cannot sample")
        n = self._id[0]
        return Distribution.of_logits(ids[:n].copy(), logits[:n])

    def sample_chain(self, context: Context, row: int, draft: Sequence[int]) -> list[int]:
        """Draws and accepts tokens while they equal the draft: one call per round.

        It equals sample() and accept() in turns, at rows row, row + 1, ... of the last batch.

        Args:
            context: the context of the target, which has decoded the draft.
            row: the row of the first draw; draft[k] belongs to row + k + 1.
            draft: the drafted tokens; may be empty.

        Returns:
            The accepted part of the draft and one more token, all accepted into the sampler. A
            token that ends the generation is always the last.

        Raises:
            PyllamaSpecError: a row has no logits, or no token is allowed. The error's
                partial_tokens holds what was accepted before.
        """
        n = len(draft)
        if n >= len(self._chain):
            self._make_room(2 * n)
        if n:
            self._draft[0:n] = draft
        code = lib.llama_spec_sample_chain(
            self.handle, context.handle, row, self._draft, n, self._chain, self._n_chain
        )
        tokens: list[int] = ffi.unpack(self._chain, self._n_chain[0])
        if code < 0:
            try:
                check(code, "cannot sample")
            except PyllamaSpecError as error:
                error.partial_tokens = tuple(tokens)
                raise
        return tokens

    def forced(self) -> bytes:
        """The text that the grammar forces, UTF-8; b"" if it allows several.

        Empty without a grammar, and while a grammar waits for its trigger.
        """
        if self.params.grammar is None:
            return b""
        n = lib.llama_spec_sampler_forced(self.handle, self._text, _MAX_FORCED_BYTES)
        check(min(n, 0), "cannot look ahead in the grammar")
        return bytes(ffi.buffer(self._text, n)) if n else b""

    def sample_row(self, logits: npt.NDArray[np.float32]) -> int:
        """Draws a token from a given row: [n_vocab] float32, contiguous."""
        row = np.ascontiguousarray(logits, dtype=np.float32)
        pointer = ffi.cast("float *", row.ctypes.data)
        code = lib.llama_spec_sample_row(self.handle, pointer, row.size, self._id)
        check(code, "cannot sample")
        token: int = self._id[0]
        return token

    def accept(self, token: int, *, generated: bool = True) -> None:
        """Advances penalties and grammar over a token; the grammar ignores a prompt's tokens."""
        code = lib.llama_spec_sampler_accept(self.handle, token, generated)
        check(code, "cannot accept a token (make another sampler, or give one that it allows)")

    def clone(self) -> Sampler:
        """A copy with the same, independent state."""
        out = ffi.new("llama_spec_sampler **")
        check(lib.llama_spec_sampler_clone(self.handle, out), "cannot copy the sampler")
        copy = object.__new__(Sampler)
        copy.model, copy.params, copy.seed = self.model, self.params, self.seed
        copy._adopt(out[0])
        return copy
