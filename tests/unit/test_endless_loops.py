"""No endless loop of a service ends by an exception that nobody expected.

One RuntimeError in one renewal ended the task that renews a node's lease: the process lived on and
answered 503 `not-owner` for ever. Tests made the calls of a loop fail as they are known to fail,
and no test looked for loops that nobody had thought of. This one finds them in the source.
"""

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bottomless_server.runtime.base import endless as endless_module
from bottomless_server.runtime.base.endless import endless, loop_failures
from bottomless_server.runtime.observe.metrics import Metrics

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "services" / "bottomless_server"

ALLOWED: dict[tuple[str, str], str] = {
    (
        "ingest/local/appender.py",
        "_run",
    ): "a bug stops the stream, which the next append opens anew",
    (
        "ingest/replicas/followed_stream.py",
        "_run",
    ): "ends when nothing waits; a bug closes the log, which its owner opens anew",
    ("ingest/front/names.py", "_ask_together"): "ends when nobody waits for a name",
    ("node/under_way.py", "drain"): "ends when no request is under way",
    ("ingest/local/freeing.py", "_free"): "ends when enough segments are freed",
    ("drives/local.py", "list"): "ends with the last directory",
    ("drives/s3_listing.py", "list_by_directory"): "ends with the last directory",
    ("manifest/common/held_lease.py", "_renew"): "ends when the work has ended",
    ("manifest/operations/operations.py", "settled"): "ends when no operation is under way",
    ("manifest/common/groups.py", "descend"): "ends with the descent, at the lowest node",
    ("reader/followers.py", "drain"): "ends when no answer is open",
    ("runtime/base/task_groups.py", "all_ended"): "ends when all tasks of the group have ended",
    ("uploader/fragments.py", "room"): "ends when an upload has ended; within a session",
}
"""Loops that do not go through the helper, and why."""


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """What stands in a node, without the functions that are defined in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.AsyncFunctionDef | ast.FunctionDef | ast.Lambda):
            yield child
            yield from _own(child)


def _breaks(node: ast.AST) -> bool:
    """Whether a `break` of this loop stands in it, and not one of a loop within."""
    return any(
        isinstance(child, ast.Break)
        or (not isinstance(child, ast.While | ast.For | ast.AsyncFor) and _breaks(child))
        for child in ast.iter_child_nodes(node)
        if not isinstance(child, ast.AsyncFunctionDef | ast.FunctionDef | ast.Lambda)
    )


def _names(node: ast.AST) -> set[str]:
    return {ast.unparse(one) for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute)}


def _is_endless(loop: ast.While) -> bool:
    """Whether nothing in it ends it: it waits, never breaks off or returns, and what it asks for
    is not changed in it."""
    inside = [one for statement in loop.body for one in (statement, *_own(statement))]
    if not any(isinstance(one, ast.Await | ast.AsyncFor | ast.AsyncWith) for one in inside):
        return False
    if any(isinstance(one, ast.Return) for one in inside) or _breaks(loop):
        return False
    if any(isinstance(one, ast.Await | ast.Call) for one in ast.walk(loop.test)):
        return False
    changed = {
        ast.unparse(one)
        for one in ast.walk(loop)
        if isinstance(one, ast.Name | ast.Attribute) and isinstance(one.ctx, ast.Store)
    }
    return not _names(loop.test) & changed


def endless_loops(source: str) -> list[str]:
    """Names of the functions in it that have one."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.AsyncFunctionDef):
            loops = [one for one in _own(function) if isinstance(one, ast.While)]
            found += [function.name for loop in loops if _is_endless(loop)]
    return found


def test_every_endless_loop_of_the_services_goes_through_the_helper() -> None:
    found = {
        (path.relative_to(SERVICES).as_posix(), name)
        for path in SERVICES.rglob("*.py")
        for name in endless_loops(path.read_text())
    }

    assert found - ALLOWED.keys() == set(), "use endless() of runtime/base/endless.py"
    assert ALLOWED.keys() - found == set(), "nobody has to allow what is not there any more"


@pytest.mark.parametrize(
    "body",
    [
        "while True:\n  await work()",
        "while not self.stopped:\n  try:\n   await work()\n  except KeyError:\n   pass",
        "while True:\n  await wait()\n  for one in three:\n   if await tell(one): break",
        "while interval > 0:\n  async with room:\n   work()",
    ],
)
def test_a_loop_without_the_helper_is_found(body: str) -> None:
    indented = body.replace("\n", "\n ")
    assert endless_loops(f"async def run(self):\n {indented}") == ["run"]


@pytest.mark.parametrize(
    "body",
    [
        "while True:\n  if await work(): return",
        "while True:\n  if await work(): break",
        "while left:\n  left = await work(left)",
        "while await more():\n  pass",
        "while True:\n  work()",
        "await endless('name', work)",
    ],
)
def test_a_loop_that_ends_by_itself_is_not(body: str) -> None:
    indented = body.replace("\n", "\n ")
    assert endless_loops(f"async def run(self):\n {indented}") == []


async def test_a_loop_outlives_what_nobody_expected_and_counts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endless_module, "PAUSE_SECONDS_MIN", 0.001)
    before = loop_failures().get("test", 0)
    rounds = 0

    async def step() -> float | None:
        nonlocal rounds
        rounds += 1
        if rounds < 4:
            raise RuntimeError("the handler is closed")
        return None if rounds == 6 else 0

    async with asyncio.timeout(60):
        await endless("test", step)

    assert rounds == 6
    assert loop_failures()["test"] - before == 3
    assert b'bottomless_loop_failures_total{loop="test"}' in Metrics().render()


async def test_a_loop_that_goes_on_failing_waits_longer_each_time_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def no_time(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 10:
            raise asyncio.CancelledError

    async def step() -> float:
        raise AssertionError

    monkeypatch.setattr(asyncio, "sleep", no_time)
    with pytest.raises(asyncio.CancelledError):
        await endless("test", step, pause_seconds_max=20)

    assert pauses == [0.5, 1, 2, 4, 8, 16, 20, 20, 20, 20]


async def test_being_cancelled_ends_a_loop() -> None:
    begun = asyncio.Event()

    async def step() -> float:
        begun.set()
        await asyncio.Event().wait()
        return 0

    task = asyncio.create_task(endless("test", step))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
