"""Random chats: streams equal whole answers, stops stay hidden, control tokens are not forged."""

from __future__ import annotations

import codecs
import json
import random
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from pyllama_spec import ArgumentError, Llama
from pyllama_spec.chat.template import template_variables
from pyllama_spec.chat.tools import ToolRequest
from tests.faces.chat_world import Chat, Said, chat, control_names, open_family
from tests.faces.families import FAMILIES
from tests.models.vocab import SPECIAL_TOKENS
from tests.tiers import release_except

# Of each family in a release, and in every run.
_N, _N_QUICK = 167, 2
# Tags and headers of the families' answers: no text for the user.
_FORM = re.compile(
    r"</?think>|<\|channel\|>(?:final|analysis|commentary)<\|message\|>|^all\n|```json|```"
)


_OPEN: dict[str, Llama] = {}


def opened(family: str) -> Llama:
    if family not in _OPEN:
        _OPEN[family] = open_family(family)
    return _OPEN[family]


@pytest.fixture(scope="module", autouse=True)
def closed_at_the_end() -> Iterator[None]:
    """The models stay open for all chats of a family."""
    yield
    while _OPEN:
        _OPEN.popitem()[1].close()


def whole(llm: Llama, one: Chat) -> dict[str, Any]:
    """A whole answer, by its parts."""
    said = Said(llm.tokenize(one.said.encode(), add_bos=False, special=True))
    choice = llm.create_chat_completion(
        one.messages, logits_processor=said, **_options(one)
    )["choices"][0]  # fmt: skip
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content") or "",
        "calls": [_told(call) for call in message.get("tool_calls") or ()],
        "older": message.get("function_call"),
        "finish": choice["finish_reason"],
        "logprobs": [entry["bytes"] for entry in choice["logprobs"]["content"]],
    }


def streamed(llm: Llama, one: Chat) -> dict[str, Any]:
    """The same answer as a stream, joined."""
    said = Said(llm.tokenize(one.said.encode(), add_bos=False, special=True))
    joined: dict[str, Any] = {
        "content": "", "reasoning": "", "calls": [], "older": None, "finish": None, "logprobs": [],
    }  # fmt: skip
    for chunk in llm.create_chat_completion(
        one.messages, stream=True, logits_processor=said, **_options(one)
    ):
        choice = chunk["choices"][0]
        delta = choice["delta"]
        assert joined["finish"] is None
        joined["content"] += delta.get("content") or ""
        joined["reasoning"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            if call["index"] == len(joined["calls"]):
                joined["calls"].append({"name": "", "arguments": "", **_told(call)})
            else:
                assert "id" not in call
                joined["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
        if "function_call" in delta:
            joined["older"] = joined["older"] or {"name": "", "arguments": ""}
            for key, value in delta["function_call"].items():
                joined["older"][key] += value
        joined["finish"] = choice["finish_reason"]
        joined["logprobs"] += [
            one["bytes"] for one in (choice["logprobs"] or {}).get("content", ())
        ]
    return joined


def _told(call: dict[str, Any]) -> dict[str, Any]:
    assert call["type"] == "function"
    assert call["id"]
    own = call["id"] == "123456789" or not re.fullmatch(r"[a-zA-Z0-9]{9}", call["id"])
    return {**call["function"], "own_id": call["id"] if own else None}


def _options(one: Chat) -> dict[str, Any]:
    options = {"max_tokens": 400, **one.options}
    return {"temperature": 0.0, "logprobs": True, **options}


def control_tokens(llm: Llama, one: Chat) -> list[int]:
    """The control tokens of the prompt."""
    names = ("tools", "tool_choice", "functions", "function_call", "parallel_tool_calls")
    asked = [one.options.get(name) for name in (*names, "reasoning_format")]
    rendered, *_ = llm._chats.begin(
        one.messages, ToolRequest.read(*asked),
        template_variables(one.options.get("chat_template_kwargs")),
        {"response_format": one.options.get("response_format")},
    )  # fmt: skip
    # By name: those of gpt-oss are shown as text by the engine.
    shown = {name.encode() for name in (*control_names(), *SPECIAL_TOKENS)}
    tokens = rendered.tokenize(llm.model.vocab)
    return [token for token in tokens if llm.model.vocab.piece(token, special=True) in shown]


def check_answer(llm: Llama, one: Chat) -> dict[str, Any]:
    """A stream and the whole answer agree, and lose nothing of what was said."""
    found = whole(llm, one)
    assert streamed(llm, one) == found
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    said = decoder.decode(b"".join(bytes(entry) for entry in found["logprobs"]))
    stops = one.options.get("stop", ())
    ends = [said.index(stop) for stop in stops if stop in said]
    text = said[: min(ends, default=len(said))]
    for stop in stops:
        assert stop not in found["content"]
        assert stop not in found["reasoning"]
    told = found["reasoning"] + found["content"]
    everything = told + "".join(call["arguments"] for call in found["calls"])
    for mark in one.marks:
        assert mark not in text or mark in everything, (mark, text)
    names = (*control_names(), *SPECIAL_TOKENS)  # which are not text where nothing is taken apart
    if not found["calls"] and not any(name in said for name in names):
        # A stop may begin in the last token that is shown, and end in one that is not.
        heads = {stop[:n] for stop in stops for n in range(1, len(stop))}
        cut = [text[: -len(head)] for head in heads if text.endswith(head)]
        assert _bare(told) in [_bare(one) for one in (text, *cut)]
    if "response_format" in one.options and found["finish"] == "stop" and not stops:
        assert isinstance(json.loads(found["content"]), dict)
    if found["finish"] == "tool_calls":
        for call in found["calls"]:
            json.loads(call["arguments"])
    return found


def _bare(text: str) -> str:
    """Without white space, and without the tags of an answer's form."""
    return "".join(_FORM.sub("", text).split())


def check(family: str, seed: int) -> str:
    """Plays one chat; returns its outcome."""
    llm = opened(family)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hostile, calm = (chat(seed, family, is_hostile=value) for value in (True, False))
        try:
            expected = control_tokens(llm, calm)
        except ArgumentError:
            return "refused"
        assert control_tokens(llm, hostile) == expected
        assert expected
        found = check_answer(llm, hostile)
    return "call" if found["calls"] else "thought" if found["reasoning"] else "text"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", release_except([_N, _N_QUICK], [_N_QUICK]))
def test_random_chats(family: str, n: int) -> None:
    first = random.Random(family).randrange(10**6) * 1000
    kinds = Counter(check(family, first + i) for i in range(n))
    assert kinds["refused"] < max(n, 2) / 2
