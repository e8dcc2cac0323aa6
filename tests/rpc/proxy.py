"""A proxy of an RPC server: counts messages and bytes, and delays both directions.

It reads the frames of the engine's protocol: a byte for the command, eight for the size, the data.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable

# The engine's enum rpc_cmd, in its order.
COMMANDS = (
    "alloc_buffer", "get_alignment", "get_max_size", "get_base", "free_buffer", "clear",
    "set_tensor", "set_tensor_hash", "get_tensor", "copy_tensor", "graph_compute",
    "get_device_memory", "init_tensor", "get_alloc_size", "hello", "device_count",
    "graph_recompute", "memset_tensor", "set_tensor_2d", "get_tensor_2d", "comm_init",
    "comm_allreduce", "comm_free",
)  # fmt: skip
_PIECE = 1 << 16


class Proxy:
    """Forwards connections to `target`, each byte `delay_s` later.

    Attributes:
        delay_s: the delay, which may change at any time.
        messages: the number of messages to the server by command.
        sent, received: bytes to the server and from it.
        on_command: called with each command's name before it is passed on.

    """

    def __init__(self, target: str, delay_s: float = 0.0) -> None:
        host, port = target.split(":")
        self._target = (host, int(port))
        self.delay_s = delay_s
        self.messages: Counter[str] = Counter()
        self.sent = self.received = 0
        self.on_command: Callable[[str], None] | None = None
        self._open: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """The proxy's address for rpc_servers."""
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def reset(self) -> None:
        """Sets the counts to zero."""
        self.messages.clear()
        self.sent = self.received = 0

    def close(self) -> None:
        """Closes all connections."""
        for one in (self._socket, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._socket.accept()[0]
                server = socket.create_connection(self._target)
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open += [client, server]
                for run in (self._requests, self._answers):
                    threading.Thread(target=run, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        out = self._sender(server)
        with contextlib.suppress(OSError, EOFError):
            while True:
                head = _exactly(client, 9)
                name = COMMANDS[head[0]]
                size = int.from_bytes(head[1:], "little")
                if self.on_command is not None:
                    self.on_command(name)
                self.messages[name] += 1
                self.sent += 9 + size
                out(head)
                while size:
                    piece = client.recv(min(size, _PIECE))
                    if not piece:
                        raise EOFError
                    size -= len(piece)
                    out(piece)
        out(b"")

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        out = self._sender(client)
        with contextlib.suppress(OSError):
            while piece := server.recv(_PIECE):
                self.received += len(piece)
                out(piece)
        out(b"")

    def _sender(self, to: socket.socket) -> Callable[[bytes], None]:
        """Returns a function that sends bytes in order after the delay; b"" ends the stream."""
        waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

        def run() -> None:
            while True:
                due, piece = waiting.get()
                time.sleep(max(due - time.monotonic(), 0.0))
                _send(to, piece)
                if not piece:
                    return

        threading.Thread(target=run, daemon=True).start()
        return lambda piece: waiting.put((time.monotonic() + self.delay_s, piece))


def _send(to: socket.socket, piece: bytes) -> None:
    with contextlib.suppress(OSError):
        if piece:
            to.sendall(piece)
        else:
            to.shutdown(socket.SHUT_RDWR)


def _exactly(source: socket.socket, n: int) -> bytes:
    out = b""
    while len(out) < n:
        piece = source.recv(n - len(out))
        if not piece:
            raise EOFError
        out += piece
    return out
