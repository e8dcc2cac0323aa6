"""Another system's server, started for a benchmark: the same file, threads and context length.

It runs in its own process, and in another interpreter if one is named. The benchmark sends it
requests as to any other server (peer.py).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from pyllama_spec.bench.config import BESIDE, BenchConfig
from pyllama_spec.bench.peer import PeerError, within
from pyllama_spec.gguf.reader import read_key, read_table

# Which drafts have a counterpart there.
_DRAFTS = {
    "llama-server": ("model", "mtp", "eagle3", "dflash", "dspark", "lookup"),
    "llama-cpp-python": ("lookup",),
}
_LOADING_S, _END_S = 300.0, 10.0
# The bytes of a server's output that are searched for its errors.
_MOST_WORDS = 2**20
# The time, the level and the place of a line of llama.cpp's log.
_LOG_HEAD = re.compile(r"^[\d.]+ [A-Z] (\w+ )?\s*\w+: ")
# llama-server serves on without a draft that it cannot use.
_DRAFT_REFUSED = re.compile(r"failed to initialize speculative decoding context[^\n]*")
_PROGRAM = Path(__file__).with_name("other_server.py")


@dataclass(frozen=True, slots=True)
class Server:
    """A server that was started.

    Attributes:
        url: its address.
        pid: its process.
        note: a sentence on the system and its draft.

    """

    url: str
    pid: int
    note: str


class _EndedError(PeerError):
    """The server ended before it served, perhaps because of its draft, or serves without it."""


def draft_kind(draft: object) -> str:
    """The kind of a draft, as other systems name it.

    "model", "mtp", "eagle3", "dflash", "dspark" (a block with a Markov head), "lookup" or "none".
    Prompt lookup and the suffix draft are "lookup"; drafters that only we have are "none".
    """
    named = {"prompt-lookup": "lookup", "suffix": "lookup", "mtp": "mtp"}
    if isinstance(draft, str) and draft in named:
        return named[draft]
    if not isinstance(draft, (str, os.PathLike)) or not Path(draft).is_file():
        return "none"
    key = read_key(Path(draft), "general.architecture")
    kind = {b"eagle3": "eagle3", b"dflash": "dflash"}.get(key.value if key else b"", "model")
    # It has a name of its own in the engine, which lays its tokens out otherwise.
    has_markov = kind == "dflash" and "markov_w1.weight" in read_table(Path(draft)).tensors
    return "dspark" if has_markov else kind


@contextlib.contextmanager
def running(config: BenchConfig, n_ctx: int, n_threads: int) -> Iterator[Server]:
    """Starts the server that config.beside names.

    If it refuses the draft's file, it is started without one, and the note gives the reason.

    Args:
        config: says which system, the interpreter that has it, the model and the first draft.
        n_ctx: its context length.
        n_threads: its threads.

    Raises:
        PeerError: the package is missing or the server does not start; quotes its last output.

    """
    kind = draft_kind(config.draft)
    kind = kind if kind in _DRAFTS[str(config.beside)] else "none"
    is_file = kind in ("model", "eagle3", "dflash", "dspark")
    job: dict[str, Any] = {
        "system": config.beside, "model": str(Path(config.model_path).absolute()), "n_ctx": n_ctx,
        "n_parallel": 1, "cache_ram_mib": 0, "n_threads": n_threads,
        "n_gpu_layers": config.n_gpu_layers, "n_draft": config.n_draft, "p_min": config.p_min,
        "draft_gpu_layers": config.n_gpu_layers
        if config.draft_gpu_layers is None else config.draft_gpu_layers,
        "draft_kind": kind,
        "draft": str(Path(str(config.draft)).absolute()) if is_file else "", "port": free_port(),
    }  # fmt: skip
    python = sys.executable if config.beside_python is None else os.fspath(config.beside_python)
    how = "without a draft" if kind == "none" else f"with its own draft of kind {kind!r}"
    with contextlib.ExitStack() as stack:
        try:
            process = stack.enter_context(serving(python, job))
        except _EndedError as error:
            if kind == "none":
                raise
            plain = {**job, "draft_kind": "none", "draft": ""}
            process = stack.enter_context(serving(python, plain))
            how = f"without a draft, since it refuses this one: {error}"
        note = f"peer: {config.beside}, the same file and threads, {how}"
        yield Server(f"http://127.0.0.1:{job['port']}", process.pid, note)


@contextlib.contextmanager
def serving(python: str, job: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """Starts other_server.py with a job, and waits until it serves.

    Args:
        python: the interpreter that has the other system's package.
        job: system, model, port, n_ctx (per slot), n_parallel, cache_ram_mib (None for its
            default), n_threads, n_gpu_layers, draft_gpu_layers, draft_kind, draft, n_draft, p_min.

    Raises:
        PeerError: see running().

    """
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                [python, str(_PROGRAM), json.dumps(job)],
                stdin=subprocess.PIPE, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:  # a path with a null byte is a ValueError
            raise PeerError(f"beside_python={python!r} cannot be run: {error}") from None
        try:
            _wait_for(f"http://127.0.0.1:{job['port']}", process, said, job["system"])
            refused = _DRAFT_REFUSED.search(_words(said))
            if job["draft_kind"] != "none" and refused:
                raise _EndedError(f"{job['system']} serves without it: {refused[0]}")
            yield process
        finally:
            _end(process)


def _wait_for(url: str, process: subprocess.Popen[bytes], said: Any, system: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = monotonic() + _LOADING_S
    while monotonic() < until:
        if process.poll() is not None:
            raise _ended(system, _words(said), process.returncode)
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            within(until - monotonic(), lambda: opener.open(f"{url}/v1/models", timeout=5).close())
            return
        sleep(0.1)
    raise PeerError(f"{system} did not serve within {_LOADING_S:.0f} s")


def _words(said: Any) -> str:
    """The beginning of what the server wrote."""
    # Not seek(): the server writes at the same place.
    return os.pread(said.fileno(), _MOST_WORDS, 0).decode(errors="replace")


def _ended(system: str, words: str, code: int) -> PeerError:
    """The reason why the server ended: the first line of its log about an error."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    said = _LOG_HEAD.sub("", (errors or lines or [f"exit code {code}"])[0])
    message = f"{system} did not start: {said}"
    if "ModuleNotFoundError" in said:
        return PeerError(
            f'{message}; pip install "{BESIDE[system]}", or name the Python that has it with '
            "--beside-python"
        )
    return _EndedError(message)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        if sys.platform == "win32":
            process.kill()
        else:  # with what it started: an interpreter may be a script
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
