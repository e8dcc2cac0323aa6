"""RPC servers: other processes or machines that hold and compute layers; see docs/rpc.md."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pyllama_spec.engine.binding import check, ffi, last_error, lib
from pyllama_spec.engine.checks import count, real, text
from pyllama_spec.engine.system import Device, bounded_n_threads, device_names, devices
from pyllama_spec.errors import ArgumentError, UnsupportedError

DEFAULT_PORT = 50052
MAX_SERVERS = 16  # GGML_RPC_MAX_SERVERS
_MAX_WAIT_S = 5.0  # for a client's running call when the server ends
_BACKLOG = 128  # clients that connect during an accept() wait here
_PAUSE_S = 0.1


def require_rpc() -> None:
    """Raises UnsupportedError where the build has none."""
    if not lib.llama_spec_has_rpc():
        raise UnsupportedError(
            "this build of the engine has no RPC (GGML_RPC is OFF): install it without that flag, "
            "or with -C cmake.define.GGML_RPC=ON"
        )


def server_names(servers: Sequence[str] | None) -> list[Any]:
    """The endpoints as a C array; keep it while the engine reads it."""
    if servers is None:
        return []
    if isinstance(servers, (str, bytes)) or not isinstance(servers, Sequence):
        raise ArgumentError("rpc_servers", servers, "a list of 'host:port'")
    if not 1 <= len(servers) <= MAX_SERVERS:
        raise ArgumentError("rpc_servers", servers, f"1 to {MAX_SERVERS} entries")
    for i, one in enumerate(servers):
        host, _, port = text(one, f"rpc_servers[{i}]").partition(":")
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
            raise ArgumentError(f"rpc_servers[{i}]", one, "'host:port'")
    if len(set(servers)) < len(servers):
        raise ArgumentError("rpc_servers", servers, "each server once")
    require_rpc()
    return [ffi.new("char[]", one.encode()) for one in servers]


def set_rpc_timeout(seconds: float) -> None:
    """Sets the timeout of an answer on connections that this process opens from now on.

    A server is silent while it computes: the longest wait is a whole batch of a prompt.
    """
    seconds = real(seconds, "rpc_timeout", 1.0)
    lib.llama_spec_set_server_timeout(min(int(seconds), 10**6))


def server_devices(endpoint: str) -> tuple[Device, ...]:
    """The devices of a server."""
    (address,) = server_names([endpoint])
    devices: list[Device] = []
    name, free, total = ffi.new("char **"), ffi.new("uint64_t *"), ffi.new("uint64_t *")
    while True:
        code = lib.llama_spec_server_device(address, len(devices), name, free, total)
        check(code, "cannot read a server's devices")
        if name[0] == ffi.NULL:
            return tuple(devices)
        called = ffi.string(name[0]).decode(errors="replace")
        devices.append(Device(called, f"on {endpoint}", free[0], total[0]))


class RpcServer:
    """Holds and computes layers for clients. The constructor starts to listen.

    Args:
        host: the address to listen on. Anyone who can reach an address other than loopback can use
            this machine's memory and read the computed data.
        port: the port; 0 for any free one.
        devices: names of the devices to offer; None for the GPUs, or for the CPU if there is none.
        n_threads: CPU threads for each client; None for the physical cores.
        on_note: called in the client's thread with a line for each client that connects,
            disconnects or fails.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        devices: Sequence[str] | None = None,
        n_threads: int | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        require_rpc()
        port = count(port, "port", 0, 65535)
        self.devices = _offered(devices)
        self._names = device_names(self.devices)
        self._n_threads = bounded_n_threads(n_threads)
        self._on_note = on_note
        self._is_closed = False
        self._lock = threading.Lock()
        self._clients: dict[threading.Thread, socket.socket] = {}
        try:
            address = socket.gethostbyname(_named(host))
            self._socket = socket.create_server((address, port), backlog=_BACKLOG)
        except (OSError, UnicodeError) as error:
            # Not create_server()'s own message, which repeats the address.
            number = getattr(error, "errno", None)
            why = os.strerror(number) if number and number > 0 else str(error)
            raise ArgumentError(
                problem=f"cannot listen at {host}:{port}: {why}",
                remedy="choose another `port` or `host`",
            ) from None
        self.host, self.port = address, int(self._socket.getsockname()[1])

    def __enter__(self) -> RpcServer:
        """Returns the server."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the server."""
        self.close()

    @property
    def address(self) -> str:
        """The server's address for rpc_servers on this machine."""
        return f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return ipaddress.ip_address(self.host).is_loopback

    def serve(self) -> None:
        """Serves clients in parallel until close() is called or an exception arrives."""
        while True:
            try:
                client, (host, port) = self._socket.accept()
            except OSError:  # closed, or no descriptor is left
                if self._is_closed:
                    return
                time.sleep(_PAUSE_S)
                continue
            try:
                self._start(client, f"{host}:{port}")
            except (OSError, RuntimeError) as error:  # no files or threads are left
                client.close()
                self._note(f"{host}:{port}: refused: {error}")

    def _start(self, client: socket.socket, peer: str) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A client whose machine is gone would keep its layers here without end.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        thread = threading.Thread(target=self._answer, args=(client, peer), daemon=True)
        with self._lock:
            self._clients[thread] = client
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                del self._clients[thread]
            raise

    def _answer(self, client: socket.socket, peer: str) -> None:
        try:
            self._note(f"{peer}: connected")
            self._note(f"{peer}: {self._serve(client)}")
        except OSError as error:  # no descriptors are left
            self._note(f"{peer}: refused: {error}")
        finally:
            with self._lock:
                self._clients.pop(threading.current_thread(), None)
            client.close()

    def _serve(self, client: socket.socket) -> str:
        # The engine closes the copy; the other one lets close() end the conversation.
        copy = client.dup().detach()
        names = ffi.new("char *[]", self._names)
        code = lib.llama_spec_serve(copy, names, len(self._names), self._n_threads)
        return f"failed: {last_error()}" if code < 0 else "gone"

    def _note(self, line: str) -> None:
        if self._on_note is not None:
            self._on_note(line)

    def close(self) -> None:
        """Stops listening and disconnects; clients see a lost server. May be called twice."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept() in another thread
        self._socket.close()
        with self._lock:
            clients = dict(self._clients)
        for client in clients.values():
            _hang_up(client)
        for thread in clients:
            # A signal may have come between its being noted and its start.
            with contextlib.suppress(RuntimeError):
                thread.join(_MAX_WAIT_S)


def _hang_up(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


def _named(host: str) -> str:
    """The host; refuses an empty name, which means every address of this machine."""
    if not text(host, "host"):
        raise ArgumentError("host", host, "127.0.0.1, or 0.0.0.0 to be reached from anywhere")
    return host


def _offered(wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the offered devices: those wanted, else the GPUs, else the CPU."""
    known = [device.name for device in devices()]
    if wanted is not None:
        for name in wanted:
            if name not in known:
                raise ArgumentError("devices", name, f"some of {', '.join(known)}")
        if len(set(wanted)) < len(wanted):
            raise ArgumentError("devices", wanted, "each device once")
        return tuple(wanted)
    gpus = tuple(name for name in known if name not in ("CPU", "BLAS"))
    return gpus if gpus and lib.llama_spec_supports_gpu() else ("CPU",)
