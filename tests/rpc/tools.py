"""Layer servers in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import TracebackType
from typing import Any

from pyllama_spec import Llama
from tests.models import model_path, perm_continuation, perm_next

PERM_PROMPT = [5, 7, 11, 200]


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Server:
    """`pyllama-spec rpc-server` on loopback; start() again after kill() takes the same port."""

    def __init__(self, *options: str) -> None:
        self.port, self.options = 0, options
        self.start()

    def start(self) -> None:
        """Begins, and waits until it is ready."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyllama_spec.cli", "rpc-server", "--port", str(self.port),
             "-t", "1", *self.options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            # A shell's background jobs ignore it, and what they start does so too.
            preexec_fn=_heed_ctrl_c if os.name == "posix" else None,  # noqa: PLW1509
        )  # fmt: skip
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()
        assert self.ready.startswith("ready: 127.0.0.1:"), (self.ready, self.process.stderr)
        self.port = int(self.ready.split(",")[0].rsplit(":", 1)[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.process.kill()
        self.process.communicate()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Ends it as a user would; its exit code and what it said on stderr."""
        self.process.send_signal(how)
        said = self.process.communicate(timeout=30)[1]
        return self.process.returncode, said

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self.process.poll() is None:
            self.kill()


def perm_text(n: int) -> list[int]:
    """The permutation model's text after PERM_PROMPT."""
    return perm_continuation(PERM_PROMPT[-1], n, perm_next())


def head_path() -> str:
    """A head that the permutation model always agrees with."""
    return str(model_path("perm_eagle3"))


def opened(*addresses: str, **options: Any) -> Llama:
    """The permutation model on these servers, with a head that is always asked."""
    values: dict[str, Any] = {
        "n_gpu_layers": -1, "rpc_servers": list(addresses), "n_ctx": 512, "n_threads": 1,
        "draft": head_path(), "controller": "fixed", "n_draft": 4, "lookup": 0,
    }  # fmt: skip
    return Llama(str(model_path("perm")), **{**values, **options})


def check_whole(llm: Llama, n: int = 30, *, drafts: bool = True) -> None:
    """The text is the permutation's, and all that was drafted is accepted."""
    record = llm.generate_steps(PERM_PROMPT, max_tokens=n, temperature=0.0).read_all()
    assert list(record.tokens) == perm_text(n)
    assert record.stats.reason_off is None and record.stats.accepted == record.stats.drafted
    assert (record.stats.drafted > 0) == drafts
