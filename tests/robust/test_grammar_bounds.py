"""Endless grammars are refused, and cancel() and Ctrl-C work."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from pyllama_spec.constraints import schema_grammar
from pyllama_spec.engine import Sampler, SamplerParams
from pyllama_spec.errors import ArgumentError, CancelledError, UnsupportedError
from tests.robust.tools import decoded

SLOW = "root ::= " + "[a-z]? " * 5000
# Twice the bound of csrc/checks/grammar_check.h, for a busy machine; it counts its own time.
_MAX_OWN_S = 4.0


def _generate(grammar: str, n: int = 3) -> None:
    context = decoded(n_threads=1)
    sampler = Sampler(context.model, SamplerParams(temperature=0, grammar=grammar))
    for _ in range(n):
        sampler.accept(sampler.sample(context, 0))


def test_a_slow_grammar_ends() -> None:
    before = time.thread_time()
    with pytest.raises(UnsupportedError, match="500"):
        _generate(SLOW)
    assert time.thread_time() - before < _MAX_OWN_S


_N_RULES = 300
AMBIGUOUS = "\n".join([
    "root ::= r0",
    *(f"r{i} ::= [a-z] | r{i + 1} | [a-z] r{i + 1}" for i in range(_N_RULES)),
    f'r{_N_RULES} ::= [a-z] | "x"',
])  # fmt: skip


@pytest.mark.slow
def test_all_tokens_of_a_grammar_have_one_bound() -> None:
    """The bound of two seconds covers all tokens of a grammar together."""
    before = time.thread_time()
    with pytest.raises(UnsupportedError):
        _generate(AMBIGUOUS, n=200)
    assert time.thread_time() - before < 1.5 * _MAX_OWN_S


def test_a_grammar_has_its_bound() -> None:
    """An enum of 2,000 values is accepted, and one of 100,000 is refused."""
    for n, is_taken in ((2_000, True), (100_000, False)):
        schema = {"enum": [f"value {i}" for i in range(n)]}
        grammar = schema_grammar(schema)
        if is_taken:
            _generate(grammar, n=2)
            continue
        with pytest.raises(UnsupportedError):
            _generate(grammar)


def test_cancel_is_answered() -> None:
    context = decoded(n_threads=1)
    sampler = Sampler(context.model, SamplerParams(temperature=0, grammar=SLOW))
    threading.Timer(0.5, context.cancel).start()
    with pytest.raises(CancelledError):
        sampler.sample(context, 0)


def test_ctrl_c_is_answered() -> None:
    context = decoded(n_threads=1)
    sampler = Sampler(context.model, SamplerParams(temperature=0, grammar=SLOW))
    # A shell's background jobs ignore it, and Python leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.5, lambda: signal.raise_signal(signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            sampler.sample(context, 0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert Sampler(context.model, SamplerParams(temperature=0)).sample(context, 0) >= 0


def test_long_triggers_are_bounded() -> None:
    context = decoded(n_threads=1)
    with pytest.raises(ArgumentError):
        Sampler(
            context.model, SamplerParams(grammar='root ::= "a"', grammar_triggers=("(" * 5000,))
        )
    lazy = Sampler(
        context.model, SamplerParams(grammar='root ::= "a"', grammar_triggers=("[\\s\\S]*(zq)",))
    )
    # It matches by calls for each character of what was generated: 60,000 filled the stack.
    for _ in range(60):
        for token in (98, 99):
            lazy.accept(token)


def _sampler(grammar: str) -> Sampler:
    return Sampler(decoded(n_threads=1).model, SamplerParams(temperature=0, grammar=grammar))


@pytest.mark.parametrize("gap", ["", " ", "\t", "\n", "# a comment\n", " # one\n\t# two\r\n"])
def test_a_repetition_that_ends_before_it_begins(gap: str) -> None:
    """The engine would count down from 2**64, and use gigabytes."""
    for text in (f"{{{gap}6,5}}", f"{{6{gap},5}}", f"{{6,{gap}5}}", f"{{{gap}6{gap},{gap}5{gap}}}"):
        with pytest.raises(ArgumentError):
            _sampler(f'root ::= ("a"{text})')
        _sampler(f'root ::= ("a"{text.replace("6", "4")})').close()


def test_a_grammar_takes_a_bounded_memory() -> None:
    many = " ".join(['"b"{0,2000}'] * 5000)  # ten million rules
    begun = time.thread_time()
    with pytest.raises(UnsupportedError, match="512 MiB"):
        _sampler(f"root ::= {many}")
    assert time.thread_time() - begun < 2 * _MAX_OWN_S
