"""Chats with pictures over HTTP, in each dialect."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import anthropic
import openai
import pytest

from pyllama_spec.engine.media import Part, Prepared, Projector
from pyllama_spec.errors import CancelledError
from tests.faces.test_pictures import opened
from tests.media_tools import file_of, picture, plain_text, prompt_of, seeing, url_of
from tests.models import model_path
from tests.server.test_endpoints import figures
from tests.server.world import PATIENCE_S, Client, is_idle, served, until

N = 12
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
PIXELS = picture(40, 50)
FILE = file_of(PIXELS)
PARTS = prompt_of(
    "gemma3", "<|im_start|>user\nwhat is ", PIXELS, "?<|im_end|>\n<|im_start|>assistant\n"
)
N_PROMPT = sum(len(p) if isinstance(p, tuple) else len(p.ids) for p in PARTS)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(opened("gemma3", n_parallel=2)) as one:
        yield one


def chat(file: bytes = FILE) -> dict[str, Any]:
    content = [{"type": "text", "text": "what is "}, url_of(file), {"type": "text", "text": "?"}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": N, "temperature": 0}


def message(file: bytes = FILE) -> dict[str, Any]:
    data = base64.b64encode(file).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    blocks = [
        {"type": "text", "text": "what is "}, {"type": "image", "source": source},
        {"type": "text", "text": "?"},
    ]  # fmt: skip
    shown = [{"role": "user", "content": blocks}]
    return {"model": "m", "messages": shown, "max_tokens": N, "temperature": 0}


def response(file: bytes = FILE) -> dict[str, Any]:
    image = {"type": "input_image", "image_url": url_of(file)["image_url"]["url"]}
    texts = [{"type": "input_text", "text": text} for text in ("what is ", "?")]
    shown = [{"role": "user", "content": [texts[0], image, texts[1]]}]
    return {"input": shown, "max_output_tokens": N, "temperature": 0}


def test_the_published_clients(client: Client) -> None:
    plain = plain_text("gemma3", PARTS, N)
    text = seeing("gemma3").vocab.detokenize(plain).decode(errors="replace")
    gpt: Any = openai.OpenAI(base_url=f"{client.url}/v1", api_key="-", max_retries=0)
    claude: Any = anthropic.Anthropic(base_url=client.url, api_key="-", max_retries=0)
    with gpt.chat.completions.create(model="m", stream=True, **chat()) as stream:
        assert "".join(one.choices[0].delta.content or "" for one in stream if one.choices) == text
    answer = gpt.responses.create(model="m", **response())
    assert answer.output_text == text and answer.usage.input_tokens == N_PROMPT
    asked = message()
    greedy = {"temperature": asked.pop("temperature")}
    with claude.messages.stream(**asked, extra_body=greedy) as stream:
        assert stream.get_final_text() == text
        usage = stream.get_final_message().usage
    assert usage.input_tokens + usage.cache_read_input_tokens == N_PROMPT
    assert usage.cache_read_input_tokens > 16  # the picture is read once
    del asked["max_tokens"]
    assert claude.messages.count_tokens(**asked).input_tokens == N_PROMPT
    with pytest.raises(openai.BadRequestError):
        gpt.chat.completions.create(model="m", **chat(b"no picture"))
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(model="m", max_tokens=2, messages=message(b"no")["messages"])


def test_counts(client: Client) -> None:
    for path, body in (
        (f"{CHAT}/input_tokens", chat()), (f"{MESSAGES}/count_tokens", message()),
        (f"{RESPONSES}/input_tokens", response()),
    ):  # fmt: skip
        assert client.right(path, body)["input_tokens"] == N_PROMPT


def test_a_count_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, outcomes, computed = threading.Event(), list[str](), Projector.computed

    def watched(eyes: Projector, prepared: Prepared) -> tuple[Part, ...]:
        begun.set()
        try:
            return computed(eyes, prepared)
        except CancelledError:
            outcomes.append("cancelled")
            raise

    monkeypatch.setattr(Projector, "computed", watched)
    path = model_path("projector", family="qwen3vl", n_layer=8)
    with served(opened("qwen3vl", mmproj_path=path, n_ctx=4096)) as client:
        connection = HTTPConnection(client.url.removeprefix("http://"))
        connection.request(
            "POST", f"{CHAT}/input_tokens", json.dumps(chat(file_of(picture(280, 280))))
        )
        assert begun.wait(PATIENCE_S)
        connection.close()
        until(lambda: bool(outcomes))


def test_what_the_server_says_of_itself(client: Client) -> None:
    _, props = client.get("/props")
    assert props["modalities"]["vision"] is True
    _, models = client.get("/v1/models")
    assert models["data"][0]["meta"]["modalities"]["vision"] is True
    assert models["models"][0]["capabilities"] == ["completion", "multimodal"]
    for more in ({}, {"reasoning_format": "auto"}):
        prompt = client.right("/apply-template", {**chat(), **more})["prompt"]
        assert f"what is {props['media_marker']}?" in prompt


@pytest.mark.parametrize("path", [CHAT, f"{CHAT}/input_tokens", "/apply-template"])
def test_a_kind_of_part_that_is_no_text_is_refused(client: Client, path: str) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": ["image_url"]}]}]}
    assert client.post(path, body)[0] == 400


def test_refused_pictures(client: Client) -> None:
    for path, make in ((CHAT, chat), (MESSAGES, message), (RESPONSES, response)):
        for stream in (False, True):
            status, answer = client.post(path, {**make(b"no picture"), "stream": stream})
            assert status == 400
            assert answer["error"]["type"] == "invalid_request_error"
            assert ("type" in answer) == (path == MESSAGES)


def test_a_model_that_does_not_see() -> None:
    with served(opened("gemma3", mmproj_path=None)) as blind:
        assert blind.get("/props")[1]["modalities"]["vision"] is False
        status, answer = blind.post(CHAT, chat())
        assert status == 400 and "mmproj" in answer["error"]["message"]


def test_a_client_that_leaves_while_its_picture_is_read() -> None:
    with served(opened("gemma3")) as one:
        eyes = one.service.llm._eyes
        assert eyes is not None
        with eyes._reading:  # it waits for its turn
            left = one.connect()
            left.request("POST", CHAT, json.dumps(chat()).encode())
            until(lambda: bool(eyes._asking))
            left.close()
            until(lambda: not eyes._asking)
        until(lambda: is_idle(one))
        assert figures(one)['vllm:request_success_total{finished_reason="abort"}'] == 1
