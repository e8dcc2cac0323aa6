"""Fields that the server does not know: accepted, and named once in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from pyllama_spec.server.serving import _MOST
from tests.faces.tools import open_tiny
from tests.server.world import served

USER = [{"role": "user", "content": "a"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/chat/completions": {"messages": USER, "max_tokens": 1},
    "/completion": {"prompt": "a", "n_predict": 1},
    "/v1/embeddings": {"input": "a", "encoding_format": None},
    "/v1/messages": {"messages": USER, "max_tokens": 1, "system": "b", "tool_choice": None},
    "/v1/responses": {"input": "a", "max_output_tokens": 1, "reasoning": None},
    "/tokenize": {"content": "a", "with_pieces": None},
}


def unknown_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one for one in caplog.messages if "not known" in one]


def test_an_unknown_field_is_accepted_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pyllama_spec.server")
    llm = open_tiny(embedding=True, pooling_type="mean")
    with served(llm) as client:
        for path, body in BODIES.items():
            quiet = {"metadata": {}, "store": False, "service_tier": "auto"}
            client.right(path, {**body, **quiet})
            assert unknown_in(caplog) == [], path
            field = f"z{len(path)}{path[4:6]}"
            for _ in range(2):
                client.right(path, {**body, field: 1})
            (said,) = unknown_in(caplog)
            assert said == f"{path}: the field {field} is not known here and changes nothing"
            caplog.clear()
        client.right("/v1/completions", {**BODIES["/v1/completions"], "temperatur": 1})
        client.right("/v1/responses", {**BODIES["/v1/responses"], "max_outputs_tokens": 1})
        ends = [one.partition("; did you mean ")[2] for one in unknown_in(caplog)]
        assert [one.split()[0].rstrip("?") for one in ends] == ["temperature", "max_output_tokens"]


def test_what_a_client_may_write_into_the_log_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pyllama_spec.server")
    body = BODIES["/v1/completions"]
    with served(open_tiny()) as client:
        texts = ("a private text", "a\nb", "x" * 41, "", "ü", "\x1b[31m")
        client.right("/v1/completions", {**body, **dict.fromkeys(texts, 1)})
        assert unknown_in(caplog) == []
        for name in (b"\\ud800", b"\xff", b"\\u0000"):
            raw = b'{"prompt": "a", "max_tokens": 1, "%s": [1]}' % name
            assert client.ask("POST", "/v1/completions", raw)[0] in (200, 400)
        assert unknown_in(caplog) == []
        for k in range(3):
            more = {f"field_{k}_{i}": i for i in range(_MOST)}
            client.right("/v1/completions", {**body, **more, "long": "y" * (1 << 17) * (k == 2)})
    said = unknown_in(caplog)
    assert len(said) == _MOST + 1
    assert said[-1] == "further fields that are not known are not named"
