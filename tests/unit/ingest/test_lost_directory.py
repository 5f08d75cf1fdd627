"""A node whose data directory is gone ends at once, and does nothing more before that."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.guards import remove
from support.waiting import eventually

from bottomless.errors import Unavailable
from bottomless.model.segment import Checkpoint
from bottomless_server.coordination.base import Hold
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.ingest.replicas.opening import LogFiles
from bottomless_server.node import directory_watch
from bottomless_server.node.core.lost_directory import AGAIN_SECONDS, DirectoryLooks, Seen
from bottomless_server.node.data_directory import DataDirectory
from bottomless_server.node.directory_watch import (
    EXIT_DIRECTORY_LOST,
    LOOK_SECONDS,
    DirectoryWatch,
    watched_directories,
)
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.node.lease import REAL_CLOCKS, LeaseBounds, NodeLease
from bottomless_server.stores.ingest_nodes import known_nodes
from bottomless_server.stores.streams import node_key
from unit.ingest.harness import STREAM, IngestHarness
from unit.ingest.replica_services import ThreeServices

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

    def __init__(
        self,
        path: Path,
        coordination: MemoryCoordination | None = None,
        *,
        announced: bool = False,
    ) -> None:
        self.path = path
        self.ends: list[int] = []
        self.coordination = coordination or MemoryCoordination(lambda: 0)
        self.directory = DataDirectory(RealFileCalls(), path)
        self.lease = NodeLease(
            self.coordination,
            self.directory,
            "unix:///node.sock",
            REAL_CLOCKS,
            LASTING,
            lambda *_: None,
            announced=announced,
        )
        self.watch = DirectoryWatch([self], self.ends.append)

    async def open(self) -> None:
        self.directory.open()
        await self.lease.renew()
        self.lease.require()

    async def look(self) -> None:
        assert await self.watch.look(self) == LOOK_SECONDS

    async def is_held(self) -> bool:
        return await self.coordination.get(node_key(self.directory.node_id)) is not None


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path / "ingest")
    await made.open()
    yield made
    made.directory.close()


async def test_a_node_whose_directory_is_removed_is_fenced_and_ends(node: Node) -> None:
    await node.look()
    assert node.ends == []
    node.lease.require()
    shutil.rmtree(node.path)

    await node.look()
    assert node.ends == [EXIT_DIRECTORY_LOST]
    with pytest.raises(Unavailable):
        node.lease.require()
    await node.lease.renew()
    assert not node.lease.is_live(), "there is no way back"
    assert not await node.is_held(), "another node goes on at once"


async def test_a_process_that_loses_all_its_directories_gives_all_leases_up_and_ends_once(
    node: Node, tmp_path: Path
) -> None:
    other = Node(tmp_path / "queues", node.coordination)
    await other.open()
    watch = DirectoryWatch([node, other], node.ends.append)
    shutil.rmtree(node.path)
    shutil.rmtree(other.path)
    await asyncio.gather(watch.look(node), watch.look(other))
    await watch.look(other)
    assert node.ends == [EXIT_DIRECTORY_LOST]
    assert not node.lease.is_live()
    assert not other.lease.is_live()
    assert not await node.is_held()
    assert not await other.is_held()
    other.directory.close()


async def test_a_process_that_loses_one_directory_gives_the_leases_of_all_up(
    node: Node, tmp_path: Path
) -> None:
    """It ends, with those whose directories are there; one was never opened."""
    other, never = Node(tmp_path / "queues", node.coordination), Node(tmp_path / "never")
    await other.open()
    shutil.rmtree(node.path)
    await DirectoryWatch([node, other, never], node.ends.append).look(node)
    assert node.ends == [EXIT_DIRECTORY_LOST]
    assert not other.lease.is_live()
    assert not await other.is_held()
    other.directory.close()


async def test_a_node_ends_without_its_directory_though_coordination_does_not_answer(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fenced before, and its lease runs out; it waits for nothing that does not hear of an end."""
    fenced: list[bool] = []

    async def hangs(*_: object) -> None:
        fenced.append(not node.lease.is_live())
        while len(node.ends) == 0:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    monkeypatch.setattr(node.coordination, "release", hangs)
    monkeypatch.setattr(directory_watch, "GIVE_UP_SECONDS", 0.01)
    shutil.rmtree(node.path)
    await node.look()
    assert (node.ends, fenced) == ([EXIT_DIRECTORY_LOST], [True])


async def test_a_renewal_that_is_under_way_does_not_take_the_lease_after_it_was_given_up(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, goes_on = asyncio.Event(), asyncio.Event()
    hold = node.coordination.hold

    async def slow(*args: Any) -> Hold:
        asked.set()
        await goes_on.wait()
        return await hold(*args)

    monkeypatch.setattr(node.coordination, "hold", slow)
    renewing = asyncio.create_task(node.lease.renew())
    await asked.wait()
    giving = asyncio.create_task(node.lease.give_up())
    await asyncio.sleep(0)
    goes_on.set()
    await asyncio.gather(renewing, giving)
    assert not await node.is_held()
    assert not node.lease.is_live()


async def test_a_node_that_ended_without_its_directory_is_listed_as_away(tmp_path: Path) -> None:
    """Streams name it still: an operator finds it, and can have it emptied."""
    node = Node(tmp_path / "ingest", announced=True)
    await node.open()
    shutil.rmtree(node.path)
    await node.look()
    assert node.ends == [EXIT_DIRECTORY_LOST]
    assert not await node.is_held()
    known = await known_nodes(node.coordination)
    assert [(one.node_id, one.state) for one in known] == [(node.directory.node_id, "away")]
    node.directory.close()


async def test_without_the_watch_a_node_lives_on_without_its_directory(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        remove(patch, "the end of a node without its directory", lambda _: False)
        shutil.rmtree(node.path)
        for _ in range(3):
            await node.look()
        assert node.ends == []
        node.lease.require()


async def test_another_directory_at_the_path_is_not_the_one_that_was_opened(node: Node) -> None:
    node.path.rename(node.path.with_name("away"))
    shutil.copytree(node.path.with_name("away"), node.path)
    await node.look()
    assert node.ends == [EXIT_DIRECTORY_LOST]


def test_a_directory_that_comes_back_between_two_looks_is_not_lost(tmp_path: Path) -> None:
    directory, away = DataDirectory(RealFileCalls(), tmp_path / "ingest"), tmp_path / "away"
    directory.open()
    pauses: list[float] = []

    def come_back(seconds: float) -> None:
        pauses.append(seconds)
        away.rename(directory.path)

    for _ in range(3):
        directory.path.rename(away)
        assert not directory.is_lost(come_back)
    assert pauses == [AGAIN_SECONDS] * 3
    directory.close()


def test_a_directory_that_was_lost_is_lost_though_it_comes_back(tmp_path: Path) -> None:
    """What was written meanwhile may lie elsewhere."""
    directory, away = DataDirectory(RealFileCalls(), tmp_path / "ingest"), tmp_path / "away"
    directory.open()
    directory.path.rename(away)
    assert directory.is_lost(lambda _: None)
    away.rename(directory.path)
    assert directory.look() is Seen.SAME
    assert directory.is_lost(lambda _: None)
    directory.close()


async def test_a_look_that_fails_for_another_reason_decides_nothing(node: Node) -> None:
    node.path.rename(node.path.with_name("away"))
    # A way that leads to itself: the system does not say what is there.
    node.path.symlink_to(node.path)
    for _ in range(3):
        await node.look()
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
    looking = asyncio.create_task(node.look())
    try:
        await eventually(begun.is_set)
        assert not looking.done()
        node.lease.require()
    finally:
        goes_on.set()
    await looking
    assert node.ends == []


async def test_a_directory_that_is_not_open_is_nobodys_to_lose(node: Node) -> None:
    node.directory.close()
    shutil.rmtree(node.path)
    for _ in range(3):
        await node.look()
    assert node.ends == []


async def test_services_that_keep_a_directory_are_watched_while_they_are_served(
    node: Node,
) -> None:
    shutil.rmtree(node.path)
    async with watched_directories([SimpleNamespace(name="reader"), node], node.ends.append):
        await eventually(lambda: node.ends)
    assert node.ends[0] == EXIT_DIRECTORY_LOST


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[IngestHarness]:
    made = await IngestHarness(tmp_path / "ingest").declare()
    await made.start()
    yield made
    await made.aclose()


async def test_nothing_is_acknowledged_that_is_synced_into_a_directory_that_is_gone(
    harness: IngestHarness,
) -> None:
    assert (await harness.append("0")).status_code == 200
    shutil.rmtree(harness.data_dir)

    refused = (await harness.append("1")).json()
    assert (refused["code"], refused["outcome"]) == ("storage-failed", "unknown")
    assert not harness.lease.is_live(), "before anybody hears of it, so that nothing is opened anew"
    refused = (await harness.append("2")).json()
    assert (refused["code"], refused["outcome"]) == ("not-owner", "none")


async def test_without_a_look_after_the_sync_a_node_acknowledges_what_nobody_finds(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the directory, looked at after the sync", lambda outcomes, _: outcomes)
    assert (await harness.append("0")).status_code == 200
    shutil.rmtree(harness.data_dir)
    assert (await harness.append("1")).status_code == 200


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_node_that_follows_confirms_nothing_without_its_directory(
    guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        remove(monkeypatch, "the directory, looked at after the sync", lambda outcomes, _: outcomes)
    three = await ThreeServices(tmp_path).start()
    owner, follower, other = three.nodes
    assert await three.append(owner, "0") == 0
    await three.until_all_in_sync()
    shutil.rmtree(follower.harness.data_dir)

    assert await three.append(owner, "1") == 1

    in_sync = set((await three.record()).in_sync)
    assert in_sync - {follower.node_id} == {owner.node_id, other.node_id}
    assert (follower.node_id in in_sync) is not guarded
    await three.aclose()


def test_an_opening_makes_nothing_at_the_path_of_a_directory_that_is_gone(tmp_path: Path) -> None:
    """Who brings it back finds its path free, and what is acknowledged meanwhile lies nowhere else."""
    files = LogFiles(RealFileCalls(), tmp_path / "ingest", STREAM)
    nothing = Checkpoint(STREAM, 0, 0, 0, 0, 1, 0, 0, 0)
    with pytest.raises(FileNotFoundError):
        files.note(nothing)
    assert list(tmp_path.iterdir()) == []


async def test_a_new_stream_makes_nothing_at_the_path_of_a_directory_that_is_gone(
    tmp_path: Path,
) -> None:
    made = await IngestHarness(tmp_path / "ingest").declare()
    await made.start()
    shutil.rmtree(made.data_dir)
    assert (await made.append("0")).json()["code"] == "storage-failed"
    assert not made.data_dir.exists()
    await made.aclose()
