"""The options of one generation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pyllama_spec.constraints import form_of
from pyllama_spec.engine import SamplerParams, Vocab
from pyllama_spec.engine.checks import (
    boolean,
    checked,
    int32,
    integer,
    listed,
    meant,
    one_of,
    real,
    text,
)
from pyllama_spec.errors import ArgumentError, UnknownKeywordError, UnsupportedError
from pyllama_spec.options import option, options_of

# f(ids so far [n] int32, logits of the next token [n_vocab] float32) -> logits [n_vocab]
LogitsProcessor = Callable[[npt.NDArray[np.int32], npt.NDArray[np.float32]], Any]
# f(ids so far [n] int32, logits of the next token [n_vocab] float32) -> whether to stop before it
StoppingCriterion = Callable[[npt.NDArray[np.int32], npt.NDArray[np.float32]], Any]

MAX_LOGPROBS = 1000
# More choices than anybody reads; each is a request of its own.
MAX_CHOICES = 1024
# How drafts are accepted.
Acceptance = Literal["exact", "noise", "distribution"]
ACCEPTANCE = ("exact", "noise", "distribution")
# What OpenAI's API knows, from no thoughts to as many as the model likes.
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_USAGE_OPTIONS = ("include_usage", "continuous_usage_stats")
# Both mean "draw one": -1 by habit, the other one is llama.cpp's LLAMA_DEFAULT_SEED.
_RANDOM_SEEDS = (-1, 2**32 - 1)
# The defaults of sampling are the engine's, and most names too.
_SAMPLING = SamplerParams()


def check_seed(seed: object, name: str = "seed") -> int | None:
    """A seed; None for no seed, -1 for a new one per request."""
    if seed is None:
        return None
    number = integer(seed, name)
    if number in _RANDOM_SEEDS:
        return -1
    if not 0 <= number < 2**32:
        raise ArgumentError(name, seed, f"None, -1 or an int from 0 to {2**32 - 1}")
    return number


def _as_tuple(value: object, name: str) -> tuple[Any, ...]:
    if isinstance(value, (bytes, Mapping)) or not isinstance(value, Iterable):
        raise ArgumentError(name, value, list)
    try:
        return listed(value, name)
    except TypeError:  # an array of one number has an iterator, and it raises
        raise ArgumentError(name, value, list) from None


def _texts(value: object, name: str) -> tuple[str, ...]:
    """One text or several, none of them empty: every text contains that."""
    texts = (value,) if isinstance(value, str) else _as_tuple(value, name)
    for one in texts:
        if not text(one, name):
            raise ArgumentError(name, one, "strings that are not empty")
    return texts


def stops_of(stop: str | Sequence[str] | None) -> list[str]:
    """One stop string, several or none as a list."""
    return [stop] if isinstance(stop, str) else list(stop or ())


def _ids(value: object, name: str) -> tuple[int, ...]:
    return tuple(int32(one, name) for one in _as_tuple(value, name))


def _functions(value: object, name: str) -> tuple[Any, ...]:
    # A list comes first: llama-cpp-python's lists of processors can be called themselves.
    if value is None:
        return ()
    functions = _as_tuple(value, name) if isinstance(value, Iterable) else (value,)
    for one in functions:
        if not callable(one):
            raise ArgumentError(name, one, "functions")
    return functions


def _no_tail_free(value: object, name: str) -> float:
    if real(value, name) != 1:
        raise UnsupportedError(
            "asks for tail-free sampling, which the engine has not",
            param=name,
            value=value,
            remedy="leave it at 1, and cut with `top_p`, `min_p` or `typical_p`",
        )
    return 1.0


def _mapping(value: Any, name: str) -> Mapping[Any, Any]:
    if not isinstance(value, (Mapping, type(None))):
        raise ArgumentError(name, value, dict)
    return {} if value is None else value


def _stream_options(value: object, name: str) -> Mapping[str, Any] | None:
    options = _mapping(value, name)
    for key, one in options.items():
        one_of(key, _USAGE_OPTIONS, name)
        if one is not None:
            boolean(one, f"{name}.{key}")
    return options or None


def _bias(value: object, name: str) -> dict[int, float]:
    """Token ids with what is added to their logits."""
    out: dict[int, float] = {}
    for key, added in _mapping(value, name).items():
        try:
            token, out_of_place = int(key), isinstance(key, float) and int(key) != key
            out[token] = float(added)
        except Exception:  # noqa: BLE001 - of anyone's; also an int that no float can hold
            out_of_place = True
        if out_of_place or math.isnan(out[token]):
            raise ArgumentError(name, {key: added}, "token ids, each with a number")
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """The options of one generation, under llama-cpp-python's names.

    Attributes:
        max_tokens: the most tokens to generate, a whole number (8.0 is one too); None, 0 or less:
            up to the context's end. None of any other option is its default.
        max_completion_tokens: OpenAI's newer name for it; it takes precedence.
        min_tokens: until the text has this many tokens, no end token and none of stop_token_ids is
            chosen, and a stop string within them has no effect. If nothing else may follow, as
            after a grammar's end, the text ends all the same.
        ignore_eos: no end token is chosen at all, with the same exception.
        n: the number of answers to one prompt. The first has the text of n=1, answer i (from 0)
            that of seed + i, modulo 2**32 - 1; with seed=-1 each has its own seed.
        temperature: divides the logits; 0, and all below 1e-6, is greedy; below 0 samples from the
            model's own distribution, without cuts.
        top_k, top_p, min_p, typical_p, top_n_sigma: cuts; 0, 1, 0, 1, -1 are off.
        min_keep: the least number of candidates that the cuts leave.
        stop: one or several strings that end the text and are not part of it.
        stop_token_ids: ids that end it too. `stop_reason` of a choice is the string or the id that
            did; None for the model's own end or a limit.
        include_stop_str_in_output: leave the string, or the token, at the text's end.
        repeat_penalty, frequency_penalty, presence_penalty: 1, 0, 0 are off.
        penalize_prompt: whether they, and DRY, see the prompt too; None: only DRY does.
        penalty_last_n: how many past tokens the penalties see; -1 for all, None for the model's
            last_n_tokens_size.
        dry_*, xtc_*: see engine.SamplerParams.
        mirostat_mode, mirostat_tau, mirostat_eta: 0 is off, 1 or 2.
        seed: of sampling; None for the next of the model's stream of seeds, -1 for a new one.
        logit_bias: id (int, or str of digits) -> what is added to its logit.
        grammar: GBNF rules with a rule `root`, or an object that holds them as `_grammar`.
        response_format: {"type": "json_object"} for any JSON object, with "schema": {...} for
            those that it describes; {"type": "json_schema", "json_schema": {"schema": {...}}} means
            the same; {"type": "regex", "pattern": "..."}; {"type": "grammar", "syntax": "regex" or
            "gbnf", "definition": "..."}; {"type": "text"} for anything.
        tfs_z: only 1, which is off; the engine no longer has tail-free sampling.
        logprobs: the number of alternatives to report with each token's log-probability; None for
            no log-probabilities. They are the model's, before any sampler.
        grammar_triggers, grammar_trigger_tokens, grammar_prefill: for a grammar that starts later,
            or that the prompt's end began; see engine.SamplerParams.
        timeout_s: seconds after the call when the request ends with a DeadlineError, at any stage;
            checked between two rounds. None for no limit.
        logits_processor: one or several functions that change the logits, in order.
        stopping_criteria: one or several functions that end the text before the next token.
        thinking_token_budget: the most tokens of all thoughts together; at the limit the tokens
            that end a thought are forced. The marks of thoughts are those of the model's own
            template. -1 or None for no limit.
        reasoning_effort: for chats: "none", "minimal", "low", "medium", "high" or "xhigh", passed
            to templates that read it. With others "none" switches thoughts off, and the next three
            are budgets of 128, 1024 and 2048 tokens, "high" one of 4096.
        continue_final_message: for chats: the answer continues the last message, an assistant's.
        add_generation_prompt: for chats: False for a prompt that ends with the last message;
            continue_final_message implies it.
        return_token_ids: report `token_ids` with each choice and chunk, those of its text, and
            `prompt_token_ids`.
        return_token_sources: report `token_sources` with each choice and chunk: its text in pieces,
            each with who drafted it: "model", "copy" of the text itself, "memory" for a copy of an
            earlier one, "grammar", or "target" for the target's own choice.
        prediction: a text that the answer is expected to repeat much of, such as the file that is
            edited. Any Llama with a draft drafts from it where the two are alike. The text is the
            same.
        n_draft: the most tokens to draft for this request per round, within the Llama's own limit;
            0 decodes it plainly, None takes the Llama's limit. The text is the same.
        acceptance: "exact", "noise" or "distribution", see Llama; None for the Llama's own. With
            "distribution" n_draft, prediction and the controller change which text a seed gives.
        stream_options: for streams: {"include_usage": True} for a last chunk with `usage` and no
            choices, and `usage` None in the others; with "continuous_usage_stats" each has the
            usage so far. None for the usage in the chunk with the finish_reason.
        user: whose request it is. It changes no text: a draft that learns from earlier requests
            copies only from those of the same user, and from named stores.
        remember: whether a draft may learn from this request for later ones, in memory or in the
            store of draft_memory=, and whether a cache of set_cache() may keep its state. False:
            neither. A context holds its text until another request takes the place.
        context_shift: when the context is full, drop the older half of the text after n_keep and
            continue; needs max_tokens. The rest is read again, so this works with every model. Off:
            the text ends there.
        n_keep: the number of the prompt's first tokens that are never dropped, besides a BOS token;
            -1 for all, but never more than half a context.
        thought_tags, thought_is_open, thought_close, grammar_skips_thoughts: describe the model's
            thoughts; chats and texts fill them in; see engine.SamplerParams.

    Raises:
        ArgumentError: a value is out of range or of a wrong type.
        UnsupportedError: the response format is not supported.
    """

    # fmt: off
    max_tokens: int | None = option(
        16, cli="-n --max-tokens", cli_default=128, group="sampling",
        help="maximum new tokens; below 1: up to the context",
        server="-n --predict --n-predict", variable="ARG_N_PREDICT",
    )
    temperature: float = option(
        _SAMPLING.temperature, cli="--temp", cli_default=0.0, metavar="TEMP", group="sampling",
        help="sampling temperature; 0 is greedy",
        server="--temp --temperature", variable="ARG_TEMPERATURE",
    )
    seed: int | None = option(
        None, check=check_seed, cli="--seed", cli_default=1, group="sampling",
        help="seed of sampling; -1: a random seed", server="-s --seed",
    )
    top_k: int = option(
        _SAMPLING.top_k, cli="--top-k", group="sampling",
        help="sample among this many likeliest tokens; 0: among all",
        server="--top-k", variable="ARG_TOP_K",
    )
    top_p: float = option(
        _SAMPLING.top_p, cli="--top-p", group="sampling",
        help="sample among the likeliest tokens with this share of probability",
        server="--top-p", variable="ARG_TOP_P",
    )
    min_p: float = option(
        _SAMPLING.min_p, cli="--min-p", group="sampling",
        help="sample only tokens with at least this share of the likeliest one's probability",
        server="--min-p", variable="ARG_MIN_P",
    )
    typical_p: float = option(_SAMPLING.typical_p, server="--typical --typical-p")
    top_n_sigma: float = option(_SAMPLING.top_n_sigma, server="--top-nsigma --top-n-sigma")
    min_keep: int = option(_SAMPLING.min_keep, body="")
    repeat_penalty: float = option(
        _SAMPLING.repeat_penalty, cli="--repeat-penalty", group="sampling",
        help="penalty on generated tokens, which divides their logits; 1: off",
        server="--repeat-penalty", variable="ARG_REPEAT_PENALTY",
        body="repeat_penalty repetition_penalty",
    )
    frequency_penalty: float = option(
        _SAMPLING.frequency_penalty,
        server="--frequency-penalty", variable="ARG_FREQUENCY_PENALTY",
    )
    presence_penalty: float = option(
        _SAMPLING.presence_penalty,
        server="--presence-penalty", variable="ARG_PRESENCE_PENALTY",
    )
    penalty_last_n: int | None = option(
        None, low=-1, server="--repeat-last-n", body="repeat_last_n"
    )
    penalize_prompt: bool | None = option(None, body="")
    tfs_z: float = option(1.0, check=_no_tail_free, body="")
    dry_multiplier: float = option(_SAMPLING.dry_multiplier, server="--dry-multiplier")
    dry_base: float = option(_SAMPLING.dry_base, server="--dry-base")
    dry_allowed_length: int = option(_SAMPLING.dry_allowed_length, server="--dry-allowed-length")
    dry_penalty_last_n: int = option(_SAMPLING.dry_penalty_last_n, server="--dry-penalty-last-n")
    dry_breakers: Sequence[str] = option(_SAMPLING.dry_breakers, body="")
    xtc_probability: float = option(_SAMPLING.xtc_probability, server="--xtc-probability")
    xtc_threshold: float = option(_SAMPLING.xtc_threshold, server="--xtc-threshold")
    mirostat_mode: int = option(
        _SAMPLING.mirostat, low=0, high=2, server="--mirostat", body="mirostat"
    )
    mirostat_tau: float = option(_SAMPLING.mirostat_tau, server="--mirostat-ent")
    mirostat_eta: float = option(_SAMPLING.mirostat_eta, server="--mirostat-lr")
    logit_bias: Mapping[int | str, float] | None = option(None, check=_bias, body="")
    stop: str | Sequence[str] | None = option(
        (), check=_texts, cli="--stop", is_repeated=True, group="sampling",
        help="a string that ends the text",
        server="-r --reverse-prompt", most=64,
    )
    stop_token_ids: Sequence[int] = option((), check=_ids, most=10_000)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = option(False, server="--ignore-eos")
    n: int = option(1, low=1, high=MAX_CHOICES)
    max_completion_tokens: int | None = None
    min_tokens: int = option(0, low=0)
    grammar: Any = option(None, server="--grammar")
    response_format: Mapping[str, Any] | None = None
    logprobs: int | None = option(None, low=0, high=MAX_LOGPROBS, body="")
    timeout_s: float | None = option(None, low=0, body="timeout")
    logits_processor: LogitsProcessor | Iterable[LogitsProcessor] | None = option(
        None, check=_functions, body=""
    )
    stopping_criteria: StoppingCriterion | Iterable[StoppingCriterion] | None = option(
        None, check=_functions, body=""
    )
    thinking_token_budget: int | None = option(None, low=-1)
    reasoning_effort: str | None = option(
        None, choices=EFFORTS, of_chats=True, server="--reasoning-effort",
        variable="ARG_REASONING_EFFORT",
    )
    continue_final_message: bool | None = option(None, of_chats=True)
    add_generation_prompt: bool | None = option(None, of_chats=True)
    return_token_ids: bool = False
    return_token_sources: bool = option(False, body="")
    stream_options: Mapping[str, Any] | None = option(None, check=_stream_options, body="")
    user: str | None = None
    remember: bool = True
    context_shift: bool = option(
        False, server="--context-shift", variable="ARG_CONTEXT_SHIFT",
        server_off="--no-context-shift", variable_off="ARG_NO_CONTEXT_SHIFT",
    )
    n_keep: int = option(0, low=-1, server="--keep")
    n_draft: int | None = option(None, low=0, body="")
    prediction: str | None = option(None, body="")
    acceptance: Acceptance | None = option(None, choices=ACCEPTANCE, body="")
    # What chats and grammars set.
    grammar_triggers: tuple[str, ...] = option((), body="")
    grammar_trigger_tokens: tuple[int, ...] = option((), body="")
    grammar_prefill: tuple[int, ...] = option((), body="")
    thought_tags: tuple[str, ...] = option((), body="")
    thought_is_open: bool = option(False, body="")
    thought_close: tuple[int, ...] = option((), body="")
    grammar_skips_thoughts: bool = option(False, body="")
    # fmt: on

    def __post_init__(self) -> None:
        for one in options_of(type(self)).values():
            value = getattr(self, one.name)
            if value is None and one.name != "max_tokens":
                value = one.default  # null is the default in OpenAI's requests too
            self._set(one.name, checked(one, value))
        if self.max_completion_tokens is not None:
            self._set("max_tokens", self.max_completion_tokens)
        if self.thinking_token_budget == -1:
            self._set("thinking_token_budget", None)
        self._check_pairs()
        if self.grammar is not None or self.response_format is not None:
            self._set("grammar", form_of(self.grammar, self.response_format))
        self.sampler_params()  # checked before the request by its own rules

    def _check_pairs(self) -> None:
        """Refuses options that contradict each other."""
        limit = self.max_tokens
        if limit is not None and 0 < limit < self.min_tokens:
            raise ArgumentError(
                "min_tokens", self.min_tokens, problem=f"is above `max_tokens={limit}`",
                remedy="lower it, or give the text more room",
            )  # fmt: skip
        if self.context_shift and (limit is None or limit <= 0):
            raise ArgumentError(
                "context_shift", True, problem=f"needs `max_tokens`, and it is {limit}: nothing "
                "else ends the text where the context is never full",
            )  # fmt: skip
        form, goes_on = self.response_format, self.continue_final_message
        wanted = form.get("type") if isinstance(form, Mapping) else None
        if goes_on and wanted in ("json_object", "json_schema"):
            raise ArgumentError(
                "continue_final_message",
                problem="cannot stand with a `response_format` of JSON: the form is of a whole "
                "answer, of which the last message is a part",
                remedy="leave out one of them, or give a grammar of what is still to come",
            )
        if self.add_generation_prompt and goes_on:
            raise ArgumentError(
                "continue_final_message",
                problem="continues the last message, but `add_generation_prompt=True` begins "
                "another one", remedy="leave one of them out",
            )  # fmt: skip

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> RequestOptions:
        """Reads the options from a call's keywords.

        Raises:
            UnknownKeywordError: there is no such keyword; the message names similar ones.
        """
        known = options_of(cls)
        for name in keywords:
            if name not in known:
                longer = [one for one in known if len(name) > 3 and one.startswith(name)]
                close = meant(name, known) or (f"; did you mean {longer[0]}?" if longer else "")
                raise UnknownKeywordError(name, problem=f"is no option of a request{close}")
        return cls(**keywords)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        stops: Any = self.stop
        return tuple(stops)

    @property
    def usage_apart(self) -> bool:
        """Whether a stream reports the usage in a chunk of its own."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def usage_in_each(self) -> bool:
        """Whether each chunk reports the usage so far."""
        return self.usage_apart and bool((self.stream_options or {}).get("continuous_usage_stats"))

    def of_choice(self, i: int, seed: int | None) -> RequestOptions:
        """The options of answer i of n.

        Args:
            i: the index of the answer, from 0.
            seed: the seed for requests without one; None for a seed of its own.
        """
        begin = seed if self.seed is None else self.seed
        own = self.seed if begin is None or begin == -1 else (begin + i) % (2**32 - 1)
        return replace(self, n=1, seed=own, max_completion_tokens=None, response_format=None)

    @property
    def processors(self) -> tuple[LogitsProcessor, ...]:
        """The logits processors."""
        processors: Any = self.logits_processor
        return tuple(processors)

    @property
    def criteria(self) -> tuple[StoppingCriterion, ...]:
        """The stopping criteria."""
        criteria: Any = self.stopping_criteria
        return tuple(criteria)

    @property
    def sees_prompt(self) -> bool:
        """Whether penalties and DRY see the prompt; DRY penalises repetitions of the prompt."""
        if self.penalize_prompt is None:
            return self.dry_multiplier != 0
        return self.penalize_prompt

    def sampler_params(
        self, vocab: Vocab | None = None, *, seed: int | None = None, last_n: int = 64
    ) -> SamplerParams:
        """The parameters of the engine's sampler.

        Args:
            vocab: the vocabulary, which checks the ids of logit_bias.
            seed: the seed for requests without one.
            last_n: the value for requests without penalty_last_n.
        """
        bias: Any = self.logit_bias
        if vocab is not None:
            vocab.check_ids(list(bias), "logit_bias")
            vocab.check_ids(self.stop_token_ids, "stop_token_ids")
        shared = {name: getattr(self, name) for name in _SHARED_FIELDS}
        seed = seed if self.seed is None else self.seed
        temperature = self.temperature
        draws_from_all = isinstance(temperature, (int, float)) and temperature < 0
        params = SamplerParams(
            **{
                **shared,
                "temperature": 1.0 if draws_from_all else temperature,
                "dry_breakers": _as_tuple(self.dry_breakers, "dry_breakers"),
                "logit_bias": bias,
                "mirostat": self.mirostat_mode,
                "penalty_last_n": last_n if self.penalty_last_n is None else self.penalty_last_n,
                "seed": None if seed == -1 else seed,
                # Without its end yet: the caller that knows the template sets it.
                "thought_budget": self.thinking_token_budget if self.thought_close else None,
            }
        )
        # As in llama-cpp-python; what it leaves unused is checked all the same.
        return params if not draws_from_all else replace(
            params, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0, top_n_sigma=-1.0,
            xtc_probability=0.0, mirostat=0,
        )  # fmt: skip


# The options of chats: a text has no messages and no template.
OF_CHATS = tuple(one.name for one in options_of(RequestOptions).values() if one.of_chats)
_SHARED_FIELDS = sorted(
    {f.name for f in fields(SamplerParams)} & {f.name for f in fields(RequestOptions)}
)
