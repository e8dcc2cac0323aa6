"""Samplers, grammars and vocabularies used wrongly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec.engine import Model, Sampler, SamplerParams
from pyllama_spec.errors import (
    ArgumentError,
    BusyError,
    ClosedError,
    EngineError,
    PyllamaSpecError,
)

from .harness import CaseList
from .tools import N_VOCAB, PROMPT, decoded, opened, tiny

CASES = CaseList()

Call = Callable[[Path], object]
_INF = float("inf")
_NAN = float("nan")


def sampler(**params: Any) -> Sampler:
    return Sampler(Model(tiny()), SamplerParams(**{"temperature": 0.0, **params}))


def _make(**params: Any) -> Call:
    return lambda _: sampler(**params)


def _draw(**params: Any) -> Call:
    """Makes a sampler and draws from real logits."""
    return lambda _: sampler(**params).sample(decoded(), len(PROMPT) - 1)


CASES.table(
    "params",
    {
        "temperature_nan": (_make(temperature=_NAN), ArgumentError, "temperature=nan"),
        "temperature_inf": (_make(temperature=_INF), ArgumentError, "temperature=inf"),
        "temperature_negative": (_make(temperature=-1), ArgumentError, "temperature=-1"),
        "temperature_text": (_make(temperature="hot"), ArgumentError, "'hot'"),
        "top_p": (_make(top_p=1.5), ArgumentError, "top_p=1.5"),
        "min_p_nan": (_make(min_p=_NAN), ArgumentError, "min_p=nan"),
        "top_k_float": (_make(top_k=3.5), ArgumentError, "top_k=3.5"),
        "top_k_huge": (_make(top_k=2**40), ArgumentError, str(2**40)),
        "repeat_penalty_0": (_make(repeat_penalty=0.0), ArgumentError, "repeat_penalty=0.0"),
        "penalty_window": (_make(repeat_penalty=1.1, penalty_last_n=2**31 - 1), None, ""),
        "dry_window": (_make(dry_multiplier=1.0, dry_penalty_last_n=2**31 - 1), None, ""),
        "mirostat": (_make(mirostat=3), ArgumentError, "mirostat=3"),
        "seed_negative": (_make(seed=-1), ArgumentError, "seed=-1"),
        "seed_text": (_make(seed="x"), ArgumentError, "'x'"),
        "bias_of_no_token": (_make(logit_bias={N_VOCAB: 1.0}), ArgumentError, str(N_VOCAB)),
        "bias_negative": (_make(logit_bias={-1: 1.0}), ArgumentError, "-1"),
        "bias_2_40": (_make(logit_bias={2**40: 1.0}), ArgumentError, str(2**40)),
        "bias_text": (_make(logit_bias={"a": 1.0}), ArgumentError, "'a'"),
        "bias_nan": (_make(logit_bias={1: _NAN}), ArgumentError, "nan"),
        "bias_list": (_make(logit_bias=[1, 2]), ArgumentError, "logit_bias"),
        "model_none": (lambda _: Sampler(None), ArgumentError, "NoneType"),  # type: ignore[arg-type]
        "params_dict": (lambda _: Sampler(Model(tiny()), {}), ArgumentError, "dict"),  # type: ignore[arg-type]
        "all_forbidden": (
            _draw(logit_bias=dict.fromkeys(range(N_VOCAB), -_INF)), EngineError, "logit_bias",
        ),
        "all_forbidden_drawn": (
            _draw(logit_bias=dict.fromkeys(range(N_VOCAB), -_INF), temperature=0.8),
            EngineError, "logit_bias",
        ),
        "breakers_int": (_make(dry_multiplier=1.0, dry_breakers=(3,)), ArgumentError, "breakers"),
    },
)  # fmt: skip


def _grammar(text: Any, **params: Any) -> Call:
    return _draw(grammar=text, **params)


_DEEP_GROUPS = "root ::= " + "(" * 200_000 + '"a"' + ")" * 200_000
_DEEP_RULES = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(50_000))
_DEEP_RULES += 'r50000 ::= "a"\n'

CASES.table(
    "grammar",
    {
        "nonsense": (_grammar("root ::= ((( "), ArgumentError, "grammar"),
        "empty": (_grammar(""), ArgumentError, "grammar"),
        "no_root": (_grammar('start ::= "a"'), ArgumentError, "'root'"),
        "other_root": (_grammar('root ::= "a"', grammar_root="top"), ArgumentError, "'top'"),
        "undefined_rule": (_grammar("root ::= missing"), ArgumentError, "missing"),
        "left_recursive": (_grammar('root ::= root "a" | "b"'), ArgumentError, "left"),
        "hidden_left_recursion": (
            _grammar('root ::= a\na ::= b "x"\nb ::= ("y")? a | "z"'), ArgumentError, "left",
        ),
        "bytes_not_text": (_grammar(b"root ::= [a-z]"), ArgumentError, "bytes"),
        "nul": (_grammar('root ::= "a"\0junk('), ArgumentError, "NUL"),
        "deep_groups": (_grammar(_DEEP_GROUPS), ArgumentError, "200 deep"),
        "deep_rules": (_grammar(_DEEP_RULES), ArgumentError, "1000 deep"),
        # The engine takes a limit this high as none.
        "huge_repetition": (_grammar('root ::= "a"{0,100000000}'), None, ""),
        "recursion_limit": (_grammar('root ::= ("a" | "b"?){0,1999}'), ArgumentError, "grammar"),
        "many_repetitions": (
            _grammar('root ::= ((("a"{999}){999}){999}){999}'), ArgumentError, "grammar",
        ),
        "bad_range": (_grammar('root ::= "a"{5,2}'), ArgumentError, "grammar"),
        "bad_escape": (_grammar(r'root ::= "\xZZ"'), ArgumentError, "grammar"),
        "unknown_token": (_grammar("root ::= <[99999]>"), ArgumentError, "the grammar allows none"),
        "trigger_not_a_pattern": (
            _grammar('root ::= "a"', grammar_triggers=("(((",)), PyllamaSpecError, "regular",
        ),
        "root_none": (_make(grammar='root ::= "a"', grammar_root=None), ArgumentError, "None"),
    },
)  # fmt: skip


@CASES.add(PyllamaSpecError, "grammar")
def grammar_given_a_wrong_token(folder: Path) -> None:
    sampler(grammar='root ::= "a"').accept(ord("b"))


@CASES.add(PyllamaSpecError, "grammar")
def grammar_at_its_end(folder: Path) -> None:
    one = sampler(grammar='root ::= "a"')
    one.accept(ord("a"))
    one.accept(ord("a"))


@CASES.add(EngineError, "no token may follow")
def nothing_left_to_generate(folder: Path) -> None:
    """A grammar that has ended, in a vocabulary whose end tokens are all forbidden."""
    context = decoded()
    end = {i: -_INF for i in range(N_VOCAB) if context.model.vocab.is_eog(i)}
    one = Sampler(
        context.model, SamplerParams(temperature=0, grammar='root ::= "a"', logit_bias=end)
    )
    one.accept(ord("a"))
    one.sample(context, 4)


def _row(values: Any, **params: Any) -> Call:
    return lambda _: sampler(**params).sample_row(values)


_NAN_ROW = np.full(N_VOCAB, _NAN, np.float32)
_INF_ROW = np.full(N_VOCAB, -_INF, np.float32)

CASES.table(
    "draw",
    {
        "nan": (_row(_NAN_ROW), EngineError, "NaN"),
        "nan_drawn": (_row(_NAN_ROW, temperature=0.8), EngineError, "NaN"),
        "nan_with_mirostat": (_row(_NAN_ROW, temperature=0.8, mirostat=2), EngineError, "NaN"),
        "nan_with_mirostat_1": (_row(_NAN_ROW, temperature=0.8, mirostat=1), EngineError, "NaN"),
        "nan_with_xtc": (
            _row(_NAN_ROW, temperature=0.8, xtc_probability=1.0), EngineError, "NaN",
        ),
        "nan_with_typical": (_row(_NAN_ROW, temperature=0.8, typical_p=0.5), EngineError, "NaN"),
        "nan_with_sigma": (_row(_NAN_ROW, temperature=0.8, top_n_sigma=1.0), EngineError, "NaN"),
        "nan_with_penalty": (_row(_NAN_ROW, repeat_penalty=1.1), EngineError, "NaN"),
        "nan_with_grammar": (_row(_NAN_ROW, grammar='root ::= "a"'), EngineError, "NaN"),
        "minus_infinity": (_row(_INF_ROW), EngineError, "logits"),
        "minus_infinity_drawn": (_row(_INF_ROW, temperature=0.8), EngineError, "logits"),
        "row_too_short": (_row(np.zeros(9, np.float32)), ArgumentError, "9"),
        "row_text": (_row("abc"), ArgumentError, "abc"),
        "row_of_rows": (_row(np.zeros((2, N_VOCAB // 2), np.float32)), ArgumentError, "(2, 160)"),
        "before_decode": (lambda _: sampler().sample(opened(), 0), ArgumentError, "row 0"),
        "row_negative": (lambda _: sampler().sample(decoded(), -1), ArgumentError, "row -1"),
        "row_past_the_last": (lambda _: sampler().sample(decoded(), 9), ArgumentError, "row 9"),
        "row_float": (lambda _: sampler().sample(decoded(), 0.5), ArgumentError, "0.5"),  # type: ignore[arg-type]
        "context_none": (lambda _: sampler().sample(None, 0), ArgumentError, "NoneType"),  # type: ignore[arg-type]
        "accept_negative": (lambda _: sampler().accept(-1), ArgumentError, "id -1"),
        "accept_past_the_last": (lambda _: sampler().accept(N_VOCAB), ArgumentError, str(N_VOCAB)),
        "accept_2_40": (lambda _: sampler().accept(2**40), ArgumentError, str(2**40)),
        "accept_text": (lambda _: sampler().accept("a"), ArgumentError, "'a'"),  # type: ignore[arg-type]
        "other_vocabulary": (
            lambda _: Sampler(Model(tiny(n_vocab=400))).sample(decoded(), 0),
            ArgumentError, "another vocabulary",
        ),
    },
)  # fmt: skip


def _closed() -> Sampler:
    one = sampler()
    one.close()
    one.close()
    return one


CASES.table(
    "closed_sampler",
    {
        "sample": (lambda _: _closed().sample(decoded(), 0), ClosedError, "sampler is closed"),
        "accept": (lambda _: _closed().accept(1), ClosedError, "sampler is closed"),
        "reset": (lambda _: _closed().reset(), ClosedError, "sampler is closed"),
        "clone": (lambda _: _closed().clone(), ClosedError, "sampler is closed"),
    },
)


@CASES.add(None)
def sampler_outlives_its_model(folder: Path) -> None:
    context = decoded()
    one = Sampler(context.model, SamplerParams(grammar="root ::= [a-z]+"))
    context.model.close()
    one.accept(one.sample(context, 4))
    context.close()


@CASES.add(BusyError, "sampler")
def sampler_in_two_threads(folder: Path) -> None:
    one = sampler(temperature=1.0, grammar="root ::= [a-z ]+")
    row = np.zeros(N_VOCAB, np.float32)
    found: list[BusyError] = []

    def draw() -> None:
        try:
            while not found:
                one.sample_row(row)
        except BusyError as error:
            found.append(error)

    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raise found[0]


def _vocab(act: Callable[[Any], object]) -> Call:
    return lambda _: act(Model(tiny()).vocab)


CASES.table(
    "vocab",
    {
        "text_none": (_vocab(lambda v: v.tokenize(None)), ArgumentError, "NoneType"),
        "text_int": (_vocab(lambda v: v.tokenize(10**12)), ArgumentError, "int"),
        "text_list": (_vocab(lambda v: v.tokenize(["a"])), ArgumentError, "list"),
        "piece_negative": (_vocab(lambda v: v.piece(-1)), ArgumentError, "-1"),
        "piece_past_the_last": (_vocab(lambda v: v.piece(N_VOCAB)), ArgumentError, str(N_VOCAB)),
        "piece_2_40": (_vocab(lambda v: v.piece(2**40)), ArgumentError, str(2**40)),
        "piece_text": (_vocab(lambda v: v.piece("a")), ArgumentError, "'a'"),
        "detokenize_none": (_vocab(lambda v: v.detokenize([None])), ArgumentError, "None"),
        "eog_huge": (_vocab(lambda v: v.is_eog(2**40)), ArgumentError, str(2**40)),
        "ids_float": (_vocab(lambda v: v.check_ids([1.5])), ArgumentError, "1.5"),
        "ids_text": (_vocab(lambda v: v.check_ids(["a"])), ArgumentError, "'a'"),
        "special_unknown": (_vocab(lambda v: v.special("boss")), ArgumentError, "boss"),
    },
)


@CASES.add(None)
def tokenize_surrogates_and_nul(folder: Path) -> None:
    vocab = Model(tiny()).vocab
    assert vocab.detokenize(vocab.tokenize("a\0b \ud800 \U0010ffff"))
    assert vocab.tokenize("x" * 1_000_000)
