"""Grammars of tool calls: corrects the engine's grammar, and joins several as alternatives."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

# The engine's own grammar of several calls, of templates in the way of Hermes and Qwen: it repeats
# what may be empty, which is left recursion, and which the engine's own sampler refuses.
_NULLABLE_LOOP = re.compile(r"\((\S+)\? space\)\+")
# The text that the engine allows before a forced call. A small model would generate it to
# the end of the answer; OpenAI's answers have none, and llama-cpp-python's neither.
_TEXT_BEFORE_CALL = re.compile(
    r"^(root ::= .*?)\buntil-\d+\?? (?:space )?(?=tool-call)", re.MULTILINE
)
# White space inside of a call's JSON, which a small model would repeat without end: a blank at
# most, as in constraints.py. What lies between the tags of a call stays the template's.
_JSON_SPACE = re.compile(r'(?<="[{\[:,]" )space\b|\bspace(?= "[}\]:,]")')
# The engine's grammars of calls in tags of their own take several, also where one was asked for.
_REPEATED_CALLS = re.compile(
    r"^((?:tool-calls|tools) ::= )\((\S+?)(?: space)?\)[+*]$", re.MULTILINE
)
# A text by a schema, which the engine lets stand in a fence, that its parsers of calls do not know.
_FENCED = re.compile(r'\("```json" space (\S+) space "```" \| space \1 space\)')
# A text in quotes, a class of characters, a comment, or the name of a rule.
_PART = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|#[^\n]*|([a-zA-Z][a-zA-Z0-9_-]*)')


def calls_grammar(rules: str, *, single: bool, at_once: bool) -> str:
    """The engine's rules of calls, in the form that a sampler takes.

    `single`: the answer has at most one call. `at_once`: nothing comes before the call, and its
    JSON is on one line.
    """
    rules = _NULLABLE_LOOP.sub(r"(\1 space)*", rules)
    rules = _REPEATED_CALLS.sub(r"\1\2", rules) if single else rules
    if not at_once:
        return rules
    rules = _JSON_SPACE.sub("blank", _TEXT_BEFORE_CALL.sub(r"\1", rules))
    return f'{rules.rstrip()}\nblank ::= " "?\n'


def renamed(rules: str, prefix: str) -> str:
    """The rules with a prefix before each name."""

    def part(match: re.Match[str]) -> str:
        return f"{prefix}{match[1]}" if match[1] else match[0]

    return _PART.sub(part, rules)


def either(alternatives: Sequence[str]) -> str:
    """Rules for a text of any of several grammars, each with its rule `root`."""
    names = [f"either-{i}-" for i in range(len(alternatives))]
    root = " | ".join(f"{name}root" for name in names)
    parts = [renamed(rules, name) for name, rules in zip(names, alternatives, strict=True)]
    return "\n".join([f"root ::= {root}", *parts])


def unfenced(rules: str) -> str:
    """The engine's rules of a text by a schema, without the code fence around it."""
    return _FENCED.sub(r"\1", rules)


def after(text: str, rules: str) -> str:
    """The rules for a text that continues a given beginning."""
    return f"root ::= {json.dumps(text, ensure_ascii=False)} after-root\n{renamed(rules, 'after-')}"


def named_calls(arguments: Mapping[str, str]) -> str:
    """Rules for {"name": ..., "arguments": ...}."""
    names = {name: f"call-{i}-" for i, name in enumerate(arguments)}
    lines = [f"root ::= {' | '.join(f'{one}call' for one in names.values())}", 'blank ::= " "?']
    for name, prefix in names.items():
        # The name as JSON has it, and that as a text of the grammar.
        text = json.dumps('"name": ' + json.dumps(name, ensure_ascii=False), ensure_ascii=False)
        lines.append(
            f'{prefix}call ::= "{{" blank {text} blank "," blank "\\"arguments\\":" blank '
            f'{prefix}root blank "}}"'
        )
        lines.append(renamed(arguments[name], prefix))
    return "\n".join(lines)
