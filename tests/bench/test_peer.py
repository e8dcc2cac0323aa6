"""The peer, another server with the same prompts; here a fake one with selectable faults."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from pyllama_spec import Llama, bench
from pyllama_spec.bench.peer import Peer, PeerError, PeerUnreachableError, _body
from pyllama_spec.chat.prompt_file import Prompt
from pyllama_spec.errors import ArgumentError
from tests.bench.tools import CHAT, tiny_config
from tests.server.world import served

# 11 tokens, of which the first came with the prompt: 10 in half a second.
TIMINGS = {"predicted_n": 11, "predicted_ms": 500.0, "draft_n": 8, "draft_n_accepted": 6}


class _FakeServer(ThreadingHTTPServer):
    """Answers as its `mood` says, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mood = "timings"
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """Keeps the test's output clean of clients that stop reading."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: _FakeServer

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the test's output clean."""

    def _send(self, code: int, data: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.server.mood == "no models":
            self._send(404, b"not here")
        else:
            self._send(200, json.dumps({"data": [{"id": "fake-7b"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))
        mood = self.server.mood
        if mood == "broken":
            self._send(500, b'{"error": "out of memory"}')
        elif mood == "strict" and "cache_prompt" in body:
            self._send(400, b"unknown field cache_prompt")
        elif mood == "no json":
            self._send(200, b"<html>hello</html>")
        elif mood[0] in "{[":
            self._send(200, mood.encode())
        elif mood == "no choice":
            self._send(200, b'{"choices": []}')
        else:
            self._send(200, json.dumps(_answer(self.path, mood)).encode())


def _answer(path: str, mood: str) -> dict[str, Any]:
    text = "" if mood == "empty" else "hello"
    is_chat = path.endswith("chat/completions")
    choice = {"message": {"content": text}} if is_chat else {"text": text}
    n = 0 if mood == "empty" else 11
    answer: dict[str, Any] = {"choices": [choice], "usage": {"completion_tokens": n}}
    if mood == "timings":
        answer["timings"] = TIMINGS
    return answer


@pytest.fixture
def server() -> Iterator[_FakeServer]:
    with _FakeServer() as fake:
        thread = threading.Thread(target=fake.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield fake
        fake.shutdown()
        thread.join()


def connected(server: _FakeServer) -> Peer:
    peer = Peer(server.url + "/v1/")
    peer.connect()
    return peer


CHAT_PROMPT = Prompt("a", "c", tuple(CHAT))


def test_the_servers_own_timings_are_taken(server: _FakeServer) -> None:
    peer = connected(server)
    answer = peer.ask(CHAT_PROMPT, 20, 0.0, 7)
    assert (answer.n_tokens, answer.seconds, answer.is_own_timing) == (10, 0.5, True)
    assert (answer.drafted, answer.accepted, answer.text) == (8, 6, "hello")
    ((path, body),) = server.asked
    assert path == "/v1/chat/completions"
    assert body["messages"] == CHAT
    assert body["model"] == "fake-7b"
    assert (body["max_tokens"], body["temperature"], body["seed"]) == (20, 0.0, 7)
    assert body["cache_prompt"] is False


def test_without_timings_the_clock_counts(server: _FakeServer) -> None:
    server.mood = "plain"
    answer = connected(server).ask(Prompt("a", "c", text="go on"), 20, 0.0, 7)
    assert (answer.n_tokens, answer.is_own_timing, answer.drafted) == (11, False, None)
    assert answer.seconds == answer.wall_s > 0
    assert server.asked[0][0] == "/v1/completions"
    assert server.asked[0][1]["prompt"] == "go on"


def test_a_peer_with_the_same_file_gives_the_same_text(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, repeats=1)
    with served(Llama(config.model_path, n_ctx=512, n_threads=1, verbose=False)) as client:
        result = bench.run(replace(config, peer=client.url))
    summary = bench.to_json(result)["peer"]["summary"]
    assert (summary["same_text"], summary["compared_texts"]) == (2, 2)
    assert "2 of 2 texts are plain decoding's" in bench.table(result)
    assert summary["cpu_s"] is None  # the process of a running server is not known


def test_a_server_without_a_list_of_models_is_asked_all_the_same(server: _FakeServer) -> None:
    server.mood = "no models"
    assert connected(server).ask(CHAT_PROMPT, 20, 0.0, 7).n_tokens == 11


def test_a_strict_server_is_asked_without_what_it_refuses(server: _FakeServer) -> None:
    server.mood = "strict"
    peer = connected(server)
    assert peer.ask(CHAT_PROMPT, 20, 0.0, 7).n_tokens == 11
    peer.ask(CHAT_PROMPT, 20, 0.0, 7)
    assert ["cache_prompt" in body for _, body in server.asked] == [True, False, False]


@pytest.mark.parametrize(
    ("mood", "says"),
    [
        ("broken", "HTTP 500 .*out of memory"),
        ("no json", "answered .*html.*, not JSON"),
        ("no choice", "without a choice"),
        ("empty", "nothing to measure: 0 tokens"),
    ],
)
def test_faults_say_what_came(server: _FakeServer, mood: str, says: str) -> None:
    server.mood = mood
    with pytest.raises(PeerError, match=says):
        connected(server).ask(CHAT_PROMPT, 20, 0.0, 7)


@pytest.mark.parametrize(
    "raw",
    [
        '{"usage": {"completion_tokens": NaN}}', '{"usage": {"completion_tokens": Infinity}}',
        '{"usage": {"completion_tokens": 1e308}}', '{"usage": [1]}',
        '{"timings": {"predicted_ms": 5, "predicted_n": "abc"}}',
        '{"timings": {"predicted_ms": Infinity}}', "[" * 100_000,
    ],
)  # fmt: skip
def test_figures_that_are_none_are_a_fault(server: _FakeServer, raw: str) -> None:
    server.mood = raw.replace("{", '{"choices": [{"text": "a", "message": {"content": "a"}}], ', 1)
    with pytest.raises(PeerError, match=r"nothing to measure|not JSON"):
        connected(server).ask(CHAT_PROMPT, 20, 0.0, 7)


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://host", "http://", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ArgumentError, match="not an address"):
        Peer(url)


def test_an_address_where_nothing_answers_is_known_before_the_run(
    server: _FakeServer, tmp_path: Path
) -> None:
    url = server.url
    server.shutdown()
    server.server_close()
    with pytest.raises(PeerUnreachableError, match=r"cannot reach .*is the server running"):
        bench.run(tiny_config(tmp_path, peer=url))


def test_both_stand_side_by_side(server: _FakeServer, tmp_path: Path) -> None:
    result = bench.run(tiny_config(tmp_path, peer=server.url))
    report = bench.to_json(result)
    summary = report["peer"]["summary"]
    assert (summary["tps"], summary["n_texts"], summary["n_tokens"]) == (20.0, 4, 40)
    assert summary["acceptance_rate"] == 0.75
    assert "own timings" in summary["timed_by"]
    assert [prompt["peer"]["tps"] for prompt in report["prompts"]] == [20.0, 20.0]
    assert report["peer"]["failures"] == {}
    # A warm-up, then each prompt in each repeat.
    assert len(server.asked) == 5
    text = bench.table(result)
    assert "peer" in text and "20.0" in text


def test_a_peer_that_fails_costs_its_column_only(server: _FakeServer, tmp_path: Path) -> None:
    server.mood = "broken"
    result = bench.run(tiny_config(tmp_path, peer=server.url))
    report = bench.to_json(result)
    assert set(report["peer"]["failures"]) == {"chat", "text"}
    assert "out of memory" in report["peer"]["failures"]["chat"]
    assert report["peer"]["summary"] is None
    assert report["summary"]["n_texts"] == 4
    assert "out of memory" in bench.table(result)


def test_a_peer_that_goes_away_is_not_asked_again(
    server: _FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, n = Peer.ask, 0

    def leaving(self: Peer, *args: Any) -> Any:
        nonlocal n
        n += 1
        if n == 3:
            server.shutdown()
            server.server_close()
        return ask(self, *args)

    monkeypatch.setattr(Peer, "ask", leaving)
    result = bench.run(tiny_config(tmp_path, peer=server.url))
    assert n == 3
    assert [len(prompt.peer) for prompt in result.prompts] == [1, 0]
    assert [len(prompt.pairs) for prompt in result.prompts] == [2, 2]
    assert "not asked again" in result.peer_failures["text"]


@pytest.mark.parametrize(
    "sent",
    [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.0 500 No\r\n\r\n"],
    ids=["continue", "body", "error"],
)
def test_a_server_that_never_stops_sending_is_left_by_the_clock(sent: bytes) -> None:
    over = threading.Event()

    class Endless(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(sent)
            while not over.wait(0.02):
                self.request.sendall(sent if b"100" in sent else b"x")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Endless) as listening:
        listening.daemon_threads = True
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        peer = Peer(f"http://127.0.0.1:{listening.server_address[1]}", timeout_s=0.3)
        begin = monotonic()
        try:
            with pytest.raises(PeerUnreachableError, match=r"gave no whole answer within 0\.3 s$"):
                peer.ask(Prompt("a", "c", text="b"), 4, 0.0, 0)
            assert monotonic() - begin < 3.0
        finally:
            over.set()
            listening.shutdown()


def test_an_answer_without_end_is_read_to_a_limit(
    server: _FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyllama_spec.bench.peer._MOST_BYTES", 1 << 20)
    server.mood = "[" * (1 << 22)
    with pytest.raises(PeerError, match="/v1/completions answered more than 1 MiB"):
        connected(server).ask(Prompt("a", "c", text="b"), 4, 0.0, 0)


def test_the_thread_of_a_late_answer_ends() -> None:
    class Response:
        url, length, n_reads = "", None, 0

        def read1(self, size: int) -> bytes:
            self.n_reads += 1
            return b"x"

    response = Response()
    with pytest.raises(TimeoutError):
        _body(response, monotonic() - 1)
    assert response.n_reads == 1
