"""The calls of calls.txt, and the names that they use in addition to those of World."""

from __future__ import annotations

from pathlib import Path

# (group, code, mark). Mark "any": the values may differ. "better: ..." and "differs: ...": the
# answers differ on purpose, for this reason.
Call = tuple[str, str, str]

SETTING = """
import ctypes, itertools, json, os, pathlib, pickle, copy
import numpy as np

target = models["target"]
# Texts that the model is sure of: where two tokens are nearly as likely, two builds of one engine
# may round to different sides.
P = "1, 2, 3, 4, 5, 6, 7, 8,"
LONG = "one two three four five six seven eight nine ten " * 60
HI = [{"role": "user", "content": "What is the capital of France?"}]
TALK = [
    {"role": "system", "content": "You count."},
    {"role": "user", "content": "Count from 1 to 5."},
    {"role": "assistant", "content": "1, 2, 3, 4, 5"},
    {"role": "user", "content": "Count from 1 to 9."},
]
G = {"temperature": 0.0, "max_tokens": 12}
C = {"temperature": 0.0, "max_tokens": 7}
JSON = {"type": "json_object"}
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
}
WEATHER = {
    "name": "get_weather", "description": "The weather of a city.",
    "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
    },
}
TOOLS = [{"type": "function", "function": WEATHER}]
ASKED = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
CHOSEN = {"type": "function", "function": {"name": "get_weather"}}
YES = 'root ::= "yes" | "no"'

def text(answer):
    return answer["choices"][0]["text"]

def said(answer):
    return answer["choices"][0]["message"]["content"]

def parsed(answer):
    return json.loads(said(answer))

def joined(chunks):
    return "".join(one["choices"][0]["text"] for one in chunks)

def deltas(chunks):
    return "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks)

def stay(ids, scores):
    return scores

def never_the(ids, scores):
    scores[kept().tokenize(b"9", add_bos=False)[0]] = -1e9
    return scores

def ends_at_8(ids, logits):
    return len(ids) >= 8

def top(scores, n=3):
    return [int(one) for one in np.argsort(-np.asarray(scores, dtype=np.float32))[:n]]
"""


def read() -> list[Call]:
    """All calls, in the file's order."""
    group, calls = "", []
    for line in Path(__file__).with_name("calls.txt").read_text("utf-8").splitlines():
        if line.startswith("## "):
            group = line[3:].strip()
        elif line.strip():
            code, _, mark = line.partition("  ## ")
            calls.append((group, code.strip(), mark.strip()))
    return calls


CALLS = read()
