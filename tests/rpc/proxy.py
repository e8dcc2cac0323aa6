"""A proxy of an RPC server: counts messages by their commands, and can act on each.

It reads the frames of the engine's protocol: a byte for the command, eight for the size, the data.
"""

from __future__ import annotations

import contextlib
import socket
import threading
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
    """Forwards connections to `target`."""

    def __init__(self, target: str) -> None:
        host, port = target.split(":")
        self._target = (host, int(port))
        self.messages: Counter[str] = Counter()
        self.on_command: Callable[[str], None] = lambda name: None
        self._open: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """The proxy's address for rpc_servers."""
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

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
        with contextlib.suppress(OSError, EOFError):
            while True:
                head = _exactly(client, 9)
                name = COMMANDS[head[0]]
                self.on_command(name)
                self.messages[name] += 1
                server.sendall(head)
                size = int.from_bytes(head[1:], "little")
                while size:
                    piece = _exactly(client, min(size, _PIECE))
                    server.sendall(piece)
                    size -= len(piece)
        _end(server)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := server.recv(_PIECE):
                client.sendall(piece)
        _end(client)


def _end(to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        to.shutdown(socket.SHUT_WR)


def _exactly(source: socket.socket, n: int) -> bytes:
    out = b""
    while len(out) < n:
        piece = source.recv(n - len(out))
        if not piece:
            raise EOFError
        out += piece
    return out
