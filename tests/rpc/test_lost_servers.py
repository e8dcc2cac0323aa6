"""A server that exits, refuses, hangs or lies raises a clear error, and the text is kept."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from pyllama_spec import ClosedError, Llama, RemoteError
from pyllama_spec.engine import set_rpc_timeout
from tests.models import model_path
from tests.rpc.proxy import Proxy
from tests.rpc.tools import PERM_PROMPT, Server, check_whole, head_path, opened, perm_text


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as one:
        yield one


def trap(server: Server, n_graphs: int) -> Callable[[str], None]:
    """Kills the server when its n-th graph is on its way."""
    graphs = iter(range(1, n_graphs + 1))

    def on_command(name: str) -> None:
        if name in ("graph_compute", "graph_recompute") and next(graphs, None) == n_graphs:
            server.process.kill()

    return on_command


def lose(llm: Llama, prompt: list[int]) -> RemoteError:
    with pytest.raises(RemoteError) as caught:
        llm.generate_steps(prompt, max_tokens=60, temperature=0.0).read_all()
    return caught.value


def check_goes_on(server: Server) -> None:
    """After the server's return a model that is opened again answers."""
    server.process.communicate()
    with pytest.raises(RemoteError):
        opened(server.address)
    server.start()
    with opened(server.address) as llm:
        check_whole(llm)


# A graph of a target: the whole prompt, then one for each round; head and target: several.
@pytest.mark.parametrize(
    ("n_graphs", "head"), [(1, None), (4, None), (8, -1)], ids=["prefill", "decode", "draft"]
)
def test_a_killed_server(server: Server, n_graphs: int, head: int | None) -> None:
    with (
        closing(Proxy(server.address)) as proxy,
        opened(proxy.address, draft_gpu_layers=head) as llm,
    ):
        proxy.on_command = trap(server, n_graphs)
        error = lose(llm, PERM_PROMPT)
        known = list(error.partial_tokens)
        assert known == perm_text(60)[: len(known)]
        assert bool(known) == (n_graphs > 1) == bool(error.partial_text)
        # Nothing is tried again on what is lost, and closing it is silent.
        with pytest.raises(RemoteError):
            llm(PERM_PROMPT, max_tokens=2)
    check_goes_on(server)


@pytest.mark.parametrize("act", ["save", "load", "read"])
def test_a_server_that_is_lost_between_requests(server: Server, act: str) -> None:
    """Copies from and to it between requests: states, and logits that wait there."""
    with opened(server.address, draft=None, controller=None, n_draft=None, lookup=None) as llm:
        llm.eval(PERM_PROMPT)
        state = llm.save_state()
        server.kill()
        with pytest.raises(RemoteError):
            if act == "save":
                llm.save_state()
            elif act == "load":
                llm.load_state(state)
            else:
                llm.reset()
                llm.eval(PERM_PROMPT)


def test_a_lost_draft_is_the_drafters_failure(server: Server) -> None:
    """The target is local, so the text continues without the draft."""
    from pyllama_spec.drafters import Eagle3

    head = Eagle3(head_path(), 4, n_gpu_layers=-1, rpc_servers=[server.address])
    with head, Llama(
        str(model_path("perm")), draft=head, controller="fixed", n_ctx=256, n_threads=1
    ) as llm:  # fmt: skip
        generation = llm.generate_steps(PERM_PROMPT, max_tokens=40, temperature=0.0)
        next(generation)
        server.kill()
        for _ in generation:
            pass
        assert list(generation.record.tokens) == perm_text(40)
        assert "was lost" in str(generation.record.stats.reason_off)


@pytest.fixture
def short_patience() -> Iterator[None]:
    set_rpc_timeout(1)
    yield
    set_rpc_timeout(300)


@pytest.mark.usefixtures("short_patience")
def test_a_server_that_hangs(server: Server) -> None:
    with opened(server.address) as llm:
        llm(PERM_PROMPT, max_tokens=2)
        server.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(RemoteError):
            llm(PERM_PROMPT[::-1], max_tokens=20)
        with pytest.raises(RemoteError):
            opened(server.address)
        assert time.monotonic() - begin < 30
    server.process.send_signal(signal.SIGCONT)
    with opened(server.address) as llm:  # it has hung up on the lost ones
        llm(PERM_PROMPT, max_tokens=2)


@pytest.mark.parametrize("what", ["text", "vector"])
def test_close_does_not_wait_for_a_server_that_hangs(server: Server, what: str) -> None:
    """Else it would wait for the timeout of five minutes."""
    more: Any = {"embedding": True, "pooling_type": "mean"} if what == "vector" else {}
    llm = opened(server.address, **more)
    ask: Any = llm.embed if what == "vector" else partial(llm.create_completion, max_tokens=20)
    ask("the cat")
    server.process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, "another one")
        with pytest.raises(TimeoutError):
            asked.result(0.5)
        begin = time.monotonic()
        llm.close()
        assert time.monotonic() - begin < 30
        with pytest.raises(ClosedError):
            asked.result(30)
    server.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def interrupted(after_s: float) -> Iterator[None]:
    """Sends Ctrl-C after a delay; it has to be handled within about a second."""
    begin: list[float] = []

    def interrupt() -> None:
        time.sleep(after_s)
        begin.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    # A shell that runs this in the background has it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begin[0] < 3  # one, and some for a busy machine


def test_ctrl_c_while_a_server_hangs(server: Server) -> None:
    """Ctrl-C works in a request, and while a model is opened."""
    with opened(server.address) as llm:
        llm(PERM_PROMPT, max_tokens=2)
        server.process.send_signal(signal.SIGSTOP)
        with interrupted(1.0):
            llm(PERM_PROMPT[::-1], max_tokens=20)
        # What may still come on that connection is nobody's.
        with pytest.raises(RemoteError):
            llm(PERM_PROMPT, max_tokens=2)
    for_ever = socket.create_server(("127.0.0.1", 0))  # it accepts, and sends nothing
    for address in (server.address, f"127.0.0.1:{for_ever.getsockname()[1]}"):
        with interrupted(1.0):
            opened(address)
    for_ever.close()
    server.process.send_signal(signal.SIGCONT)
    with opened(server.address) as llm:
        llm(PERM_PROMPT, max_tokens=2)


def liar(answer: Callable[[int, int], bytes | None]) -> tuple[str, socket.socket]:
    """Something that accepts the greeting, and answers (command, size) with what it likes."""
    listening = socket.create_server(("127.0.0.1", 0))

    def talk(one: socket.socket) -> None:
        with contextlib.suppress(OSError), one, one.makefile("rb") as source:
            while head := source.read(9):
                size = int.from_bytes(head[1:], "little")
                source.read(size)
                data = answer(head[0], size)
                if data is None:
                    return
                one.sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"127.0.0.1:{listening.getsockname()[1]}", listening


def framed(*values: int) -> bytes:
    return struct.pack("<Q", 8 * len(values)) + struct.pack(f"<{len(values)}Q", *values)


_HELLO = struct.pack("<Q4B24x", 28, 8, 0, 0, 0)
_ONE = struct.pack("<QI", 4, 1)
_KNOWN = {
    14: _HELLO, 15: _ONE, 11: framed(2**40, 2**40), 1: framed(32), 2: framed(2**40),
}  # fmt: skip


@pytest.mark.usefixtures("short_patience")
@pytest.mark.parametrize(
    "answers",
    [
        {}, {14: b"HTTP/1.1 400 Bad Request\r\n\r\n"}, {14: _HELLO},
        {14: struct.pack("<Q4B24x", 28, 99, 0, 0, 0)}, {14: _HELLO, 15: framed(1)},
        *({14: _HELLO, 15: struct.pack("<QI", 4, n)} for n in (0, 2**32 - 1)),
        *({**_KNOWN, 1: framed(alignment)} for alignment in (0, 3)),
        {**_KNOWN, 2: framed(0)}, {**_KNOWN, 0: framed(7, 1)},
        {**_KNOWN, 0: framed(7, 2**40), 3: framed(0)},
    ],
    ids=range(12),
)  # fmt: skip
def test_a_server_that_lies(answers: dict[int, bytes]) -> None:
    """About its version, its devices, their alignment, their buffers or an address."""
    address, listening = liar(lambda command, _: answers.get(command))
    with closing(listening), pytest.raises(RemoteError):
        opened(address, draft=None, lookup=None)
