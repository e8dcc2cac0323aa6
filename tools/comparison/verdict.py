"""Compares both packages' answers to one call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.comparison.shapes import Shape

# Keys that our answers have in addition. `usage` is in the last chunk of a stream, as in OpenAI's
# API; `stop_reason` is vLLM's.
MORE = frozenset(("speculation", "timing", "usage", "stop_reason", "prompt_tokens_details"))
# Ours have a value, as in OpenAI's API; llama-cpp-python has None.
FILLED = frozenset(("bytes", "usage"))
# Each side generates its own values of these.
OWN = frozenset(("id", "created", "response_id"))
# Two builds of one engine round the last bits of a Q4_0 product differently.
NEAR = 0.25
# Lists of at least MANY floats are compared by direction: their cosine must be at least COSINE.
MANY, COSINE = 16, 0.99
# Base classes of all errors, which say nothing about a failure.
ANY_ERROR = frozenset(("Exception", "BaseException"))


@dataclass(frozen=True)
class Verdict:
    """The verdict on one call: one of beside.WORDS, and the reason as text."""

    word: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {' '.join(self.why.split())}" if self.why else self.word

    @property
    def is_good(self) -> bool:
        """Whether a program that makes this call can switch to this package."""
        return self.word in ("same", "better")


def judge(theirs: Mapping[str, Any], ours: Mapping[str, Any], mark: str) -> Verdict:
    """Compares the results of child.attempt() on both sides."""
    if "error" in theirs:
        if "error" not in ours:
            return Verdict("fails there", f"{theirs['error'][0]}: {theirs['says']}")
        common = (set(theirs["error"]) & set(ours["error"])) - ANY_ERROR
        named = f"{theirs['error'][0]} there, {ours['error'][0]} here"
        return Verdict("both fail", "" if common else named)
    word, _, reason = mark.partition(": ")
    if "error" in ours:
        if word == "better":
            return Verdict(word, reason)
        is_refusal = {"UnsupportedError", "ArgumentError"} & set(ours["error"])
        why = f"{ours['error'][0]}: {ours['says']}"
        return Verdict("refused" if is_refusal else "missing", why)
    gap = difference(theirs["value"], ours["value"], values=mark != "any")
    if not gap:
        return Verdict("same")
    return Verdict(word, reason) if word in ("better", "differs") else Verdict("worse", gap)


def difference(there: Shape, here: Shape, at: str = "", *, values: bool = True) -> str:
    """The first place where two shapes are not the same; "" if there is none."""
    if there["type"] != here["type"]:
        return f"{at or 'it'} is {there['type']} there, {here['type']} here"
    if "keys" in there:
        return _of_keys(there["keys"], here["keys"], at, values)
    if there["type"] == "iterator":
        return _of_chunks(there["items"], here["items"], at, values)
    if "items" in there:
        return _of_items(there, here, at, values)
    if values and "value" in there and not _near(there["value"], here["value"]):
        return f"{at or 'it'} is {there['value']!r} there, {here['value']!r} here"
    return ""


def _of_keys(there: dict[str, Shape], here: dict[str, Shape], at: str, values: bool) -> str:
    missing, more = set(there) - set(here), set(here) - set(there) - MORE
    if values and (missing or more):
        return f"{at or 'it'}: without {sorted(missing)}, with {sorted(more)}"
    for key, one in there.items():
        if key == "model" and _is_file_name(one, here.get(key)):
            continue
        if key in FILLED and one["type"] == "NoneType":
            continue
        gap = key in here and difference(
            one, here[key], f"{at}.{key}".strip("."), values=values and key not in OWN
        )
        if gap:
            return gap
    return ""


def _is_file_name(there: Shape, here: Shape | None) -> bool:
    """Whether their model name is a path and ours is that path's file name, as intended."""
    path, name = there.get("value"), None if here is None else here.get("value")
    return isinstance(path, str) and isinstance(name, str) and Path(path).name == name


def _of_items(there: Shape, here: Shape, at: str, values: bool) -> str:
    if values and there["length"] != here["length"]:
        return f"{at or 'it'} has length {there['length']} there, {here['length']} here"
    rows = [[one.get("value") for one in side["items"]] for side in (there, here)]
    if len(rows[0]) >= MANY and all(isinstance(x, float) for row in rows for x in row):
        near = _cosine(*rows)
        return f"{at or 'it'} points elsewhere: {near:.3f}" if values and near < COSINE else ""
    for i, (one, other) in enumerate(zip(there["items"], here["items"], strict=False)):
        if gap := difference(one, other, f"{at}[{i}]", values=values):
            return gap
    return ""


def _of_chunks(there: list[Shape], here: list[Shape], at: str, values: bool) -> str:
    """Compares the first chunk, the last one, the shape of those between and the joined text.

    The chunk boundaries may differ.
    """
    if not there or not here:
        return "" if len(there) == len(here) else f"{at}: {len(there)} there, {len(here)} here"
    middle = there[1:-1] or there[-1:]
    for name, one, other in (
        ("first chunk", there[0], here[0]), ("last chunk", there[-1], here[-1]),
        *(("chunk", middle[0], chunk) for chunk in here[1:-1]),
    ):  # fmt: skip
        exact = values and name == "last chunk"
        if gap := difference(one, other, f"{at} {name}", values=exact):
            return gap
    texts = [text_of(one) for one in (there, here)]
    if values and texts[0] != texts[1]:
        return f"{at}: {texts[0]!r} there, {texts[1]!r} here"
    return ""


def text_of(chunks: list[Shape]) -> str:
    """The joined content of a stream's chunks."""
    pieces = []
    for chunk in chunks:
        for choice in chunk.get("keys", {}).get("choices", {}).get("items", []):
            keys = {**choice["keys"], **choice["keys"].get("delta", {}).get("keys", {})}
            pieces += [keys[key].get("value") or "" for key in ("text", "content") if key in keys]
    return "".join(map(str, pieces))


def _cosine(one: list[float], other: list[float]) -> float:
    norms = math.hypot(*one) * math.hypot(*other)
    return sum(x * y for x, y in zip(one, other, strict=False)) / norms if norms else 1.0


def _near(there: Any, here: Any) -> bool:
    if isinstance(there, float) and isinstance(here, float):
        return math.isclose(there, here, rel_tol=0.02, abs_tol=NEAR)
    return bool(there == here)
