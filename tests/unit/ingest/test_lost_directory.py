"""A node whose data directory is gone ends at once, and does nothing more before that."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.guards import remove
from support.waiting import eventually

from bottomless.errors import Unavailable
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.node import directory_watch
from bottomless_server.node.core.lost_directory import DirectoryLooks, Seen
from bottomless_server.node.data_directory import DataDirectory
from bottomless_server.node.directory_watch import (
    AGAIN_SECONDS,
    EXIT_DIRECTORY_LOST,
    LOOK_SECONDS,
    DirectoryWatch,
    watched_directories,
)
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.node.lease import REAL_CLOCKS, LeaseBounds, NodeLease
from bottomless_server.stores.streams import node_key

LASTING = LeaseBounds(lease_ms=3_600_000, margin_ms=500, renew_ms=3_600_000)
"""No lease runs out while a machine stands still."""


@pytest.mark.parametrize(
    ("looks", "lost"),
    [
        ([Seen.SAME, Seen.SAME], False),
        ([Seen.GONE], False),
        ([Seen.GONE, Seen.GONE], True),
        ([Seen.GONE, Seen.SAME, Seen.GONE], False),
        ([Seen.GONE, Seen.UNKNOWN, Seen.GONE], False),
        ([Seen.UNKNOWN] * 5, False),
        ([Seen.UNKNOWN, Seen.GONE, Seen.GONE], True),
    ],
)
def test_a_directory_is_lost_when_two_looks_in_a_row_do_not_find_it(
    looks: list[Seen], lost: bool
) -> None:
    so_far = DirectoryLooks()
    assert [so_far.is_lost(one) for one in looks][-1] is lost


class Node:
    """A directory, a lease and their watch; the process ends only as a number in a list."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ends: list[int] = []
        self.coordination = MemoryCoordination(lambda: 0)
        self.directory = DataDirectory(RealFileCalls(), path)
        self.lease = NodeLease(
            self.coordination,
            self.directory,
            "unix:///node.sock",
            REAL_CLOCKS,
            LASTING,
            lambda *_: None,
            announced=False,
        )
        self.watch = DirectoryWatch(self.directory, self.lease, self.ends.append)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path / "ingest")
    made.directory.open()
    await made.lease.renew()
    made.lease.require()
    yield made
    made.directory.close()


async def test_a_node_whose_directory_is_removed_is_fenced_and_ends(node: Node) -> None:
    assert await node.watch.look() == LOOK_SECONDS
    shutil.rmtree(node.path)
    assert await node.watch.look() == AGAIN_SECONDS
    assert node.ends == []
    node.lease.require()

    await node.watch.look()
    assert node.ends == [EXIT_DIRECTORY_LOST]
    with pytest.raises(Unavailable):
        node.lease.require()
    await node.lease.renew()
    assert not node.lease.is_live(), "there is no way back"
    held = await node.coordination.get(node_key(node.directory.node_id))
    assert held is None, "another node goes on at once"


async def test_a_node_ends_without_its_directory_though_coordination_does_not_answer(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fenced before, and its lease runs out."""
    fenced: list[bool] = []

    async def hangs(*_: object) -> None:
        fenced.append(not node.lease.is_live())
        await asyncio.Event().wait()

    monkeypatch.setattr(node.coordination, "release", hangs)
    monkeypatch.setattr(directory_watch, "GIVE_UP_SECONDS", 0.01)
    shutil.rmtree(node.path)
    await node.watch.look()
    await node.watch.look()
    assert (node.ends, fenced) == ([EXIT_DIRECTORY_LOST], [True])


async def test_without_the_watch_a_node_acknowledges_into_files_that_are_gone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        remove(patch, "the end of a node without its directory", lambda *_: False)
        shutil.rmtree(node.path)
        for _ in range(3):
            await node.watch.look()
        assert node.ends == []
        node.lease.require()


async def test_another_directory_at_the_path_is_not_the_one_that_was_opened(node: Node) -> None:
    node.path.rename(node.path.with_name("away"))
    shutil.copytree(node.path.with_name("away"), node.path)
    await node.watch.look()
    await node.watch.look()
    assert node.ends == [EXIT_DIRECTORY_LOST]


async def test_a_directory_that_comes_back_between_two_looks_is_not_lost(node: Node) -> None:
    away = node.path.with_name("away")
    for _ in range(3):
        node.path.rename(away)
        assert await node.watch.look() == AGAIN_SECONDS
        away.rename(node.path)
        assert await node.watch.look() == LOOK_SECONDS
    assert node.ends == []


async def test_a_look_that_fails_for_another_reason_decides_nothing(node: Node) -> None:
    node.path.rename(node.path.with_name("away"))
    # A way that leads to itself: the system does not say what is there.
    node.path.symlink_to(node.path)
    for _ in range(3):
        assert await node.watch.look() == LOOK_SECONDS
    assert node.ends == []
    node.lease.require()


async def test_a_look_that_hangs_holds_up_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def hanging() -> Seen:
        begun.set()
        goes_on.wait()
        return Seen.SAME

    monkeypatch.setattr(node.directory, "look", hanging)
    looking = asyncio.create_task(node.watch.look())
    try:
        await eventually(begun.is_set)
        assert not looking.done()
        node.lease.require()
    finally:
        goes_on.set()
    assert await looking == LOOK_SECONDS
    assert node.ends == []


async def test_a_directory_that_is_not_open_is_nobodys_to_lose(node: Node) -> None:
    node.directory.close()
    shutil.rmtree(node.path)
    for _ in range(3):
        assert await node.watch.look() == LOOK_SECONDS
    assert node.ends == []


async def test_services_that_keep_a_directory_are_watched_while_they_are_served(
    node: Node,
) -> None:
    shutil.rmtree(node.path)
    async with watched_directories([SimpleNamespace(name="reader"), node], node.ends.append):
        await eventually(lambda: node.ends)
    assert node.ends[0] == EXIT_DIRECTORY_LOST
