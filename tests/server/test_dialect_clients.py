"""The published clients of Anthropic and OpenAI against a server on a socket, in both dialects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx
import openai
import pytest

from pyllama_spec import Llama
from pyllama_spec.server import ServerSettings, create_app
from tests.faces.chat_world import Said, open_family
from tests.faces.families import HERMES
from tests.server.world import run

Json = dict[str, Any]
_KEY = "sesame"
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_TOOL: Json = {"name": "get_weather", "description": "The weather.", "input_schema": _SCHEMA}
_FUNCTION: Json = {
    "type": "function", "name": "get_weather", "description": "The weather.",
    "parameters": _SCHEMA, "strict": True,
}  # fmt: skip
_ASK: list[Any] = [{"role": "user", "content": "Weather in Paris?"}]


class Served:
    """A server on a socket with a tiny model whose answers the test dictates."""

    def __init__(self, url: str, llm: Llama, defaults: Json) -> None:
        self.url, self.llm, self._defaults = url, llm, defaults

    def say(self, text: str | None) -> None:
        """Sets the model's next answer; None for its own."""
        self._defaults.pop("logits_processor", None)
        if text is not None:
            ids = self.llm.model.vocab.tokenize(text, add_special=False, parse_special=True)
            self._defaults["logits_processor"] = Said(ids)


@contextmanager
def family_server(**settings: Any) -> Iterator[Served]:
    """A server of a tiny model with the chat template of a family that thinks."""
    defaults: Json = {"temperature": 0.0, "max_tokens": 400}
    with (
        open_family("Qwen-Qwen3-0.6B") as llm,
        run(create_app(llm, ServerSettings(defaults=defaults, **settings))) as client,
    ):
        yield Served(client.url, llm, defaults)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with family_server(api_keys=(_KEY,)) as one:
        yield one


def _claude(server: Served, key: str = _KEY) -> Any:
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=60)


def _gpt(server: Served, key: str = _KEY) -> Any:
    url = f"{server.url}/v1"
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60)


def _message(server: Served, said: str | None, *, stream: bool, **asked: Any) -> Any:
    asked = {"model": "m", "max_tokens": 300, "messages": _ASK, **asked}
    server.say(said)
    client = _claude(server)
    if not stream:
        return client.messages.create(**asked)
    with client.messages.stream(**asked) as events:
        return events.get_final_message()


def _response(server: Served, said: str | None, *, stream: bool, **asked: Any) -> Any:
    asked = {"model": "m", "input": _ASK, **asked}
    server.say(said)
    client = _gpt(server)
    if not stream:
        return client.responses.create(**asked)
    *_, last = client.responses.create(**asked, stream=True)
    return last.response


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_and_its_result(server: Served, stream: bool) -> None:
    message = _message(server, f"Wait.\n{HERMES}", stream=stream, tools=[_TOOL])
    assert message.stop_reason == "tool_use"
    text, call = message.content
    assert text.text.strip() == "Wait."
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    talk = [*_ASK, {"role": "assistant", "content": message.content},
            {"role": "user", "content": [result]}]  # fmt: skip
    message = _message(server, "It rains.", stream=stream, tools=[_TOOL], messages=talk)
    assert [block.text for block in message.content] == ["It rains."]

    response = _response(server, f"Wait.\n{HERMES}", stream=stream, tools=[_FUNCTION])
    text, call = response.output
    assert text.content[0].text.strip() == "Wait."
    assert (call.type, call.name) == ("function_call", "get_weather")
    assert json.loads(call.arguments) == {"city": "Paris"}
    items = [*_ASK, *response.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
    response = _response(server, "It rains.", stream=stream, tools=[_FUNCTION], input=items)
    assert response.output_text == "It rains."


def test_tokens_are_counted_as_they_are_read(server: Served) -> None:
    client = _claude(server)
    kinds: list[Json] = [{}, {"tools": [_TOOL]}, {"system": "Be brief."}]
    for more in kinds:
        n = client.messages.count_tokens(model="m", messages=_ASK, **more).input_tokens
        usage = _message(server, "x", stream=False, **more).usage
        assert n == usage.input_tokens + usage.cache_read_input_tokens
        tools = {"tools": [_FUNCTION]} if "tools" in more else {}
        counted = _gpt(server).responses.input_tokens.count(
            model="m", input=_ASK, instructions=more.get("system"), **tools
        )
        assert counted.input_tokens == n
    n_long = client.messages.count_tokens(
        model="m", messages=[{"role": "user", "content": "word " * 20_000}]
    ).input_tokens
    assert n_long > server.llm.n_ctx()


def test_the_same_under_the_names_of_other_servers(server: Served) -> None:
    client = httpx.Client(base_url=server.url, headers={"x-api-key": _KEY}, timeout=60)
    server.say("It rains.")
    chat = client.post("/chat/completions", json={"messages": _ASK}).json()
    assert chat["choices"][0]["message"]["content"] == "It rains."
    server.say("It rains.")
    answer = client.post("/responses", json={"input": "Weather?"}).json()
    assert answer["output"][0]["content"][0]["text"] == "It rains."
    assert client.get("/models").json() == client.get("/v1/models").json()

    usage = client.post("/v1/chat/completions", json={"messages": _ASK}).json()["usage"]
    counted = client.post("/chat/completions/input_tokens", json={"messages": _ASK}).json()
    assert counted["input_tokens"] == usage["prompt_tokens"]


def test_an_answer_has_what_clients_of_llama_server_look_for(server: Served) -> None:
    """The answer has the build and the timings."""
    server.say("It rains.")
    asked = {"model": "m", "messages": _ASK, "temperature": 0.0}
    whole = _gpt(server).chat.completions.create(**asked)
    server.say("It rains.")
    options = {"include_usage": True}
    first, *_, last = _gpt(server).chat.completions.create(
        **asked, stream=True, stream_options=options
    )
    assert whole.system_fingerprint == first.system_fingerprint == last.system_fingerprint
    assert whole.system_fingerprint.startswith("b")
    for answer in (whole, last):
        times, usage = answer.timings, answer.usage
        assert times["predicted_n"] == usage.completion_tokens
        assert times["prompt_n"] + times["cache_n"] == usage.prompt_tokens
        expected = 1e3 / times["predicted_ms"] * (times["predicted_n"] - 1)
        assert times["predicted_per_second"] == pytest.approx(expected)


def test_a_rendered_chat_is_what_the_model_reads() -> None:
    """Also if the engine writes the prompt, for a chat whose thoughts are separated."""
    defaults = {"reasoning_format": "auto", "reasoning_effort": "none"}
    with family_server(chat_defaults=defaults) as server:
        client = httpx.Client(base_url=server.url, timeout=60)
        tool = {"type": "function", "function": {"name": "look", "parameters": _SCHEMA}}
        kinds: list[Json] = [{}, {"tools": [tool]}, {"reasoning_format": "none"},
                             {"reasoning_effort": "high"}]  # fmt: skip
        for more in kinds:
            asked = {"messages": _ASK, **more}
            prompt = client.post("/apply-template", json=asked).json()["prompt"]
            n = len(server.llm.tokenize(prompt.encode(), add_bos=False, special=True))
            usage = client.post("/v1/chat/completions", json={**asked, "max_tokens": 1}).json()
            assert usage["usage"]["prompt_tokens"] == n, more
            assert prompt.endswith("</think>\n\n") == ("reasoning_effort" not in more), more
        asked = {"messages": _ASK, "add_generation_prompt": False}
        prompt = client.post("/apply-template", json=asked).json()["prompt"]
        assert prompt.endswith("<|im_end|>\n")
        whole = client.post("/v1/chat/completions", json={**asked, "max_tokens": 1})
        assert whole.status_code == 200, whole.text
