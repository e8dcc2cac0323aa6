"""Operation of a server: changing keys and certificates, and the log of requests."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec.server.models import Keys
from pyllama_spec.server.settings import hosts_for, key_and_name, keys_of
from tests.faces.tools import open_tiny
from tests.server.world import (
    ENDLESS,
    TEXT,
    Client,
    events_of,
    is_idle,
    served,
    stages,
    until,
)

ASKED: dict[str, Any] = {"prompt": "the cat sat", "max_tokens": 3, "temperature": 0}


def answers_to(client: Client, key: str) -> int:
    """The status of a request with a key."""
    return client.get("/v1/models", **{"x-api-key": key})[0]


# ---- keys


def test_keys_have_names(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(
        "# of the team\n  # indented\nplain\nsk-1 # editor\n sk-2\t#  a  night job \n"
        "a:b#c\nsk-3 #\nsk-4 # é\x1b[31m\n"
    )
    assert [key_and_name(key) for key in keys_of(path)] == [
        ("plain", ""), ("sk-1", "editor"), ("sk-2", "a_night_job"), ("a:b#c", ""), ("sk-3", ""),
        ("sk-4", "??[31m"),
    ]  # fmt: skip


def test_a_key_has_its_number_for_good() -> None:
    """Drafts belong to a user by this number, so no other key may get it."""
    keys = Keys(("a", "b"))

    def users() -> list[str | None]:
        found = [keys.caller_of(key) for key in "abc"]
        return [None if one is None else one[0] for one in found]

    assert users() == ["key 0", "key 1", None]
    assert keys.replace(("c", "b", "b")) == (1, 1)
    assert (users(), len(keys)) == ([None, "key 1", "key 2"], 2)
    assert keys.replace(("c", "a")) == (1, 1)
    assert users() == ["key 0", None, "key 2"]


def test_keys_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    path.write_text("old # first\nkept\n")
    keys = keys_of(path)
    with (
        caplog.at_level(logging.INFO, "pyllama_spec.server"),
        served(open_tiny(), api_keys=keys, read_keys=lambda: keys_of(path)) as client,
    ):
        assert [answers_to(client, key) for key in ("old", "kept", "new")] == [200, 200, 401]
        path.write_text("kept # second\nnew\n")
        client.server.read_again()
        until(lambda: answers_to(client, "new") == 200)
        assert [answers_to(client, key) for key in ("old", "kept")] == [401, 200]
        assert "SIGHUP: API keys: 2 in use, 1 new, 1 removed" in caplog.messages
        for broken in ("# no key\n", None):
            caplog.clear()
            path.unlink() if broken is None else path.write_text(broken)
            client.server.read_again()
            until(lambda: any("stay as they were" in one for one in caplog.messages))
            assert [answers_to(client, key) for key in ("old", "kept", "new")] == [401, 200, 200]
    assert "key=second" in caplog.text


# ---- names


def test_a_server_behind_a_proxy_is_reached_on_its_own_machine() -> None:
    with served(open_tiny(), allowed_hosts=hosts_for("127.0.0.1", ["LLM.example"])) as client:
        for host, status in (
            ("llm.example", 200), ("LLM.example:443", 200), ("127.0.0.1:9", 200),
            ("localhost", 200), ("[::1]", 200), ("evil.example", 403), ("llm.example.evil", 403),
            ("", 403), ("[", 403),
        ):  # fmt: skip
            for path in ("/health", "/ready", "/metrics"):
                found, answer = client.get(path, Host=host)
                assert found == status, host
                assert status == 200 or answer["error"]["code"] == "unknown_host"


# ---- the log


@contextmanager
def logged(caplog: pytest.LogCaptureFixture, **settings: Any) -> Iterator[tuple[Client, list[str]]]:
    """A server, and the lines of its log."""
    caplog.set_level(logging.INFO, "pyllama_spec.server")
    with served(open_tiny(n_parallel=1), **settings) as client:
        yield client, caplog.messages


def line_of(caplog: pytest.LogCaptureFixture, path: str) -> str:
    """The one line of a path, once it is there."""
    until(lambda: any(f" {path} " in one for one in caplog.messages))
    (line,) = (one for one in caplog.messages if f" {path} " in one)
    return line


_MESSAGES = [{"role": "user", "content": "the cat"}]
_ANSWERS = (
    (TEXT, ASKED, "cmpl-"),
    (TEXT, {**ASKED, "prompt": ["the cat", "sat"]}, "cmpl-"),
    (TEXT, {**ASKED, "n": 2, "temperature": 1}, "cmpl-"),
    ("/v1/chat/completions", {"messages": _MESSAGES, "max_tokens": 4}, "chatcmpl-"),
    ("/v1/messages", {"messages": _MESSAGES, "max_tokens": 4}, "msg_"),
    ("/v1/responses", {"input": "the cat", "max_output_tokens": 4}, "resp_"),
)


def test_the_log_has_the_id_that_the_answer_has(caplog: pytest.LogCaptureFixture) -> None:
    """In each API's own format, for whole answers and streams; and the request's own id."""
    with logged(caplog, api_keys=("a", "b")) as (client, _):
        client.key = "b"
        for path, body, prefix in _ANSWERS:
            for is_stream in (False, True):
                if is_stream and isinstance(body.get("prompt"), list):
                    continue  # a list of prompts has no stream
                caplog.clear()
                connection, response = client.send("POST", path, {**body, "stream": is_stream})
                told = response.read().decode()
                connection.close()
                assert response.status == 200, told
                line = line_of(caplog, path)
                names = {response.getheader(one) for one in ("x-request-id", "request-id")}
                assert f" id={names.pop()} key=2" in line
                assert not names
                assert "cached_tokens=" in line
                (name,) = re.findall(r" answer=(\S+)", line)
                assert re.fullmatch(f"{prefix}[0-9a-f]{{32}}", name)
                assert f'"id":"{name}"' in told
        caplog.clear()
        client.right("/completion", {"prompt": "the cat", "n_predict": 2})
        assert " answer=" not in line_of(caplog, "/completion"), "such an answer has no id"
        client.key = "c"
        assert client.get("/v1/models")[0] == 401
        assert line_of(caplog, "/v1/models").endswith(" error=invalid_api_key")


@pytest.mark.parametrize("given, is_taken", [("a-1.b:c", True), ("a b", False), ("x" * 65, False)])
def test_a_clients_id_is_that_of_the_log(
    given: str, is_taken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with logged(caplog) as (client, _):
        connection, response = client.send("GET", "/v1/models", None, {"X-Request-Id": given})
        connection.close()
        assert (response.getheader("x-request-id") == given) == is_taken
        assert (f" id={given}" in line_of(caplog, "/v1/models")) == is_taken


def test_a_log_in_json() -> None:
    """In a process of its own: the log belongs to the process."""
    program = (
        "import logging\nfrom pyllama_spec.server.programs import set_up_log\n"
        "set_up_log(logging.INFO, is_json=True)\nlog = logging.getLogger('pyllama_spec.server')\n"
        "log.info('a %d', 1)\nlog.info('b', extra={'request': {'status': 200}})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    first, second = map(json.loads, done.stderr.splitlines())
    assert (first["message"], second["status"]) == ("a 1", 200)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_line_of_who_left_has_its_tokens(
    is_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with logged(caplog) as (client, _):
        connection = client.connect()
        connection.request("POST", TEXT, json.dumps({**ENDLESS, "stream": is_stream}))
        if is_stream:
            response = connection.getresponse()
            next(events_of(response))
            response.close()
        until(lambda: stages(client) == ["generating"])
        connection.close()
        until(lambda: is_idle(client))
        line = line_of(caplog, TEXT)
    assert line.startswith(f"POST {TEXT} {200 if is_stream else 499} ")
    assert " left=True" in line
    assert " answer=cmpl-" in line
    assert counts_of(line)[0] > 0
    assert not is_stream or counts_of(line)[1] > 0


def counts_of(line: str) -> tuple[int, int]:
    """The tokens of a line."""
    found = re.search(r" prompt_tokens=(\d+) completion_tokens=(\d+)", line)
    assert found is not None, line
    return int(found[1]), int(found[2])


@pytest.mark.parametrize("logs_clients", [True, False])
def test_addresses_are_logged_where_they_are_asked_for(
    logs_clients: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The one that a proxy on this machine has written last; a text of a client's is quoted."""
    with logged(caplog, logs_clients=logs_clients) as (client, _):
        for told, shown in (
            (None, "127.0.0.1"), ("203.0.113.9", "203.0.113.9"),
            ("10.0.0.1, 2001:db8::1", "2001:db8::1"), ("own text", "own%20text"),
        ):  # fmt: skip
            caplog.clear()
            client.get("/v1/models", **({} if told is None else {"X-Forwarded-For": told}))
            line = line_of(caplog, "/v1/models")
            assert (f" from={shown}" in line) == logs_clients
            assert logs_clients or shown not in line


@pytest.mark.parametrize("logs_checks", [True, False])
def test_lines_of_checks(logs_checks: bool, caplog: pytest.LogCaptureFixture) -> None:
    with logged(caplog, logs_checks=logs_checks, has_metrics=False) as (client, _):
        for path in ("/health", "/ready", "/metrics", "/v1/models"):
            client.get(path)
        line_of(caplog, "/v1/models")
        found = [one.split()[1] for one in caplog.messages]
    checks = ["/health", "/ready"] if logs_checks else []
    assert found == [*checks, "/metrics", "/v1/models"]  # of /metrics the error
