"""Access and disclosure: a line of docs/security.md for each test."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import ArgumentError
from pyllama_spec.server import ServerSettings, create_app
from pyllama_spec.server.app import ROUTES
from pyllama_spec.server.models import Keys
from pyllama_spec.server.process import HttpServer, Listening
from pyllama_spec.server.settings import KEY_VARIABLE, keys_of
from tests.faces.tools import open_tiny
from tests.server.world import TEXT, is_idle, raw_exchange, served, until

SECRET = "the-words-of-a-client"
KEYS = ("first-key", "second-key")


def test_every_route_but_those_for_health_asks_for_a_key() -> None:
    with served(open_tiny(), api_keys=KEYS) as client:
        for route in ROUTES:
            path = route.path.replace("{name:path}", "a")
            for given in ({}, {"Authorization": "Bearer no-key"}, {"x-api-key": "first-ke"}):
                status, answer = client.ask(route.method, path, None, given)
                if route.is_open:
                    assert status == 200
                else:
                    assert status == 401, path
                    assert "Bearer" in str(answer)
        assert client.get("/nothing-here")[0] == 401  # nor is it said what there is
        for given in (
            {"Authorization": "Bearer first-key"}, {"authorization": "bearer second-key"},
            {"x-api-key": "second-key"},
        ):  # fmt: skip
            assert client.get("/v1/models", **given)[0] == 200
            assert client.get("/nothing-here", **given)[0] == 404


@pytest.mark.parametrize("key", ["clé", "a-😀"])
def test_keys_beyond_ascii_are_utf_8(key: str) -> None:
    raw = key.encode("utf-8", "surrogateescape")
    with served(open_tiny(), api_keys=("first-key", key)) as client:
        for given, status in ((raw, 200), (raw + b"a", 401), (b"\xff\xfe", 401)):
            head = b"GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\nx-api-key: "
            answer = raw_exchange(client, head + given + b"\r\n\r\n", leaves=False)
            assert answer.startswith(f"HTTP/1.1 {status}".encode()), given


def test_keys_come_from_a_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    path = tmp_path / "keys"
    path.write_text("# of the team\nfirst-key\n\n  second-key  \n")
    assert keys_of(path) == KEYS
    assert keys_of(None) == ()
    monkeypatch.setenv(KEY_VARIABLE, "third-key")
    assert keys_of(path) == (*KEYS, "third-key # environment")
    path.write_text("# nothing\n")
    for wrong in (path, tmp_path / "missing"):
        with pytest.raises(ArgumentError):
            keys_of(wrong)
    with pytest.raises(ArgumentError):
        ServerSettings(api_keys=(" ",))
    assert "first-key" not in repr(ServerSettings(api_keys=KEYS)) + repr(Keys(KEYS))


def test_nobody_passes_for_a_user_of_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts learn from a user's own requests only."""
    seen: list[str] = []
    with served(open_tiny(), api_keys=KEYS) as client:
        llm = client.service.llm
        create = llm.create_completion

        def noted(*given: Any, **more: Any) -> Any:
            seen.append(more["user"])
            return create(*given, **more)

        monkeypatch.setattr(llm, "create_completion", noted)
        for client.key in KEYS:
            for user in ("ann", "key 0: ann", None):
                client.right(TEXT, {"prompt": "a", "max_tokens": 1, "user": user})
    assert len(set(seen)) == len(seen) == 6
    assert seen[0] == "key 0: ann"


def test_pages_of_others_may_not_call() -> None:
    body = {"prompt": "a", "max_tokens": 1}
    with served(open_tiny()) as client:
        own = f"http://{client.host}:{client.port}"
        for origin in (
            "http://evil.example",
            "null",
            "http://[",
            own.replace("http", "x", 1) + "0",
        ):
            for method in ("POST", "OPTIONS"):
                status, _ = client.ask(method, TEXT, body, {"Origin": origin})
                assert status == 403, origin
        connection, response = client.send("POST", TEXT, body, {"Origin": own})
        assert response.status == 200
        assert response.getheader("access-control-allow-origin") is None
        connection.close()
        assert client.ask("OPTIONS", TEXT)[0] == 405


def test_pages_that_are_let_in() -> None:
    page = "https://app.example"
    body = {"prompt": "a", "max_tokens": 1}
    with served(open_tiny(), cors_origins=(page,), api_keys=KEYS) as client:
        wanted = {"Origin": page, "Access-Control-Request-Headers": "x-stainless-lang"}
        connection, response = client.send("OPTIONS", TEXT, None, wanted)
        assert response.status == 204
        assert response.getheader("access-control-allow-origin") == page
        assert response.getheader("access-control-allow-headers") == "x-stainless-lang"
        connection.close()
        assert client.ask("POST", TEXT, body, {"Origin": page})[0] == 401
        client.key = KEYS[0]
        for extra in ({"stream": True}, {}, {"prompt": 3}):  # an error can be read as well
            connection, response = client.send("POST", TEXT, {**body, **extra}, {"Origin": page})
            assert response.getheader("access-control-allow-origin") == page
            connection.close()
        assert client.ask("POST", TEXT, body, {"Origin": "https://app.example.evil"})[0] == 403


def test_pages_of_this_machine_are_let_in_by_one_name() -> None:
    with served(open_tiny(), cors_origins=("localhost",)) as client:
        for origin, status in (
            ("http://localhost:3000", 200), ("http://[::1]", 200), ("http://127.0.0.1:1", 200),
            ("http://localhost.evil.com", 403), ("http://notlocalhost", 403),
        ):  # fmt: skip
            assert client.get("/v1/models", Origin=origin)[0] == status, origin


def test_no_text_and_no_key_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with served(open_tiny(), api_keys=KEYS) as client:
        client.key = KEYS[0]
        for body in (
            {"prompt": SECRET, "max_tokens": 3}, {"prompt": SECRET, "grammar": SECRET},
            {"prompt": SECRET, "max_tokens": SECRET}, {"prompt": SECRET * 200},
            {"prompt": SECRET, "max_tokens": 3, "stream": True},
        ):  # fmt: skip
            client.post(TEXT, body)
        client.post(TEXT, b'{"prompt": "' + SECRET.encode())
    assert "POST /v1/completions 200" in caplog.text
    assert caplog.text.count("completion_tokens=3 drafted=0 accepted=0") == 2
    assert SECRET not in caplog.text
    assert KEYS[0] not in caplog.text


@pytest.mark.parametrize(
    "path",
    ["/a%0aGET%20/v1/models%20200%200.001%20s", "/a%0d%0ab", "/%1b%5b31mred", "/v1/models/%0a%00",
     "/%c2%85%e2%80%a8%e2%80%ae", "/%ff%fe", "/a%20200", "/%7f", "/%0a" * 4000],
)  # fmt: skip
def test_a_path_forges_no_line_of_the_log(path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pyllama_spec.server")
    with served(open_tiny()) as client:
        assert client.get(path)[0] == 404
        until(lambda: is_idle(client))
    (line,) = [one.getMessage() for one in caplog.records if one.name == "pyllama_spec.server"]
    assert line.isascii()
    assert line.isprintable()
    assert len(line) < 300
    assert line.split(" ")[0::2][:2] == ["GET", "404"]  # a space of the path is none of the line
    assert path.startswith("/v1/models/") or line.split(" ")[1][:2] == "/" + path[1:2]


def test_what_nobody_foresaw_stays_inside(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(open_tiny()) as client:

        def broken(*_: Any) -> None:
            raise RuntimeError(SECRET)

        monkeypatch.setattr(client.service, "answer", broken)
        status, answer = client.post(TEXT, {"prompt": "a"})
        assert (status, answer["error"]["code"]) == (500, "internal_error")
        assert SECRET not in str(answer)
    assert "RuntimeError in test_access.py" in caplog.text  # where to look
    assert SECRET not in caplog.text


def test_slots_and_metrics_can_be_off_and_tell_no_folder() -> None:
    with served(open_tiny()) as client:
        assert client.get("/slots")[0] == 501
        assert client.get("/metrics")[0] == 200
        folder = str(Path(client.service.llm.model_path).parent)
        for path in ("/props", "/v1/models", "/metrics"):
            assert folder not in str(client.get(path))
    with served(open_tiny(), has_slots=True, has_metrics=False) as client:
        assert client.get("/slots") == (200, [{"id": 0, "n_ctx": 256, "is_processing": False}])
        assert client.get("/metrics")[0] == 501


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of this machine's own, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
               "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key),
               "-out", str(cert)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def test_a_certificate_that_cannot_be_used(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with open_tiny() as llm:
        app = create_app(llm)
        for pair in ((key, cert), (cert, tmp_path / "missing")):
            with pytest.raises(ArgumentError):
                HttpServer(app, Listening(port=0, certificate=pair[0], key=pair[1]))
