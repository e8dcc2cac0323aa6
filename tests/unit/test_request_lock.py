"""Who may compute next, at the moments in which it changes."""

from __future__ import annotations

import threading

import pytest

from pyllama_spec.requests.request_lock import Lease, RequestLock


def opened() -> RequestLock:
    return RequestLock(lambda is_interrupted: None)


def taken(lock: RequestLock) -> Lease:
    lease = Lease()
    lock.acquire(lease)
    return lease


def in_a_thread(lock: RequestLock) -> tuple[threading.Thread, threading.Event]:
    """A thread that takes the turn and gives it back; and whether it had it."""
    had = threading.Event()

    def take() -> None:
        lease = taken(lock)
        had.set()
        lock.release(lease)

    thread = threading.Thread(target=take, daemon=True)
    return thread, had


def test_the_turn_is_given_back_while_a_waiter_wakes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its patience is over, and before it looks the one that it waits for is gone."""
    lock = opened()
    lease = taken(lock)
    thread, had = in_a_thread(lock)
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: errors.append(args.exc_value))

    def wait(patience: float) -> bool:
        lock.release(lease)
        return False

    monkeypatch.setattr(lock._condition, "wait", wait)
    thread.start()
    thread.join(10)
    assert had.is_set()
    assert not errors


def test_what_settles_a_dropped_request_is_over_before_the_next_one_begins() -> None:
    """Two threads in one context would be refused, and the request that began is right."""
    lock = opened()
    lock.release(taken(lock), is_dropped=True)
    thread, had = in_a_thread(lock)

    def pause() -> None:
        thread.start()
        assert not had.wait(0.2)

    lock.settle(pause)
    assert had.wait(10)
    thread.join(10)


def test_nothing_is_settled_under_a_running_request() -> None:
    lock = opened()
    lease = taken(lock)
    lock.settle(lambda: pytest.fail("the turn is taken"))
    lock.release(lease)
