"""`bench` starts another system's server, asks it and stops it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from pyllama_spec import bench
from pyllama_spec.bench.beside import draft_kind
from pyllama_spec.bench.peer import PeerError
from pyllama_spec.errors import ArgumentError
from tests.bench.tools import tiny_config
from tests.models import model_path

# Plays the other system: keeps what it was asked for, and answers as llama-server does.
_STAND_IN = """
import json, os, pathlib, sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer

job, folder = json.loads(sys.argv[2]), pathlib.Path(sys.argv[0]).parent
with open(folder / "jobs", "a") as out:
    out.write(json.dumps({**job, "pid": os.getpid()}) + "\\n")
if job["draft_kind"] not in ("none", "lookup"):
    print("0.00.1 I srv init: loading\\n0.00.2 E llama_model_load: error loading model: no head")
    sys.exit("Traceback")

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass
    def say(self, answer):
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.say({"data": [{"id": "other"}]})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.say({"choices": [{"text": "a", "message": {"content": "a"}}],
                  "timings": {"predicted_n": 11, "predicted_ms": 500.0}})

threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
HTTPServer(("127.0.0.1", job["port"]), Handler).serve_forever()
"""


def stand_in(folder: Path, program: str = _STAND_IN) -> Path:
    """An "interpreter" that runs the program in place of what it is given."""
    (folder / "other.py").write_text(program)
    python = folder / "python"
    python.write_text(
        f"#!/bin/sh\nexec {shlex.quote(sys.executable)} "
        f'{shlex.quote(str(folder / "other.py"))} "$@"\n'
    )
    python.chmod(0o755)
    return python


def jobs(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "jobs").read_text().splitlines()]


def is_gone(pid: object) -> bool:
    until = monotonic() + 20
    while monotonic() < until:
        try:
            os.kill(int(str(pid)), 0)
        except ProcessLookupError:
            return True
        sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("draft", "kind"),
    [
        ("none", "none"), ("prompt-lookup", "lookup"), ("suffix", "lookup"), ("mtp", "mtp"),
        ("grammar", "none"), ("auto", "none"),
    ],
)  # fmt: skip
def test_what_a_named_draft_is_elsewhere(draft: str, kind: str) -> None:
    assert draft_kind(draft) == kind


@pytest.mark.parametrize(
    ("arch", "kind"), [("eagle3", "eagle3"), ("dflash", "dflash"), ("llama", "model")]
)
def test_what_a_file_is_elsewhere(arch: str, kind: str) -> None:
    assert draft_kind(model_path(arch)) == kind
    assert draft_kind(str(model_path(arch))) == kind


def test_a_block_with_a_markov_head_is_a_kind_of_its_own() -> None:
    assert draft_kind(model_path("dflash", variant="dspark")) == "dspark"


def test_it_is_asked_beside_and_ends_with_the_benchmark(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path, draft="prompt-lookup", beside="llama-server", beside_python=stand_in(tmp_path),
        n_draft=3, n_ctx=512,
    )  # fmt: skip
    result = bench.run(config)
    (job,) = jobs(tmp_path)
    assert job["model"] == str(Path(config.model_path).absolute())
    assert (job["draft_kind"], job["n_draft"], job["n_ctx"]) == ("lookup", 3, 512)
    assert is_gone(job["pid"])
    said = bench.to_json(result)
    assert said["peer"]["beside"] == "llama-server"
    assert said["peer"]["summary"]["tps"] == pytest.approx(20.0)
    summary, n = said["peer"]["summary"], len(result.pairs)
    assert (summary["same_text"], summary["compared_texts"]) == (0, n)  # it says "a" to all
    assert f"0 of {n} texts are plain decoding's" in bench.table(result)
    if sys.platform == "linux":
        assert summary["cpu_s"] >= 0.0
        assert "processor time with the prompts" in bench.table(result)
    assert "llama-server, the same file and threads, with its own draft" in bench.table(result)
    assert "--beside llama-server" in (config.command or "")


def test_a_draft_that_it_refuses_is_told_and_left_out(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path, draft=str(model_path("llama")), beside="llama-server",
        beside_python=stand_in(tmp_path),
    )  # fmt: skip
    result = bench.run(config)
    first, second = jobs(tmp_path)
    assert (first["draft_kind"], second["draft_kind"]) == ("model", "none")
    assert "without a draft, since it refuses this one" in bench.table(result)
    assert "error loading model: no head" in bench.table(result)


def test_a_draft_that_it_serves_without_is_told_and_left_out(tmp_path: Path) -> None:
    why = "failed to initialize speculative decoding context: the vocabularies differ"
    ends = _STAND_IN[_STAND_IN.index("    print(") : _STAND_IN.index("class Handler")]
    serves_on = _STAND_IN.replace(ends, f"    print('0.00.2 E srv load: {why}', flush=True)\n\n")
    config = tiny_config(
        tmp_path, draft=str(model_path("llama")), beside="llama-server",
        beside_python=stand_in(tmp_path, serves_on),
    )  # fmt: skip
    result = bench.run(config)
    first, second = jobs(tmp_path)
    assert (first["draft_kind"], second["draft_kind"]) == ("model", "none")
    assert is_gone(first["pid"])
    assert "without a draft, since it refuses this one: llama-server serves without it" in (
        " ".join(bench.table(result).split())
    )
    assert why in " ".join(bench.table(result).split())


@pytest.mark.parametrize(("system", "package"), [
    ("llama-server", "xllamacpp"), ("llama-cpp-python", "llama-cpp-python[server]"),
])  # fmt: skip
def test_a_package_that_is_not_there_is_named(tmp_path: Path, system: str, package: str) -> None:
    # Without site-packages: whatever this environment has, that interpreter has none of it.
    bare = stand_in(
        tmp_path, "import os, sys\nos.execv(sys.executable, ['python', '-S', '-E', *sys.argv[1:]])"
    )
    config = tiny_config(tmp_path, beside=system, beside_python=bare)
    with pytest.raises(PeerError, match="ModuleNotFoundError") as caught:
        bench.run(config)
    assert f'pip install "{package}"' in str(caught.value)


def test_an_interpreter_that_is_none_is_named(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, beside="llama-server", beside_python=tmp_path / "none")
    with pytest.raises(PeerError, match=r"^beside_python=.*none' cannot be run"):
        bench.run(config)


def test_one_that_ends_at_once_leaves_its_words(tmp_path: Path) -> None:
    python = stand_in(tmp_path, "import sys\nsys.exit('no such flag')")
    config = tiny_config(tmp_path, beside="llama-server", beside_python=python)
    with pytest.raises(PeerError, match="llama-server did not start: no such flag"):
        bench.run(config)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"beside": "vllm"}, "not one of llama-server, llama-cpp-python"),
        ({"beside": "llama-server", "peer": "http://127.0.0.1:1"}, "give only one of them"),
        ({"beside_python": "python3"}, "name the system too"),
        ({"beside": "llama-server", "devices": ("CPU",)}, "omit devices and rpc_servers"),
        ({"beside": "llama-server", "rpc_servers": ("h:1",)}, "omit devices and rpc_servers"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        tiny_config(tmp_path, **options)


def test_an_interpreter_that_is_a_script_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyllama_spec.bench.beside._LOADING_S", 0.5)
    monkeypatch.setattr("pyllama_spec.bench.beside._END_S", 0.5)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nsleep 600 & echo $! > {shlex.quote(str(tmp_path))}/pid\nwait\n")
    python.chmod(0o755)
    with pytest.raises(PeerError, match="did not serve within"):
        bench.run(tiny_config(tmp_path, beside="llama-server", beside_python=python))
    assert is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    "sends", ["one.sendall(b'garbage\\r\\n\\r\\n')", "_endless(one)"], ids=["garbage", "endless"]
)
def test_a_server_that_speaks_no_http_is_waited_for_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sends: str
) -> None:
    monkeypatch.setattr("pyllama_spec.bench.beside._LOADING_S", 3.0)
    monkeypatch.setattr("pyllama_spec.bench.beside._END_S", 0.5)
    program = (
        "import json, socket, sys, time\n"
        "def _endless(one):\n"
        "    while True:\n"
        "        one.sendall(b'HTTP/1.1 100 Continue\\r\\n\\r\\n')\n"
        "        time.sleep(0.01)\n"
        "with socket.create_server(('127.0.0.1', json.loads(sys.argv[2])['port'])) as server:\n"
        "    while True:\n"
        "        with server.accept()[0] as one:\n"
        f"            {sends}\n"
    )
    with pytest.raises(PeerError, match="did not serve within"):
        bench.run(
            tiny_config(tmp_path, beside="llama-server", beside_python=stand_in(tmp_path, program))
        )
