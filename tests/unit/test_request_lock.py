"""The next owner of a context without a line, at the moments of a change."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyllama_spec.errors import BusyError, CancelledError, ClosedError
from pyllama_spec.requests.request_lock import RequestLock


class Interrupts:
    """A context that notes what is said to it."""

    def __init__(self) -> None:
        self.is_interrupted, self.said = threading.Event(), list[bool]()

    def __call__(self, value: bool) -> None:
        self.said.append(value)
        if value:
            self.is_interrupted.set()
        else:
            self.is_interrupted.clear()


def compute(lock: RequestLock, context: Interrupts, entered: threading.Event) -> None:
    """A decode that ends when it is interrupted."""
    with lock.exclusive():
        entered.set()
        assert context.is_interrupted.wait(60)
        raise CancelledError("the decode was interrupted")


def test_one_thread_at_a_time() -> None:
    lock, inside, most = RequestLock(lambda value: None), 0, 0

    def turn() -> None:
        nonlocal inside, most
        for _ in range(50):
            with lock.exclusive():
                inside += 1
                most = max(most, inside)
                inside -= 1

    with ThreadPoolExecutor(8) as pool:
        for one in [pool.submit(turn) for _ in range(8)]:
            one.result(timeout=60)
    assert most == 1


def test_cancel_ends_what_runs_and_not_what_comes() -> None:
    context = Interrupts()
    lock, entered = RequestLock(context), threading.Event()
    lock.cancel()
    assert context.said == []
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(compute, lock, context, entered)
        assert entered.wait(60)
        lock.cancel()
        with pytest.raises(CancelledError):
            running.result(timeout=60)
    with lock.exclusive():
        assert not context.is_interrupted.is_set()


def test_close_ends_who_computes_and_who_waits() -> None:
    context = Interrupts()
    lock, entered = RequestLock(context), threading.Event()
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(compute, lock, context, entered)
        assert entered.wait(60)
        waiting = [pool.submit(compute, lock, context, entered) for _ in range(2)]
        assert lock.close()
        for one in (running, *waiting):
            with pytest.raises(ClosedError):
                one.result(timeout=60)
    assert not lock.close()
    assert context.is_interrupted.is_set(), "a closed context stays as it is"


def test_a_thread_does_not_wait_for_itself() -> None:
    lock = RequestLock(lambda value: None)
    with lock.exclusive():
        with pytest.raises(BusyError), lock.exclusive():
            pass
        with pytest.raises(BusyError):
            lock.close()
    with lock.exclusive():
        pass
    assert lock.close()
