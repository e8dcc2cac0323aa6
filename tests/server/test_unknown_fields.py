"""Fields that the server does not know: accepted, and named once in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from pyllama_spec.server.door import _MOST
from tests.faces.tools import open_tiny
from tests.server.world import served

USER = [{"role": "user", "content": "a"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/completion": {"prompt": "a", "n_predict": 1},
    "/v1/embeddings": {"input": "a", "encoding_format": None},
    "/v1/messages": {"messages": USER, "max_tokens": 1, "system": "b", "tool_choice": None},
    "/v1/responses": {"input": "a", "max_output_tokens": 1, "reasoning": None},
    "/tokenize": {"content": "a", "with_pieces": None},
}


def test_an_unknown_field_is_accepted_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """A text that may be private is none of them, and no client writes as much as it likes."""
    caplog.set_level(logging.WARNING, "pyllama_spec.server")
    quiet = {"metadata": {}, "store": False, "service_tier": "auto"}
    texts = ("a private text", "a\nb", "x" * 41, "", "ü", "\x1b[31m")
    with served(open_tiny(embedding=True, pooling_type="mean")) as client:
        for path, body in BODIES.items():
            client.right(path, {**body, **quiet, **dict.fromkeys(texts, 1)})
            assert caplog.messages == [], path
            for _ in range(2):
                client.right(path, {**body, f"z{len(path)}": 1})
            (said,) = caplog.messages
            assert path in said and f" z{len(path)} " in said
            caplog.clear()
        text = BODIES["/v1/completions"]
        client.right("/v1/completions", {**text, "temperatur": 1})
        assert "did you mean temperature?" in caplog.messages[-1]
        for k in range(3):
            client.right("/v1/completions", {**text, **{f"f{k}_{i}": i for i in range(_MOST)}})
    # One line for each path is cleared, and the last one says that no further ones are named.
    assert len(caplog.messages) == _MOST - len(BODIES) + 1
