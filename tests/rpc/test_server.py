"""The server: its command, its end, and hostile clients."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import subprocess
import sys
import threading

import pytest

from pyllama_spec.engine import RpcServer
from tests.models import model_path
from tests.rpc.tools import PERM_PROMPT, Server, opened


def _message(command: int, data: bytes) -> bytes:
    return bytes([command]) + struct.pack("<Q", len(data)) + data


_HELLO = _message(14, bytes(24))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_peace(how: signal.Signals) -> None:
    with Server() as server:
        assert server.ready == f"ready: 127.0.0.1:{server.port}, CPU\n"
        # With a client that is connected, too.
        with socket.create_connection(("127.0.0.1", server.port)):
            assert server.stop(how) == (0, "")


def _talk(address: str) -> None:
    with opened(address) as llm:
        llm(PERM_PROMPT, max_tokens=2)


def test_in_a_process_of_ones_own() -> None:
    notes: list[str] = []
    with RpcServer(port=0, n_threads=1, on_note=notes.append) as server:
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        assert server.is_loopback and server.devices == ("CPU",)
        _talk(server.address)
    thread.join(10)
    assert not thread.is_alive()
    assert any(note.endswith(": connected") for note in notes)
    server.close()


_ATTACKS = (
    b"GET / HTTP/1.1\r\n\r\n",
    _HELLO + bytes([200]) + bytes(8),
    _HELLO + _message(0, struct.pack("<IQ", 99, 1)),  # a buffer on a device that is not there
    _HELLO + _message(4, struct.pack("<Q", 0x1234)),  # frees what it never had
    _HELLO + bytes([6]) + struct.pack("<Q", 2**63),  # a message of 9 EB
    _HELLO + _message(6, b"short"),
    _HELLO + _message(10, struct.pack("<IQI", 0, 1, 2**31)),  # a graph of two thousand millions
    _HELLO + _message(16, struct.pack("<IQ", 0, 77)),  # a graph that was never sent
    _HELLO + _message(8, bytes(316)),
)


def test_clients_that_lie() -> None:
    with Server() as server:
        for attack in _ATTACKS:
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
                client.sendall(attack)
                with contextlib.suppress(OSError):  # it may have hung up already
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(4096):
                        pass
            assert server.process.poll() is None, attack
        _talk(server.address)


def _ask(client: socket.socket, command: int, data: bytes) -> bytes:
    """The answer; empty where the server has hung up."""
    client.sendall(_message(command, data))
    with contextlib.suppress(ConnectionResetError), client.makefile("rb") as source:
        if head := source.read(8):
            return source.read(int.from_bytes(head, "little")) or b""
    return b""


def test_no_listening_for_another_server() -> None:
    """Such a message would make the server listen at all addresses, for anyone."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        Server() as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as client,
    ):
        assert len(_ask(client, 14, bytes(24))) == 28
        assert _ask(client, 20, struct.pack("<4I64x", 0, 0, 2, port)) == b"\0"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=10)


def test_an_operation_without_a_name() -> None:
    with (
        Server() as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as client,
    ):
        assert len(_ask(client, 14, bytes(24))) == 28
        buffer, _ = struct.unpack("<QQ", _ask(client, 0, struct.pack("<IQ", 0, 64)))
        # It is larger than its buffer: the server writes the operation's name into its log.
        tensor = struct.pack("<QIQ4I4II", 1, 0, buffer, 100, 1, 1, 1, 4, 400, 400, 400, 1 << 31)
        assert _ask(client, 8, tensor.ljust(296, b"\0") + bytes(16)) == b""
        assert server.process.poll() is None
        _talk(server.address)


@pytest.mark.posix
def test_a_forked_child_opens_its_own() -> None:
    """The parent's connection has no thread in a child, so waiting for it would never end."""
    with Server() as server:
        code = (
            "import os, sys\n"
            "from pyllama_spec import ForkedError, Llama\n"
            f"keys = dict(n_gpu_layers=-1, rpc_servers=[{server.address!r}], n_ctx=128)\n"
            f"llm = Llama({str(model_path('perm'))!r}, **keys)\n"
            "llm([5], max_tokens=2)\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    try:\n"
            "        llm([5], max_tokens=2)\n"
            "    except ForkedError:\n"
            f"        Llama({str(model_path('perm'))!r}, **keys)([5], max_tokens=2)\n"
            "        os._exit(7)\n"
            "    os._exit(1)\n"
            "status = os.waitpid(child, 0)[1]\n"
            "llm([5], max_tokens=2)\n"
            "sys.exit(os.waitstatus_to_exitcode(status))\n"
        )
        done = subprocess.run([sys.executable, "-c", code], timeout=120, check=False)
        assert done.returncode == 7
