"""Random bodies and requests: each gets an answer, and a wrong one a 4xx with the fault."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from pyllama_spec.cli.serve import FLAGS
from tests.faces.tools import open_tiny
from tests.server.world import Client, is_idle, raw_exchange, served, until

N_QUICK, N_RELEASE = 200, 20_000
_TEXTS = ["", "a", "the cat", "\x00", "é😀", "\ud800", "x" * 300, "{", "root ::= [a-", "<|im_end|>"]
_NUMBERS = [0, 1, -1, 2, 0.5, -0.0, 1e308, -1e308, 2**31, -(2**63), 2**70, 1e-320]
_WORDS = ["role", "content", "type", "schema", "text", "function", "name", "draft", "arguments"]
_NEEDED = (
    "messages",
    "prompt",
    "input",
    "query",
    "content",
    "tokens",
    "input_prefix",
    "input_suffix",
)
# Each with a value that may stand there.
_FIELDS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0.5,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "auto", "response_format": {"type": "json_object"}, "stream": True,
        "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2, "n": 2,
        "stop": ["x"], "seed": 3, "logit_bias": {"97": 2}, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
        "speculation": {"draft": False, "show_tokens": True}, "reasoning_effort": "low",
        "chat_template_kwargs": {"a": 1}, "min_tokens": 1, "timeout": 20, "model": "m",
        "prediction": {"type": "content", "content": "hi there"}, "continue_final_message": True,
        "thinking_token_budget": 3, "frequency_penalty": 0.2, "parallel_tool_calls": True,
    },
    "/v1/completions": {
        "prompt": "hi", "max_tokens": 3, "suffix": "b", "echo": True, "logprobs": 2, "n": 2,
        "best_of": 2, "grammar": "root ::= [a-z]", "stop": "x", "mirostat": 2, "xtc_threshold": 0.1,
        "dry_multiplier": 0.5, "stop_token_ids": [97], "ignore_eos": True,
        "stream": False, "repetition_penalty": 1.1, "return_token_ids": True, "n_keep": 1,
        "json_schema": {"type": "string", "pattern": "[a-c]{2}"}, "context_shift": True,
    },
    "/v1/messages": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "a"},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"b": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "c"}]},
        ],
        "system": "s", "stop_sequences": ["x"], "temperature": 0.5, "stream": True,
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "description": "d"}],
        "tool_choice": {"type": "any"}, "thinking": {"type": "enabled", "budget_tokens": 3},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
        "metadata": {"user_id": "u"}, "top_k": 4, "seed": 3,
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "b"},
        ],
        "instructions": "s", "text": {"format": {"type": "json_object"}}, "stream": True,
        "tools": [{"type": "function", "name": "f", "parameters": {}}, {"type": "web_search"}],
        "tool_choice": {"type": "function", "name": "f"},
        "reasoning": {"effort": "low"},
        "max_output_tokens": 3, "metadata": {}, "user": "u",
    },
    "/completion": {
        "prompt": [97, 98], "n_predict": 3, "n_probs": 2, "return_tokens": True, "stream": True,
        "logit_bias": [[97, False]], "cache_prompt": True, "id_slot": 1,
    },
    "/infill": {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}]},
    "/v1/embeddings": {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 8},
    "/v1/rerank": {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1},
    "/tokenize": {"content": "hi", "with_pieces": True, "add_special": True},
    "/detokenize": {"tokens": [97, 98]},
    "/apply-template": {"messages": [{"role": "user", "content": "hi"}]},
}  # fmt: skip


def value(rng: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can say."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return rng.choice(_TEXTS)
    if kind == 1:
        return rng.choice(_NUMBERS)
    if kind == 2:
        return rng.choice([True, False, None])
    if kind in (3, 4):
        return rng.randrange(400)
    if kind == 5:
        return {rng.choice(_WORDS): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return [value(rng, depth + 1) for _ in range(rng.randrange(4))]


def changed(rng: random.Random, one: Any) -> Any:
    """A value with something in it that is not as it was."""
    if isinstance(one, dict) and one and rng.random() < 0.8:
        key = rng.choice(sorted(one))
        return {**one, key: changed(rng, one[key])}
    if isinstance(one, list) and one and rng.random() < 0.8:
        at = rng.randrange(len(one))
        return [*one[:at], changed(rng, one[at]), *one[at + 1 :]]
    return value(rng)


def body(rng: random.Random, path: str) -> bytes:
    """A body that is nearly one of the path's."""
    fields = _FIELDS[path]
    needed = [name for name in _NEEDED if name in fields]
    names = [*needed, *rng.sample(sorted(fields), rng.randrange(len(fields) + 1))]
    given = {name: fields[name] for name in names}
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        name = rng.choice(sorted(given))
        given[name] = changed(rng, given[name])
        if rng.random() < 0.1 and len(given) > 1:
            del given[name]
    given["max_tokens" if path != "/completion" else "n_predict"] = rng.choice([1, 2, 3])
    raw = json.dumps(given).encode()
    if rng.random() < 0.1:  # and then no JSON any more
        at = rng.randrange(len(raw))
        raw = raw[:at] + bytes(rng.randrange(256) for _ in range(rng.randrange(4))) + raw[at + 1 :]
    return raw


def check(status: int, answer: Any, path: str, raw: bytes) -> None:
    """Checks the required properties of every answer."""
    told = f"{path} {raw!r:.2000}: {status} {answer!r:.500}"
    # A request that sets itself a time may run out of it.
    ends = (504,) if b"timeout" in raw else ()
    assert status in (200, 400, 404, 413, 429, *ends), told
    shown = answer if isinstance(answer, str) else json.dumps(answer)
    assert "Traceback" not in shown, told
    assert "internal_error" not in shown, told
    assert "engine_error" not in shown, told
    if status != 200 and path == "/v1/messages":
        assert answer["error"]["message"], told
    elif status != 200:
        assert set(answer["error"]) >= {"message", "type", "param", "code"}, told
        assert answer["error"]["message"], told


def play(client: Client, n: int, seed: int) -> None:
    rng = random.Random(seed)
    paths = sorted(_FIELDS)
    weights = [5 if path.startswith(("/v1/c", "/v1/m", "/v1/res")) else 1 for path in paths]
    n_right = 0
    for _ in range(n):
        (path,) = rng.choices(paths, weights)
        raw = body(rng, path)
        status, answer = client.post(path, raw)
        check(status, answer, path, raw)
        n_right += status == 200
    assert n_right > n // 20
    assert n - n_right > n // 20
    until(lambda: is_idle(client))


@pytest.mark.parametrize(
    "n", [N_QUICK, pytest.param(N_RELEASE, marks=pytest.mark.release)], ids=["few", "many"]
)
def test_bodies_at_random(n: int) -> None:
    llm = open_tiny("prompt-lookup", n_parallel=2, embedding=True, pooling_type="mean")
    with served(llm, has_slots=True, max_time_s=30.0) as client:
        play(client, n, seed=n)


@pytest.mark.parametrize("is_told", [True, False], ids=["length", "chunked"])
def test_a_body_that_is_too_large(is_told: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pyllama_spec.server")
    with served(open_tiny(), flags=FLAGS, max_body_bytes=1000) as client:
        large = b'{"prompt": "' + b"a" * 2000 + b'"}'
        if is_told:
            head = f"Content-Length: {len(large)}\r\n\r\n".encode()
            raw = head + large
        else:
            raw = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(large), large)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        answer = raw_exchange(client, head + raw, leaves=False)
        assert answer.startswith(b"HTTP/1.1 413")
        until(lambda: "error=too_large option=--max-body\n" in caplog.text)
