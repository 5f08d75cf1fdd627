"""What holds a run up is ended: a test has a limit, also where it only ends, and its process a later one.

The limit is that of pytest-timeout, which raises in the test. Alone it leaves three ways to wait for ever:
it counts no more once a test has failed, so what that left may never end; what it raises within a task is
caught by that task, which may be any of them; and nothing can be raised in a call that gives way to nobody.
"""

import asyncio
import faulthandler
import gc
import os
import sys
from collections.abc import Generator, Iterator
from typing import Any, Final

import pytest

GRACE_SECONDS = 60.0
"""How long after its limit a test ends its process, with the stacks of all threads; under xdist that is a
failure of this test, and another process goes on with the others."""
UNIT_SECONDS: Final = 300
"""The limit of tests of single parts: more than the longest wait for a fact, of 240 seconds, and short
enough that a command that is given ten minutes still hears which test it was."""
WAITS_MAX: Final = 50
"""So many tasks are shown of a test that was ended."""

_Settings = pytest.StashKey[Any]()
_Stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the way to whoever reads the run, before what tests say is captured."""
    stderr = sys.__stderr__
    assert stderr is not None
    config.stash[_Stderr] = os.dup(stderr.fileno())


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Beside the limit, which pytest-timeout sets after this."""
    item.stash[_Settings] = settings
    _end_process_after(item, settings.timeout + GRACE_SECONDS)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """What ends a test has the limit anew: that of one that has failed counts no more."""
    settings = item.stash.get(_Settings, None)
    if settings is not None:
        item.ihook.pytest_timeout_cancel_timer(item=item)
        item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say of a test that was ended what each of its tasks waits for: the stack is that of the loop."""
    report = yield
    if call.excinfo is not None and _is_limit(call.excinfo.value):
        report.sections.append(("What tasks wait for", "\n\n".join(_waits())))
    return report


def _end_process_after(item: pytest.Item, seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[_Stderr])


def _is_limit(error: BaseException) -> bool:
    return isinstance(error, pytest.fail.Exception) and str(error.msg).startswith("Timeout (>")


def _waits() -> list[str]:
    tasks = [one for one in gc.get_objects() if isinstance(one, asyncio.Task) and not one.done()]
    shown = ["\n  ".join([task.get_name(), *_places(task.get_coro())]) for task in tasks]
    if len(shown) > WAITS_MAX:
        shown[WAITS_MAX:] = [f"and {len(shown) - WAITS_MAX} more"]
    return shown


def _places(waiting: Any) -> Iterator[str]:
    """From what a task was made of down to what it waits for."""
    while waiting is not None:
        kind = next((one for one in ("cr", "ag", "gi") if hasattr(waiting, f"{one}_frame")), None)
        if kind is None:
            yield repr(waiting)
            return
        frame = getattr(waiting, f"{kind}_frame")
        if frame is not None:
            yield f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
        waiting = getattr(waiting, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
