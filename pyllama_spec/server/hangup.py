"""SIGHUP rereads the keys and the certificate, and does not end the server.

systemd's ExecReload and logrotate send SIGHUP to have a file read again. A closing terminal sends
it too: a server started there stops then, unless it ignores the signal, as under nohup.
"""

from __future__ import annotations

import os
import signal
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from pyllama_spec.engine.closeable import Closeable
from pyllama_spec.files import check_no_pipe
from pyllama_spec.server.serving import log

# Windows has no such signal.
_SIGNAL: signal.Signals | None = getattr(signal, "SIGHUP", None)


class Hangup(Closeable):
    """Catches SIGHUP for a whole server program, and keeps it until serve() reads it.

    It does nothing outside the main thread, or inside another Hangup: the outer one applies.
    """

    def __init__(self) -> None:
        self._heed: Callable[[bool], None] | None = None
        self._has_come = self._ends_with_terminal = False
        self._before: Any = None

    def __enter__(self) -> Hangup:
        """Returns the active Hangup, which may be an outer one."""
        if _SIGNAL is None or threading.current_thread() is not threading.main_thread():
            return self
        before = signal.getsignal(_SIGNAL)
        outer = getattr(before, "__self__", None)
        if isinstance(outer, Hangup):
            return outer
        self._before = before
        self._ends_with_terminal = before is not signal.SIG_IGN and _has_terminal()
        signal.signal(_SIGNAL, self._come)
        return self

    def close(self) -> None:
        """Restores the previous handler of SIGHUP."""
        if self._before is not None and _SIGNAL is not None:
            signal.signal(_SIGNAL, self._before)
            self._before = None

    def heed(self, call: Callable[[bool], None] | None) -> None:
        """Calls a function at each SIGHUP from now on; at once for an earlier one.

        Args:
            call: receives whether the server must stop; None keeps later signals again.

        """
        self._heed = call
        if call is not None and self._has_come:
            self._has_come = False
            call(self._is_over())

    def _come(self, sig: int, frame: FrameType | None) -> None:
        if self._heed is None:
            self._has_come = True
        else:
            self._heed(self._is_over())

    def _is_over(self) -> bool:
        return self._ends_with_terminal and not _has_terminal()


def _has_terminal() -> bool:
    """Whether the process's terminal still exists."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def read_certificate_again(
    context: ssl.SSLContext, certificate: Path | None, key: Path | None
) -> None:
    """Reloads the TLS files for new connections, and logs it.

    If they do not match, the old ones stay.
    """
    if certificate is None:
        return
    try:
        for path in (certificate, key):
            if path is not None:
                check_no_pipe(path)
        # Apart first: what fails halfway would leave a certificate without its key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        context.load_cert_chain(certificate, key)
    except OSError as error:  # of ssl, too
        log.warning("SIGHUP: the certificate stays as it was: %s", error)
        return
    log.info("SIGHUP: the certificate was read again; connections that are open keep the old one")
