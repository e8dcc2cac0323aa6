"""Parts of schemas: patterns and numbers against Python's own, fields of programs, tools."""

from __future__ import annotations

import random
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pyllama_spec.engine import Sampler, SamplerParams
from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.llama_cpp import LlamaGrammar
from pyllama_spec.schema.charsets import holds
from pyllama_spec.schema.languages import Table, counted, table
from pyllama_spec.schema.numbers import Compare, Multiple, Whole, fits, number_table
from pyllama_spec.schema.patterns import PatternError, pattern_language
from tests.oracles import tiny

# Each means the same in Python, but for the end of a text.
PATTERNS = [
    "^[^,]+$", '^"[a-z]+"$', "a|^b|c$", r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",
    r"^(?=.*[A-Z])(?=.*\d).{8,}$", r"^\S(|(.|\n)*\S)$", "^(a?){3}b$", "(ab){2,3}", "x*", "^$",
    r"^[\w.+-]+@[\w-]+\.[\w.-]+$", "^(a|b)*(?!b)c?$", r"[^\d\s]", "(^a|b$)+", r"^(foo|bar)?(?=x)x",
    r'^[\\"]*$', r"^[]$", r"^[\]\-a]+$", "^a{2}b{1,}?c{0,2}$", r"^(?:a|(?P<n>b))+$", r"[\x00-\x1f]",
]  # fmt: skip
WORDS = [
    "foo", "a foo b", "fooo", "+1.5", ".", "Abcdefg1", "abab", "", "bar", "foox", "b", "ca",
    "a@b.c", '"anna"', "\\", '"', "\n", "a,b", "aabcc", "a-]", "\x01", "ababab",
]  # fmt: skip


def _accepts(states: Table, text: str) -> bool:
    state = 0
    for char in text:
        for ranges, to in states.steps[state] if states.ends else []:
            if holds(ranges, ord(char)):
                state = to
                break
        else:
            return False
    return bool(states.ends) and states.ends[state]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_finds_what_python_finds(pattern: str) -> None:
    rng = random.Random(pattern)
    states = table(pattern_language(pattern))
    if pattern == "^[]$":  # nothing; in Python an error
        assert states.is_empty
        return
    own = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
    for _ in range(300):
        text = rng.choice(WORDS) + "".join(rng.choices('ab,"x1 .\nA\\-', k=rng.randrange(4)))
        found = own.search(text) is not None
        assert _accepts(states, text) == found, text
        if found and len(text) > 1:
            assert _accepts(counted(states, 1, len(text)), text)
            assert not _accepts(counted(states, len(text) + 1, None), text)
            assert not _accepts(counted(states, 0, len(text) - 1), text)


@pytest.mark.parametrize("pattern", ["(", ")", "[a", "a**", "*a", "a{2,1}", r"\1", r"\k<a>", "^*",
                                     "(?<!a)b", "a\\", r"\x1", r"\ud800", r"\p{No such}", "[b-a]",
                                     "(?>a)", "a{,3}", r"\Z", "(?i)a", r"\bfoo\b"])  # fmt: skip
def test_what_is_no_pattern_or_cannot_be_one(pattern: str) -> None:
    with pytest.raises(PatternError):
        pattern_language(pattern)


BELOW, UP_TO, FROM, ABOVE = ({-1}, {-1, 0}, {0, 1}, {1})


def _beside(value: str, allowed: set[int]) -> Compare:
    return Compare(Fraction(value), frozenset(allowed))


@pytest.mark.parametrize(
    "rules",
    [
        [_beside("0", FROM), _beside("120", UP_TO), Whole()],
        [_beside("-5", ABOVE), _beside("3.25", BELOW)],
        [Multiple(Fraction("0.01")), _beside("100", UP_TO), _beside("-3", FROM)],
        [Multiple(Fraction(7)), Whole()], [Multiple(Fraction("1.5")), _beside("-10", FROM)],
        [_beside("5", {-1, 1}), _beside("5.5", {-1, 1})],
        [Multiple(Fraction(250)), Whole(), _beside("1000", UP_TO)],
    ],
)  # fmt: skip
def test_a_number_is_where_its_fraction_is(rules: list[Any]) -> None:
    rng = random.Random(len(rules))
    states = number_table(rules)
    needs_whole = Whole() in rules
    n_decimals = 2 if any(isinstance(one, Multiple) for one in rules) else 4
    for _ in range(400):
        n = rng.choice([0, 0, 1, 2, 3])
        text = f"{rng.uniform(-130, 130):.{n}f}" if rng.random() < 0.7 else rng.choice(
            ["0", "5", "5.5", "120", "121", "-5", "3.25", "3.24", "100", "100.01", "750", "-0"]
        )  # fmt: skip
        digits = len(text.partition(".")[2])
        may_be = not (needs_whole and digits) and digits <= n_decimals and text[:2] != "-0"
        if may_be and not (digits and any(isinstance(one, Multiple) for one in rules)):
            assert _accepts(states, text) == fits(Fraction(text), rules), text
        elif _accepts(states, text):
            assert fits(Fraction(text), rules), text


def _likes(chain: Sampler, *tokens: int) -> int | None:
    row = np.full(320, -np.inf, dtype=np.float32)
    row[list(tokens)] = [9.0 - i for i in range(len(tokens))]
    try:
        return chain.sample_row(row)
    except PyllamaSpecError:
        return None


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_control_tokens_are_no_characters(temperature: float) -> None:
    """Strings exclude control tokens, which would fill them invisibly."""
    start = 257
    vocab = tiny("llama").vocab
    assert vocab.is_control(start)
    assert not vocab.is_eog(start)
    name = vocab.piece(start, special=True).decode()
    params: dict[str, Any] = {"temperature": temperature, "top_p": 1.0, "min_p": 0.0, "seed": 1}
    for rules in (r'root ::= [^"]{20}', "root ::= .*", r'root ::= "a" | [a-z<|_>]+'):
        chain = Sampler(tiny("llama"), SamplerParams(grammar=rules, **params))
        assert _likes(chain, start) is None
        assert _likes(chain, start, ord("b")) == ord("b")
        assert _likes(chain.clone(), start) is None
    # One that a grammar names is meant, by its name or as a token; a schema means its text.
    for rules in (f'root ::= "{name}" "a"', f"root ::= {name}", f"root ::= <[{start}]>"):
        chain = Sampler(tiny("llama"), SamplerParams(grammar=rules, **params))
        assert _likes(chain, start) == start
    rules = str(LlamaGrammar.from_json_schema({"enum": [name]})._grammar)
    chain = Sampler(tiny("llama"), SamplerParams(grammar=rules, **params))
    chain.accept(ord('"'))
    assert _likes(chain, start, ord("<")) == ord("<")
