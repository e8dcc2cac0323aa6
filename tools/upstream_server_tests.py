"""The tests of the engine's own server, against ours under its flags.

    python -m tools.upstream_server_tests [--work DIR] [--json OUT.json] [FILE ...]

The tests lie in the source package that vendor/sync.py fetches. They are unpacked beside and run as
they are, with LLAMA_SERVER_BIN_PATH naming a script that starts ours, and tiny random models in the
place of those that they take from the hub. Their tests marked slow, which need models of gigabytes,
are left out, as they are there without SLOW_TESTS. What is printed: a line for each file, and for
each test that does not pass the reason. FILE: such as test_basic.py; all without one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import traceback
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyllama_spec.llama
import pyllama_spec.server.app
import pyllama_spec.server.process  # noqa: F401 - what each server needs, once for all forks
from pyllama_spec.server import llama_server
from tests.models import model_path
from tests.upstream.run import ROOT, archive

_TESTS = "tools/server/tests"
# What they read beside their own folder.
_BESIDE = ("models/templates",)
_PORT = 18990
# Models of the hub, and what stands in for each: none of them can be had here.
_STAND_INS = {
    "stories260K": "llama", "stories15M_MOE": "qwen3moe", "bert-bge-small": "bert",
    "jina-reranker": "reranker",
}  # fmt: skip
# Started in the place of llama-server: has the server that waits fork one, and stands for it. It
# imports next to nothing, as each of their tests starts a server or more.
_LAUNCHER = """#!{python} -IS
import json, os, signal, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect({socket!r})
told = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(link, [len(told).to_bytes(4, "big")], [1, 2])
link.sendall(told)
child = int.from_bytes(link.recv(4, socket.MSG_WAITALL), "big")
for one in (signal.SIGTERM, signal.SIGINT):
    signal.signal(one, lambda number, frame: os.kill(child, number))
code = link.recv(1)
os._exit(code[0] if code else 1)
"""
# Read by pytest there: models are not fetched before the tests, but stood in for as they are asked.
_PLUGIN = '''import shutil
import sys
import types


def download(url, out):
    """A file of the hub that a test asks for itself."""
    if not url.endswith(".gguf"):
        raise OSError(f"no stand-in for {{url}}")
    shutil.copyfile({model!r}, out)


sys.modules["wget"] = types.SimpleNamespace(download=download)


def pytest_collection_modifyitems(items):
    import utils
    utils.ServerPreset.load_all = staticmethod(lambda: None)
'''
# Why a test cannot pass here, by a pattern of its name.
_REASONS: tuple[tuple[str, str], ...] = ()


class Outcome(NamedTuple):
    """How one of their tests ended.

    Attributes:
        file: of the test.
        name: of it, with its parameters.
        state: passed, failed or skipped.
        why: what it says, where it did not pass.

    """

    file: str
    name: str
    state: str
    why: str


def unpack(work: Path) -> Path:
    """The folder of their tests, below a folder that is made once."""
    file, folder = archive()
    tests = work / _TESTS
    if not tests.exists():
        with tarfile.open(file) as package:
            for member in package:
                inner = member.name.removeprefix(f"{folder}/")
                if member.isfile() and inner.startswith((f"{_TESTS}/", *_BESIDE)):
                    target = work / inner
                    target.parent.mkdir(parents=True, exist_ok=True)
                    data = package.extractfile(member)
                    assert data is not None
                    target.write_bytes(data.read())
    return tests


def prepare(tests: Path) -> Path:
    """Writes the launcher and the plugin; the path of the launcher."""
    launcher = tests / "llama-server"
    launcher.write_text(_LAUNCHER.format(python=sys.executable, socket=str(_socket(tests))))
    launcher.chmod(0o755)
    plugin = _PLUGIN.format(model=str(model_path("llama")))
    (tests / "stand_ins.py").write_text(plugin, encoding="utf-8")
    (tests / "tmp").mkdir(exist_ok=True)
    return launcher


def _socket(tests: Path) -> Path:
    return tests / "waiting.sock"


def wait_for_launches(tests: Path, texts: Path | None) -> None:
    """Forks a server for each launcher that asks, until this process is told to end."""
    _socket(tests).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(_socket(tests)))
        listener.listen(16)
        while True:
            link, _ = listener.accept()
            head, streams, _, _ = socket.recv_fds(link, 4, 2)
            told = link.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
            child = os.fork()
            if not child:
                listener.close()
                _serve_instead(json.loads(told), streams, texts)
            for one in streams:
                os.close(one)
            threading.Thread(target=_look_after, args=(link, child), daemon=True).start()


def _serve_instead(told: Any, streams: list[int], texts: Path | None) -> None:
    """In the fork: what the launcher was asked for, in its place."""
    arguments, environment, folder = told
    code = 1
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for number, stream in zip((1, 2), streams, strict=True):
            os.dup2(stream, number)
        code = llama_server.main(with_stand_ins(arguments, texts))
    except BaseException:  # noqa: BLE001 - whatever it is, it is this fork's end
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _look_after(link: socket.socket, child: int) -> None:
    """Tells the launcher its server's process, and how that ended; ends it with the launcher."""
    link.sendall(child.to_bytes(4, "big"))
    with suppress(OSError):
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                link.sendall(bytes([os.waitstatus_to_exitcode(status) & 255]))
                break
            if select.select([link], [], [], 0.02)[0]:  # it says nothing more: it was killed
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                break
    link.close()


def with_stand_ins(arguments: Sequence[str], texts: Path | None = None) -> list[str]:
    """A command line with a file in the place of what it names of the hub.

    Args:
        arguments: of llama-server.
        texts: the model of texts; None for a tiny one.

    """
    words, given, asked = list[str](), iter(arguments), ""
    for word in given:
        if word in ("--hf-repo", "--hf-file"):
            asked += f"{next(given)} "
        else:
            words.append(word)
    if asked:
        kinds = [kind for name, kind in _STAND_INS.items() if name in asked]
        found = [texts if texts and kind == "llama" else model_path(kind) for kind in kinds]
        words += ["--model", str(found[0]) if found else f"no-stand-in-for:{asked.strip()}"]
    return words


def run_file(tests: Path, launcher: Path, file: str, timeout_s: int) -> list[Outcome]:
    """Runs one file of theirs."""
    report = tests / "report.xml"
    report.unlink(missing_ok=True)
    environment = {
        **os.environ, "LLAMA_SERVER_BIN_PATH": str(launcher), "PORT": str(_PORT),
        "PYTHONPATH": str(tests), "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "pytest", f"unit/{file}", "-q", "-m", "not slow", "-p", "stand_ins",
        "-p", "no:cacheprovider", f"--junitxml={report}", f"--timeout={timeout_s}",
        "--timeout-method=signal", "-o", "junit_logging=system-out",
    ]  # fmt: skip
    subprocess.run(command, cwd=tests, env=environment, capture_output=True, check=False)
    if not report.exists():
        return [Outcome(file, "(the file)", "failed", "pytest could not run it")]
    return [_outcome(file, case) for case in ET.parse(report).iter("testcase")]


def _outcome(file: str, case: ET.Element) -> Outcome:
    name = case.get("name", "")
    for child in case:
        if child.tag in ("failure", "error"):
            log = case.findtext("system-out") or ""
            why = _why(child.get("message") or "", child.text or "", log)
            return Outcome(file, name, "failed", why)
        if child.tag == "skipped":
            return Outcome(file, name, "skipped", child.get("message") or "")
    return Outcome(file, name, "passed", "")


def _why(message: str, text: str, log: str) -> str:
    """The line that failed, and what was wrong with it."""
    told = re.findall(r"llama-server: error: (.*)", log)
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith(">")]
    parts = [*lines[-1:], message.splitlines()[0] if message else "", *told[:1]]
    return " | ".join(part for part in parts if part)[:300]


def known_reason(outcome: Outcome) -> str | None:
    """Why a test cannot pass here; None where nobody has said so."""
    place = f"{outcome.file}::{outcome.name}"
    return next((why for pattern, why in _REASONS if re.search(pattern, place)), None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 where a test fails without a known reason."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "upstream-server-tests")
    parser.add_argument("--json", type=Path, default=None, metavar="OUT.json")
    parser.add_argument("--timeout", type=int, default=120, metavar="S", help="of one test")
    parser.add_argument("--model", type=Path, default=None, metavar="GGUF",
                        help="a model of texts in the place of theirs [a tiny one]")  # fmt: skip
    parser.add_argument("--wait", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    tests = unpack(args.work.resolve())
    if args.wait:
        wait_for_launches(tests, args.model)
    launcher = prepare(tests)
    command = [sys.executable, "-m", "tools.upstream_server_tests", "--wait"]
    command += ["--work", str(args.work.resolve())]
    command += [] if args.model is None else ["--model", str(args.model.resolve())]
    waiting = subprocess.Popen(command, cwd=ROOT)
    try:
        return _run(args, tests, launcher)
    finally:
        waiting.kill()
        waiting.wait()


def _run(args: argparse.Namespace, tests: Path, launcher: Path) -> int:
    files = args.files or sorted(one.name for one in (tests / "unit").glob("test_*.py"))
    outcomes: list[Outcome] = []
    for file in files:
        ended = run_file(tests, launcher, file, args.timeout)
        outcomes += ended
        n = Counter(one.state for one in ended)
        print(f"{file}: {n['passed']} of {len(ended)} passed", flush=True)
        for one in ended:
            if one.state != "passed":
                print(f"  {one.state} {one.name}: {known_reason(one) or one.why}", flush=True)
    n = Counter(one.state for one in outcomes)
    print(f"{n['passed']} of {len(outcomes)} passed, {n['failed']} failed, {n['skipped']} skipped")
    if args.json is not None:
        rows = [one._asdict() | {"reason": known_reason(one)} for one in outcomes]
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(any(one.state == "failed" and known_reason(one) is None for one in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
