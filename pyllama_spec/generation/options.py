"""What a caller may ask of one generation."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine import SamplerParams, Vocab
from pyllama_spec.engine.checks import INT32_MAX, count, integer
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.generation.json_grammar import JSON_OBJECT

# f(ids so far [n] int32, logits of the next token [n_vocab] float32) -> logits [n_vocab]
LogitsProcessor = Callable[[npt.NDArray[np.int32], npt.NDArray[np.float32]], Any]
# f(ids so far [n] int32, logits of the next token [n_vocab] float32) -> whether to stop before it
StoppingCriterion = Callable[[npt.NDArray[np.int32], npt.NDArray[np.float32]], Any]

MAX_LOGPROBS = 1000
_COUNTS = (("logprobs", 0, MAX_LOGPROBS), ("penalty_last_n", -1, INT32_MAX))
# Both mean "draw one": -1 by habit, the other one is llama.cpp's LLAMA_DEFAULT_SEED.
_RANDOM_SEEDS = (-1, 2**32 - 1)
# The defaults of sampling are the engine's, and most names too.
_SAMPLING = SamplerParams()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """The options of one generation, under llama-cpp-python's names.

    Attributes:
        max_tokens: the most tokens to generate; None, 0 or less: up to the context's end.
        temperature: divides the logits; 0 is greedy.
        top_k, top_p, min_p, typical_p, top_n_sigma: cuts; 0, 1, 0, 1, -1 are off.
        min_keep: how many candidates the cuts leave at least.
        stop: a string or several that end the text and are no part of it.
        repeat_penalty, frequency_penalty, presence_penalty: 1, 0, 0 are off. They see the prompt.
        penalty_last_n: how many past tokens the penalties see; -1 for all, None for the model's
            last_n_tokens_size.
        dry_*, xtc_*: see engine.SamplerParams.
        mirostat_mode, mirostat_tau, mirostat_eta: 0 is off, 1 or 2.
        seed: of the draws; None for the model's own seed, -1 for a new one.
        logit_bias: id (int, or str of digits) -> what is added to its logit.
        grammar: GBNF rules with a rule `root`, or an object that holds them as `_grammar`.
        response_format: {"type": "json_object"} for any JSON object, {"type": "text"} for none.
        logprobs: how many alternatives to report with each token's log-probability; None for no
            log-probabilities. They are those of the model, before any sampler.
        logits_processor: one or several functions that change the logits, in order.
        stopping_criteria: one or several functions that end the text before the next token.

    Raises:
        ArgumentError: a value is out of range or of a wrong type.
        UnsupportedError: the response format is not supported.

    """

    max_tokens: int | None = 16
    temperature: float = _SAMPLING.temperature
    top_k: int = _SAMPLING.top_k
    top_p: float = _SAMPLING.top_p
    min_p: float = _SAMPLING.min_p
    typical_p: float = _SAMPLING.typical_p
    top_n_sigma: float = _SAMPLING.top_n_sigma
    min_keep: int = _SAMPLING.min_keep
    stop: str | Sequence[str] | None = ()
    repeat_penalty: float = _SAMPLING.repeat_penalty
    frequency_penalty: float = _SAMPLING.frequency_penalty
    presence_penalty: float = _SAMPLING.presence_penalty
    penalty_last_n: int | None = None
    dry_multiplier: float = _SAMPLING.dry_multiplier
    dry_base: float = _SAMPLING.dry_base
    dry_allowed_length: int = _SAMPLING.dry_allowed_length
    dry_penalty_last_n: int = _SAMPLING.dry_penalty_last_n
    dry_breakers: tuple[str, ...] = _SAMPLING.dry_breakers
    xtc_probability: float = _SAMPLING.xtc_probability
    xtc_threshold: float = _SAMPLING.xtc_threshold
    mirostat_mode: int = _SAMPLING.mirostat
    mirostat_tau: float = _SAMPLING.mirostat_tau
    mirostat_eta: float = _SAMPLING.mirostat_eta
    seed: int | None = None
    logit_bias: Mapping[int | str, float] | None = None
    grammar: Any = None
    response_format: Mapping[str, Any] | None = None
    logprobs: int | None = None
    logits_processor: LogitsProcessor | Iterable[LogitsProcessor] | None = None
    stopping_criteria: StoppingCriterion | Iterable[StoppingCriterion] | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            self._set("max_tokens", integer(self.max_tokens, "max_tokens"))
        for name, low, high in _COUNTS:
            if (value := getattr(self, name)) is not None:
                self._set(name, count(value, name, low, high))
        self._set("stop", _stops(self.stop))
        self._set("seed", check_seed(self.seed))
        self._set("grammar", _grammar(self.grammar, self.response_format))
        for name in ("logits_processor", "stopping_criteria"):
            self._set(name, _functions(getattr(self, name), name))
        self.sampler_params()  # whose own checks are as good before the request as in it

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> RequestOptions:
        """The options that a call's keywords say.

        Raises:
            ArgumentError: there is no such keyword, with the ones that look like it.

        """
        known = [field.name for field in fields(cls)]
        check_keywords(keywords, known, "request option")
        return cls(**keywords)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return tuple(self.stop or ())

    @property
    def processors(self) -> tuple[LogitsProcessor, ...]:
        """The logits processors."""
        found: Any = self.logits_processor
        return tuple(found or ())

    @property
    def criteria(self) -> tuple[StoppingCriterion, ...]:
        """The stopping criteria."""
        found: Any = self.stopping_criteria
        return tuple(found or ())

    def sampler_params(
        self, vocab: Vocab | None = None, *, seed: int | None = None, last_n: int = 64
    ) -> SamplerParams:
        """The engine's parameters.

        Args:
            vocab: checks the ids of logit_bias.
            seed: where the request has none.
            last_n: where the request has no penalty_last_n.

        """
        bias = _bias(self.logit_bias)
        if vocab is not None:
            vocab.check_ids(list(bias), "logit_bias")
        alike = {name: getattr(self, name) for name in _ALIKE}
        return SamplerParams(
            **{
                **alike,
                "dry_breakers": _as_tuple(self.dry_breakers, "dry_breakers"),
                "logit_bias": bias,
                "mirostat": self.mirostat_mode,
                "penalty_last_n": last_n if self.penalty_last_n is None else self.penalty_last_n,
                "seed": _drawn(seed if self.seed is None else self.seed),
            }
        )


_ALIKE = sorted({f.name for f in fields(SamplerParams)} & {f.name for f in fields(RequestOptions)})


def check_keywords(
    keywords: Iterable[str], known: Sequence[str], what: str, hints: Mapping[str, str] | None = None
) -> None:
    """Refuses keywords that do not exist.

    Args:
        keywords: what the caller wrote.
        known: what there is.
        what: what they are, in the message's words.
        hints: what to say of some that do not exist.

    Raises:
        ArgumentError: names the first unknown one, and what looks like it.

    """
    for keyword in keywords:
        if keyword in known:
            continue
        if hints and keyword in hints:
            raise ArgumentError(f"{keyword}: {hints[keyword]}")
        close = difflib.get_close_matches(keyword, known, n=3)
        also = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ArgumentError(f"there is no {what} {keyword!r}{also}")


def check_seed(seed: object) -> int | None:
    """A seed, or None where the number stands for none, or -1 where a new one is asked for."""
    if seed is None:
        return None
    if seed in _RANDOM_SEEDS:
        return -1
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= int(seed) < 2**32:
        raise ArgumentError(f"seed={seed!r} is not None, -1 or an int from 0 to 2**32 - 1")
    return int(seed)


def _drawn(seed: int | None) -> int | None:
    return None if seed == -1 else seed


def _stops(stop: object) -> tuple[str, ...]:
    if stop is None:
        return ()
    found: tuple[Any, ...] = (stop,) if isinstance(stop, str) else _as_tuple(stop, "stop")
    for one in found:
        if not isinstance(one, str) or not one:
            raise ArgumentError(f"stop takes strings that are not empty, not {one!r}")
    return found


def _as_tuple(value: object, name: str) -> tuple[Any, ...]:
    if isinstance(value, (bytes, Mapping)) or not isinstance(value, Iterable):
        raise ArgumentError(f"{name}={value!r} is not a list")
    return tuple(value)


def _functions(value: object, name: str) -> tuple[Any, ...]:
    # A list comes first: llama-cpp-python's lists of processors can be called themselves.
    if value is None:
        return ()
    found = tuple(value) if isinstance(value, Iterable) else (value,)
    for one in found:
        if not callable(one):
            raise ArgumentError(f"{name} takes functions, not {one!r}")
    return found


def _bias(bias: Mapping[int | str, float] | None) -> dict[int, float]:
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise ArgumentError(f"logit_bias={bias!r} is not a dict of ids and numbers")
    out: dict[int, float] = {}
    for key, value in bias.items():
        try:
            out[int(key)] = float(value)
        except (TypeError, ValueError):
            raise ArgumentError(f"logit_bias has {key!r}: {value!r}; expected id: number") from None
        if out[int(key)] != out[int(key)]:
            raise ArgumentError(f"logit_bias of id {key} is NaN")
    return out


def _grammar(grammar: object, response_format: Mapping[str, Any] | None) -> str | None:
    if grammar is not None:
        text = grammar if isinstance(grammar, str) else getattr(grammar, "_grammar", None)
        if not isinstance(text, str) or not text.strip():
            raise ArgumentError(f"grammar takes GBNF rules as a str, not {grammar!r:.60}")
        if response_format is not None and response_format.get("type") != "text":
            raise ArgumentError("give grammar or response_format, not both")
        return text
    if response_format is None:
        return None
    if not isinstance(response_format, Mapping) or "type" not in response_format:
        raise ArgumentError(f'response_format={response_format!r:.60} is not {{"type": ...}}')
    kind = response_format["type"]
    if kind == "text":
        return None
    if kind == "json_object" and response_format.get("schema") is None:
        return JSON_OBJECT
    if kind in ("json_object", "json_schema"):
        raise UnsupportedError(
            "response_format with a schema is not supported by this version; write the schema as "
            'GBNF rules and give them as grammar=, or use {"type": "json_object"}'
        )
    raise ArgumentError(f"response_format has type {kind!r}; there are text and json_object")
