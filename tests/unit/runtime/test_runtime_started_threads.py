"""Calls that a thread makes, or that are refused, where the system gives no further threads."""

import threading

import pytest

from bottomless_server.runtime.base.started_threads import StartedThreads

DEADLINE_SECONDS = 60


def give_no_threads(patch: pytest.MonkeyPatch, given: int = 0) -> None:
    """What the system answers from now on, but to the first few."""
    start, left = threading.Thread.start, given

    def refuse(thread: threading.Thread) -> None:
        nonlocal left
        if not left:
            raise RuntimeError("can't start new thread")
        left -= 1
        start(thread)

    patch.setattr(threading.Thread, "start", refuse)


def test_a_call_that_comes_while_all_threads_are_busy_needs_no_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()
    with StartedThreads(3, "test") as threads:
        busy = threads.submit(gate.wait, DEADLINE_SECONDS)
        give_no_threads(monkeypatch)
        more = [threads.submit(gate.wait, DEADLINE_SECONDS) for _ in range(5)]
        gate.set()
        assert [one.result(DEADLINE_SECONDS) for one in (busy, *more)] == [True] * 6


@pytest.mark.parametrize("given", [0, 2])
def test_a_call_that_was_refused_is_never_made(monkeypatch: pytest.MonkeyPatch, given: int) -> None:
    calls: list[str] = []
    threads = StartedThreads(3, "test")
    with monkeypatch.context() as patch:
        give_no_threads(patch, given)
        with pytest.raises(RuntimeError, match="new thread"):
            threads.submit(calls.append, "refused")

    with pytest.raises(RuntimeError, match="shutdown"):
        threads.submit(calls.append, "later")
    threads.shutdown()
    assert calls == []
