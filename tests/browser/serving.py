"""A server in a process of its own, and what it answers to the same request without a browser."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

_READY_S = 120.0
_POLL_S = 0.1


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


class Server:
    """`pyllama-spec serve`; it listens when the constructor returns.

    `model` is a file of models, as for --config, where `draft` is "".
    """

    def __init__(
        self, model: Path, draft: str, *options: str, port: int | None = None, key: str = ""
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._key = key
        served = ["-m", str(model), "-d", draft] if draft else ["--config", str(model)]
        self._command = [
            sys.executable, "-m", "pyllama_spec.cli", "serve", *served, "--port", str(self.port),
            *options,
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        """Starts it, for the first time or again."""
        variables = dict(os.environ)
        variables.pop("PYLLAMA_SPEC_API_KEY", None)
        if self._key:
            variables["PYLLAMA_SPEC_API_KEY"] = self._key
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            self._command, stdout=self._log, stderr=subprocess.STDOUT, env=variables
        )
        end = time.monotonic() + _READY_S
        while not self._listens():
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise RuntimeError(f"the server did not begin:\n{self.log()}")
            time.sleep(_POLL_S)

    def _listens(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
            return True
        return False

    def log(self) -> str:
        """The server's output so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def kill(self) -> None:
        """Ends it as a crash would: connections break."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def chat(self, question: str, **more: Any) -> dict[str, Any]:
        """A whole answer, as a program gets it."""
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, **more}
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=600) as answer:
            whole: dict[str, Any] = json.load(answer)
            return whole

    def text(self, question: str, **more: Any) -> str:
        """The text of that answer."""
        return str(self.chat(question, **more)["choices"][0]["message"]["content"])
