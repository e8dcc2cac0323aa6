"""Calls of third-party clients to a server; run by the Python that has the client.

    ENV/bin/python tools/comparison/server_client_calls.py CLIENT URL MODEL OUT.json

It imports nothing from this repository, because only the client is installed. Each call returns a
short result, or fails with the client's exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

QUESTION = "Name three fruits, in a few words."
WEATHER = "What is the weather in Paris? Use the tool."
PERSON = "Ada is 36 years old. Give her name and her age."
MOST = 60
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                       "required": ["city"]},
    },
}  # fmt: skip
SCHEMA = {
    "type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"], "additionalProperties": False,
}  # fmt: skip
FORM = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA, "strict": True}}
# Exceptions that clients raise for an answer that reached the token limit.
_SAY_LENGTH = ("LengthFinishReasonError", "IncompleteOutputException", "OutputTokenLimitExceeded")
Calls = dict[str, Callable[[], str]]


def told(text: object, least: int = 1) -> str:
    """Checks that a text has at least `least` characters; returns their number."""
    assert isinstance(text, str), f"no text: {text!r:.200}"
    assert len(text) >= least, f"too short: {text!r}"
    return f"{len(text)} characters"


def called(calls: list[tuple[str, Any]]) -> str:
    """Checks that the first tool call is a valid call of get_weather; returns it as text."""
    assert calls, "no call"
    name, arguments = calls[0]
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert name == "get_weather", name
    assert isinstance(given["city"], str), given
    return f"get_weather({json.dumps(given)})"


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def person_class() -> Any:
    """The requested form as a pydantic model; each client that uses it has pydantic installed."""
    from pydantic import BaseModel

    class Person(BaseModel):
        """A person."""

        name: str
        age: int

    return Person


def person(one: Any) -> str:
    """Checks an object of the requested form; returns it as JSON."""
    given = one if isinstance(one, dict) else one.model_dump()
    assert isinstance(given["name"], str), given
    assert isinstance(given["age"], int), given
    return json.dumps(given)


def vector(row: Any) -> str:
    """Checks that an embedding has length 1; returns the number of its components."""
    assert len(row) > 8, row
    assert abs(sum(float(x) * float(x) for x in row) - 1) < 1e-3
    return f"{len(row)} numbers"


def in_pieces(pieces: list[str]) -> str:
    """Checks that a stream had several pieces; returns their number and the text's length."""
    assert len(pieces) > 2, pieces
    return f"{len(pieces)} pieces, {told(''.join(pieces))}"


def unheld(call: Callable[[], str]) -> Callable[[], str]:
    """Wraps a call for JSON without a schema: a small model may run into the token limit."""

    def asked() -> str:
        try:
            return call()
        except Exception as error:
            if type(error).__name__ not in _SAY_LENGTH:
                raise
            return "the model came to no end, and the client says so"

    return asked


def langchain_openai(url: str, model: str) -> Calls:
    """LangChain over OpenAI's API."""
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings
    from pydantic import SecretStr

    form, weather = person_class(), tool(get_weather)

    key = SecretStr("none")
    llm: Any = ChatOpenAI(
        base_url=f"{url}/v1", api_key=key, model=model, temperature=0, max_completion_tokens=MOST
    )
    vectors = OpenAIEmbeddings(
        base_url=f"{url}/v1", api_key=key, model=model, check_embedding_ctx_length=False
    )

    def structured(how: str) -> Callable[[], str]:
        return lambda: person(llm.with_structured_output(form, method=how).invoke(PERSON))

    def streamed_call() -> str:
        chunks = list(llm.bind_tools([weather], tool_choice="get_weather").stream(WEATHER))
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        return called([(one["name"], one["args"]) for one in whole.tool_calls])

    return {
        "chat": lambda: told(llm.invoke(QUESTION).content),
        "stream": lambda: in_pieces([one.content for one in llm.stream(QUESTION) if one.content]),
        **_langchain_figures(llm),
        "tool, required": lambda: called([
            (one["name"], one["args"])
            for one in llm.bind_tools([weather], tool_choice="required")
            .invoke(WEATHER).tool_calls
        ]),
        "tool, streamed": streamed_call,
        "result of a tool": lambda: _langchain_round_trip(llm, weather, "required"),
        "structured, json_schema": structured("json_schema"),
        "structured, function_calling": structured("function_calling"),
        "structured, json_mode": unheld(lambda: json.dumps(
            llm.with_structured_output(None, method="json_mode").invoke(PERSON + " As JSON.")
        )),
        **_langchain_responses(llm.model_copy(update={"use_responses_api": True}), form),
        "embeddings": lambda: vector(vectors.embed_documents(["a cat", "a dog"])[1]),
    }  # fmt: skip


def _langchain_round_trip(llm: Any, tool: Any, choice: str) -> str:
    """A tool call, and the answer to its result."""
    from langchain_core.messages import HumanMessage, ToolMessage

    asked = HumanMessage(WEATHER)
    answer = llm.bind_tools([tool], tool_choice=choice).invoke([asked])
    one = answer.tool_calls[0]
    result = ToolMessage(tool.invoke(one["args"]), tool_call_id=one["id"])
    return told(llm.bind_tools([tool]).invoke([asked, answer, result]).text, 0)


def _langchain_figures(llm: Any) -> Calls:
    """Token counts, log-probabilities, and several requests at once."""

    def usage() -> str:
        chunks = list(llm.stream(QUESTION, stream_usage=True))
        counts = [one.usage_metadata for one in chunks if one.usage_metadata]
        return f"{counts[-1]['output_tokens']} tokens"

    async def many() -> str:
        answers = await llm.abatch([QUESTION] * 4)
        assert len({one.content for one in answers}) == 1
        return told(answers[0].content)

    def logprobs() -> str:
        told_of = llm.bind(logprobs=True).invoke(QUESTION).response_metadata
        return f"{len(told_of['logprobs']['content'])} tokens"

    return {
        "usage of a stream": usage,
        "batch, async": lambda: asyncio.run(many()),
        "log-probabilities": logprobs,
    }


def _langchain_responses(llm: Any, form: Any) -> Calls:
    """LangChain over OpenAI's Responses API."""
    return {
        "responses": lambda: told(llm.invoke(QUESTION).text),
        "responses, streamed": lambda: in_pieces(
            [one.text for one in llm.stream(QUESTION) if one.text]
        ),
        "responses, structured": lambda: person(
            llm.with_structured_output(form, method="json_schema").invoke(PERSON)
        ),
    }


def litellm(url: str, model: str) -> Calls:
    """LiteLLM over each of the three APIs."""
    import litellm as lite

    lite.suppress_debug_info = True

    def ask(kind: str = "openai", text: str = QUESTION, **more: Any) -> Any:
        base = f"{url}/v1" if kind == "openai" else url
        return lite.completion(
            model=f"{kind}/{model}", api_base=base, api_key="none", temperature=0,
            max_tokens=MOST, messages=[{"role": "user", "content": text}], **more,
        )  # fmt: skip

    def pieces(kind: str) -> list[str]:
        deltas = [one.choices[0].delta.content for one in ask(kind, stream=True)]
        return [one for one in deltas if one]

    def tools(kind: str) -> str:
        calls = ask(kind, WEATHER, tools=[TOOL], tool_choice="required").choices[0].message
        return called([(one.function.name, one.function.arguments) for one in calls.tool_calls])

    return {
        "chat": lambda: told(ask().choices[0].message.content),
        "stream": lambda: in_pieces(pieces("openai")),
        "tool, required": lambda: tools("openai"),
        "structured": lambda: person(
            json.loads(ask(text=PERSON, response_format=FORM).choices[0].message.content)
        ),
        "completion": lambda: told(
            lite.text_completion(
                model=f"text-completion-openai/{model}", prompt="One, two,", max_tokens=20,
                api_base=f"{url}/v1", api_key="none",
            ).choices[0].text
        ),
        "embeddings": lambda: vector(
            lite.embedding(
                model=f"openai/{model}", input=["a cat"], api_base=f"{url}/v1", api_key="none"
            ).data[0]["embedding"]
        ),
        "responses": lambda: told(
            lite.responses(
                model=f"openai/{model}", input=QUESTION, api_base=f"{url}/v1", api_key="none",
                max_output_tokens=MOST,
            ).output[0].content[0].text
        ),
        "messages": lambda: told(ask("anthropic").choices[0].message.content),
        "messages, streamed": lambda: in_pieces(pieces("anthropic")),
        "messages, tool": lambda: tools("anthropic"),
    }  # fmt: skip


def pydantic_ai(url: str, model: str) -> Calls:
    """Pydantic AI over each of the three APIs."""
    from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers import anthropic, openai

    form = person_class()

    openais = openai.OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    theirs = anthropic.AnthropicProvider(base_url=url, api_key="none")
    chat: Any = OpenAIChatModel(model, provider=openais)
    newer: Any = OpenAIResponsesModel(model, provider=openais)
    messages: Any = AnthropicModel(model, provider=theirs)
    bounds: Any = {"max_tokens": 100, "temperature": 0.0}

    def agent(of: Any, form: Any = str) -> Any:
        return Agent(of, output_type=form, model_settings=bounds, retries=2)

    async def pieces(of: Any) -> list[str]:
        async with agent(of).run_stream(QUESTION) as result:
            return [one async for one in result.stream_text(delta=True, debounce_by=None)]

    def tools() -> str:
        seen: list[str] = []
        mine = Agent(chat, model_settings=bounds)

        @mine.tool_plain
        def get_weather(city: str) -> str:
            """The weather in a city."""
            seen.append(city)
            return f"sunny in {city}"

        answer = mine.run_sync(WEATHER).output
        return f"called for {seen}, {told(answer, 0)}"

    return {
        "chat": lambda: told(agent(chat).run_sync(QUESTION).output),
        "stream": lambda: in_pieces(asyncio.run(pieces(chat))),
        "tool, its own choice": tools,
        "structured, by a tool": lambda: person(
            agent(chat, ToolOutput(form)).run_sync(PERSON).output
        ),
        "structured, native": lambda: person(
            agent(chat, NativeOutput(form)).run_sync(PERSON).output
        ),
        "structured, prompted": unheld(
            lambda: person(agent(chat, PromptedOutput(form)).run_sync(PERSON).output)
        ),
        "responses": lambda: told(agent(newer).run_sync(QUESTION).output),
        "responses, streamed": lambda: in_pieces(asyncio.run(pieces(newer))),
        "messages": lambda: told(agent(messages).run_sync(QUESTION).output),
        "messages, streamed": lambda: in_pieces(asyncio.run(pieces(messages))),
        "messages, structured": lambda: person(
            agent(messages, ToolOutput(form)).run_sync(PERSON).output
        ),
    }


CLIENTS: dict[str, Callable[[str, str], Calls]] = {
    "langchain-openai": langchain_openai,
    "litellm": litellm,
    "pydantic-ai": pydantic_ai,
}


def main() -> None:
    """Runs the client's calls, and writes their results to OUT.json."""
    client, url, model, out = sys.argv[1:5]
    results: dict[str, dict[str, Any]] = {}
    only = sys.argv[5:]
    for name, call in CLIENTS[client](url, model).items():
        if only and name not in only:
            continue
        try:
            with contextlib.redirect_stdout(sys.stderr):
                results[name] = {"came": call()}
        except Exception as error:  # noqa: BLE001 - any error is a result
            results[name] = {"failed": f"{type(error).__name__}: {error!s:.600}"}
        print(name, results[name], file=sys.stderr, flush=True)
    Path(out).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
