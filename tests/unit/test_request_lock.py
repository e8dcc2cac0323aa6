"""The next owner of a context without a line, at the moments of a change."""

from __future__ import annotations

import pytest

from pyllama_spec.errors import BusyError
from pyllama_spec.requests.request_lock import RequestLock


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
