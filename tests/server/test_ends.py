"""Ends of requests: clients that leave or read slowly, a full line, a timeout.

Expected events come at once even on a slow machine; no assertion depends on a clock.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.cli.entry import main as command_line
from tests.faces.tools import open_tiny
from tests.models import model_path
from tests.server.world import (
    ENDLESS,
    PATIENCE_S,
    TEXT,
    Client,
    Endless,
    events_of,
    is_idle,
    raw_exchange,
    served,
    stages,
    until,
)

CHAT = "/v1/chat/completions"


def opened(**options: Any) -> Llama:
    return open_tiny(None, n_ctx=128, **{"n_parallel": 2, **options})


@pytest.mark.parametrize("stage", ["generating", "queued"])
def test_a_client_that_leaves_ends_a_whole_answer(stage: str) -> None:
    with served(opened(n_parallel=1)) as client:
        ahead = Endless(client) if stage == "queued" else None
        connection = client.connect()
        connection.request("POST", TEXT, json.dumps(ENDLESS))
        until(lambda: stage in stages(client))
        connection.close()
        until(lambda: stage not in stages(client))
        if ahead is not None:
            ahead.close()
        until(lambda: is_idle(client))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_sends_no_more_gets_its_answer(stream: bool) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 60, "ignore_eos": True, "stream": stream})
    head = f"POST {TEXT} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    with served(opened()) as client:
        answer = raw_exchange(client, (head + body).encode())
        until(lambda: is_idle(client))
    assert b"HTTP/1.1 200 OK" in answer
    assert b'"finish_reason":"length"' in answer


def test_embeddings_end_with_their_client() -> None:
    with served(opened(embedding=True, pooling_type="mean"), max_inputs=10**6) as client:
        connection = client.connect()
        texts = ",".join(['"the cat sat on the mat"'] * 200_000)
        connection.request("POST", "/v1/embeddings", f'{{"input": [{texts}]}}')
        until(lambda: client.service._n_beside == 1)
        connection.close()
        until(lambda: is_idle(client) and client.service._n_beside == 0)
        assert client.right("/v1/embeddings", {"input": "a"})["data"]


@pytest.mark.slow
def test_a_reader_that_takes_nothing_is_left_alone() -> None:
    with served(opened(), send_timeout_s=0.3) as client:
        sock = narrow(client)
        large = {**ENDLESS, "stream": True, "logprobs": 300}
        body = json.dumps(large).encode()
        head = f"POST {TEXT} HTTP/1.1\r\nHost: {client.host}\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        until(lambda: bool(client.service.answers))
        until(lambda: is_idle(client))
        sock.close()


def narrow(client: Client) -> socket.socket:
    """A connection that holds little of what its reader has not taken."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.settimeout(PATIENCE_S)
    sock.connect((client.host, client.port))
    return sock


def test_a_full_line_is_told_to_come_again() -> None:
    with served(opened(n_parallel=1, max_waiting=1), retry_after_s=7) as client:
        with Endless(client):
            waiting = threading.Thread(
                target=client.post, args=(TEXT, {"prompt": "a", "max_tokens": 1})
            )
            waiting.start()
            until(lambda: "queued" in stages(client))
            for path, stream in ((TEXT, False), (TEXT, True), (CHAT, False), (CHAT, True)):
                body = (
                    {"prompt": "b"}
                    if path == TEXT
                    else {"messages": [{"role": "user", "content": "b"}]}
                )
                connection, response = client.send("POST", path, {**body, "stream": stream})
                assert response.status == 429
                assert response.getheader("retry-after") == "7"
                assert b"rate_limit_error" in (told := response.read())
                assert b"max_waiting" not in told  # an option of the server
                connection.close()
            assert "queued" in stages(client)
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        until(lambda: is_idle(client))


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_whose_time_is_over(stream: bool) -> None:
    with served(opened(n_parallel=1), max_time_s=0.2, ping_s=0.05) as client, Endless(client):
        # It waits behind one without an end: its time ends in line, or that one's does.
        status, answer = client.post(TEXT, {**ENDLESS, "timeout": 0.02, "stream": stream})
        if status == 200:  # the pings began it
            assert '"timeout_error"' in answer
            assert "[DONE]" not in answer
        else:
            assert (status, answer["error"]["type"]) == (504, "timeout_error")
    with served(opened(), max_time_s=0.2) as client:
        events = client.events(TEXT, ENDLESS)  # a bound of the server's own
        assert events[-1]["error"]["type"] == "timeout_error"
        connection, response = client.send("POST", TEXT, ENDLESS)
        assert response.status == 504
        # OpenAI's package would have it computed three times.
        assert response.getheader("x-should-retry") == "false"
        connection.close()


def test_a_silent_stream_is_kept_alive() -> None:
    with served(opened(n_parallel=1), ping_s=0.02) as client:
        with Endless(client):
            connection, response = client.send("POST", TEXT, {"prompt": "b", "stream": True})
            assert response.status == 200
            assert [response.readline() for _ in range(4)] == [b": ping\n", b"\n"] * 2
        assert list(events_of(response))[-1] == "[DONE]"
        connection.close()


def test_the_end_of_the_server_lets_what_runs_end() -> None:
    with served(opened(), stop_timeout_s=PATIENCE_S) as client:
        body = {**ENDLESS, "max_tokens": 300, "stream": True}
        connection, response = client.send("POST", TEXT, body)
        kept = client.connect()
        kept.request("GET", "/ready")
        assert kept.getresponse().read()
        client.server.stop()
        until(lambda: client.serving.is_stopping)
        assert list(events_of(response))[-1] == "[DONE]"
        connection.close()
        kept.close()


def test_the_end_of_the_server_cuts_what_does_not_end() -> None:
    with served(opened(n_parallel=1), stop_timeout_s=0.1) as client, Endless(client) as begun:
        whole: list[Any] = []
        thread = threading.Thread(target=lambda: whole.append(client.post(TEXT, ENDLESS)))
        thread.start()
        until(lambda: "queued" in stages(client))
        client.server.stop()
        last = list(begun.events)[-1]
        assert last["error"]["code"] == "stopping"
        thread.join(PATIENCE_S)
        assert whole[0][0] == 503
        assert whole[0][1]["error"]["code"] == "stopping"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "stop_timeout_s", "is_repeated"),
    [
        (signal.SIGTERM, "0.2", False),
        (signal.SIGINT, "3600", True),
    ],
)
def test_a_signal_ends_the_command(
    kind: signal.Signals, stop_timeout_s: str, is_repeated: bool, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "pyllama_spec.cli", "serve", "-m", str(model_path("llama"))]
    more = ["--port", "0", "-c", "128", "-t", "1", "--stop-timeout", stop_timeout_s,
            "-d", "prompt-lookup", "--cache-dir", str(tmp_path / "kept")]  # fmt: skip
    process = subprocess.Popen(
        [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYLLAMA_SPEC_API_KEY": "the-key"},
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "answers at http://127.0.0.1:" in line, process.communicate()[1]
    port = int(line.partition("http://127.0.0.1:")[2].partition(",")[0])
    body = json.dumps({**ENDLESS, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        head = (
            f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer the-key\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        sock.sendall(head.encode() + body)
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        process.send_signal(kind)
        assert process.stderr is not None
        while is_repeated and "a second signal cuts now" not in process.stderr.readline():
            pass
        if is_repeated:
            process.send_signal(kind)
        told = b""
        while part := sock.recv(65536):
            told = (told + part)[-4096:]
    assert b'"stopping"' in told
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert out == "stopped: 1 request ran or waited, 0 finished, 1 was cut\n"
    assert f" {out}" in err  # the log
    assert 0 < err.find(f" POST {TEXT} 200 ") < err.index(f" {out}")
    assert "Traceback" not in err
    assert (tmp_path / "kept").is_dir()
    assert "the cat" not in err  # no text in the log
    assert "the-key" not in err


def test_a_key_in_the_command_line_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    """The key is not taken for a file's name, and no log has it."""
    assert command_line(["serve", "-m", "model.gguf", "--api-key", "secret"]) == 2
    assert "--api-key-file" in (told := capfd.readouterr().err)
    assert "secret" not in told


def test_a_head_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.server import world

    monkeypatch.setattr(world, "Listening", lambda port: _Hasty(port=port))
    with served(opened()) as client:
        with socket.create_connection((client.host, client.port), timeout=PATIENCE_S) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nX: ")
            assert _closed(sock) == b""
        with socket.create_connection((client.host, client.port), timeout=PATIENCE_S) as sock:
            # The second request of a connection, too.
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
            sock.sendall(b"GET /heal")
            assert b"HTTP" not in _closed(sock)


_UNREAD = "GET /health HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    ("head", "status", "parts"),
    [
        (_UNREAD + "Content-Length: 100000000\r\n", 200, [b"a"] * 20),
        (_UNREAD + "Transfer-Encoding: chunked\r\n", 200, [b"1\r\na\r\n0\r\n\r\n", b"G"]),
        (f"POST {TEXT} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n", 401, [b"a"]),
        ((f"POST {TEXT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer key\r\n"
          "Content-Length: 100000000\r\n"), 413, [b"a", b"b"]),
    ],
)  # fmt: skip
def test_a_body_that_nobody_reads_holds_no_connection(
    head: str, status: int, parts: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that follow the answer do not stop the timer of the connection."""
    monkeypatch.setattr("tests.server.world.Listening", _Hasty)
    with (
        served(open_tiny(), api_keys=("key",)) as client,
        socket.create_connection((client.host, client.port), timeout=PATIENCE_S) as sock,
    ):
        sock.sendall(f"{head}\r\n".encode())
        assert sock.recv(4096).startswith(f"HTTP/1.1 {status}".encode())
        with suppress(ConnectionError):  # it may end before all parts are sent
            for part in parts:
                sock.sendall(part)
        assert b"HTTP" not in _closed(sock)


def _Hasty(port: int) -> Any:  # noqa: N802 - stands in for a class
    from pyllama_spec.server.process import Listening

    return Listening(port=port, header_timeout_s=0.2)


def _closed(sock: socket.socket) -> bytes:
    """The bytes until the other side ends the connection, in any way."""
    parts = b""
    try:
        while part := sock.recv(4096):
            parts += part
    except ConnectionResetError:
        pass
    return parts


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    with served(opened(), body_timeout_s=0.1) as client:
        with socket.create_connection((client.host, client.port), timeout=PATIENCE_S) as sock:
            sock.sendall(f"POST {TEXT} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{{".encode())
            assert sock.recv(4096).startswith(b"HTTP/1.1 408")
        half = f"POST {TEXT} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{{".encode()
        assert b"HTTP/1.1 5" not in raw_exchange(client, half)  # it leaves in the middle
        until(lambda: is_idle(client))
