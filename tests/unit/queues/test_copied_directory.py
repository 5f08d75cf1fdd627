"""Copies of a node's data directory: the newest one serves, and the others are refused with what to do."""

import asyncio
import shutil
from pathlib import Path

import pytest
from support.guards import remove
from support.rebuilding import rebuild
from support.waiting import eventually

from bottomless_server.coordination.base import Changes
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.directory.tokens import load_tokens
from bottomless_server.queues.offline.new_id import give_new_id
from bottomless_server.queues.offline.store_directory import StoreDirectory
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.stores.queue_homes import queue_node_key
from unit.queues.service_harness import Installation, QueuesHarness, problem

NEWEST = "the newest start of a node of queues"
LOCK = "the lock that the lease of a node of queues names"


async def an_installation() -> Installation:
    return await Installation().start()


async def values(node: QueuesHarness) -> list[str]:
    return [message["value"] for message in await node.receive(limit=100, visibility_ms=0)]


async def killed(node: QueuesHarness) -> None:
    """Let its process be gone: its lock is free, and its lease is held until it runs out."""
    coordination = node.installation.stores.coordination
    key = queue_node_key(node.service.directory.node_id)
    held = await coordination.get(key)
    assert held is not None
    await node.aclose()
    await coordination.hold(key, held, 12_000)


def copied(directory: Path, name: str) -> Path:
    there = directory.with_name(name)
    shutil.copytree(directory, there)
    return there


async def test_a_copy_of_a_directory_that_is_in_use_is_refused(tmp_path: Path) -> None:
    installation = await an_installation()
    node = await installation.node(tmp_path / "queues").start()
    await node.create()
    copy = installation.node(copied(tmp_path / "queues", "copy"))

    starting = asyncio.create_task(copy.start())
    while not starting.done():
        # Time goes on, and whoever lives renews.
        installation.stores.clock.now += 1_000
        await node.service.lease.renew()
        await asyncio.sleep(0)

    with pytest.raises(CannotStart, match="is in use: another process renews the lease"):
        await starting
    assert (await node.publish("a")).status_code == 200
    await node.aclose()


async def test_of_two_copies_the_one_that_was_started_later_is_the_newest(tmp_path: Path) -> None:
    installation = await an_installation()
    node = await installation.node(tmp_path / "queues").start()
    await node.create()
    await node.publish("a")
    await node.aclose()
    older = copied(tmp_path / "queues", "older")
    again = await installation.node(tmp_path / "queues").start()
    await again.publish("b")
    await again.aclose()
    before = sorted((path.name, path.read_bytes()) for path in older.iterdir() if path.is_file())

    with pytest.raises(CannotStart, match="not the newest copy") as refused:
        await installation.node(older).start()

    assert "start 2 was on another one, with the address unix:" in str(refused.value)
    assert "queue-store new-id --accept-loss" in str(refused.value)
    after = sorted((path.name, path.read_bytes()) for path in older.iterdir() if path.is_file())
    assert after == before
    newest = await installation.node(tmp_path / "queues").start()
    assert await values(newest) == ["a", "b"]
    await newest.aclose()


async def test_without_its_guard_an_older_copy_would_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation = await an_installation()
    node = await installation.node(tmp_path / "queues").start()
    await node.create()
    await node.publish("a")
    await node.aclose()
    older = copied(tmp_path / "queues", "older")
    again = await installation.node(tmp_path / "queues").start()
    await again.publish("b")
    await again.aclose()
    remove(monkeypatch, NEWEST, lambda *_: None)
    second = await installation.node(older).start()
    assert await values(second) == ["a"]
    await second.aclose()


async def test_a_copy_that_is_started_in_place_of_the_first_one_is_the_newest(
    tmp_path: Path,
) -> None:
    """It was moved to another disk, and has everything."""
    installation = await an_installation()
    node = await installation.node(tmp_path / "queues").start()
    await node.create()
    await node.publish("a")
    await node.aclose()
    moved = await installation.node(copied(tmp_path / "queues", "moved")).start()
    assert await values(moved) == ["a"]
    await moved.aclose()
    with pytest.raises(CannotStart, match="not the newest copy"):
        await installation.node(tmp_path / "queues").start()


async def test_a_process_that_was_killed_is_followed_by_one_that_serves_at_once(
    tmp_path: Path,
) -> None:
    installation = await an_installation()
    node = await installation.node(tmp_path / "queues").start()
    await node.create()
    await node.publish("a")
    await killed(node)
    again = await installation.node(tmp_path / "queues").start()
    assert await values(again) == ["a"]
    await again.aclose()


async def test_the_directory_of_a_killed_process_serves_elsewhere_once_its_lease_is_over(
    tmp_path: Path,
) -> None:
    """Nobody there can tell whether the process lives, but that its lease runs out."""
    installation = await an_installation()
    node = await installation.node(tmp_path / "queues").start()
    await node.create()
    await killed(node)
    moved = installation.node(copied(tmp_path / "queues", "moved"))
    starting = asyncio.create_task(moved.start())
    await asyncio.sleep(0)
    for _ in range(11):
        installation.stores.clock.now += 1_000
        await asyncio.sleep(0)
    assert not starting.done()
    installation.stores.clock.now += 1_000
    await starting
    assert (await moved.publish("a")).status_code == 200
    await moved.aclose()


async def test_without_the_lock_in_a_lease_a_copy_would_take_it_from_who_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation = await an_installation()
    node = await installation.node(tmp_path / "queues").start()
    await node.create()
    remove(monkeypatch, LOCK, lambda *_: True)
    copy = await installation.node(copied(tmp_path / "queues", "copy")).start()
    for each in (node, copy):
        assert (await each.publish("a")).status_code == 200
    assert await values(node) == await values(copy) == ["a"]
    await node.aclose()
    await copy.aclose()


async def test_after_a_loss_of_coordination_the_bucket_tells_the_newest_copy(
    tmp_path: Path,
) -> None:
    installation = await an_installation()
    node = await installation.node(tmp_path / "queues").start()
    await node.create()
    await node.aclose()
    older = copied(tmp_path / "queues", "older")
    again = await installation.node(tmp_path / "queues").start()
    await again.publish("b")
    await killed(again)
    stores = installation.stores
    stores.coordination.lose()
    await rebuild(stores)

    # A rebuild counts a home as alive for a minute.
    starting = asyncio.create_task(installation.node(older).start())
    await asyncio.sleep(0)
    stores.clock.now += 61_000
    with pytest.raises(CannotStart, match="not the newest copy"):
        await starting

    newest = await installation.node(tmp_path / "queues").start()
    assert await values(newest) == ["b"]
    await newest.aclose()


async def test_a_home_that_lives_keeps_its_lease_over_a_rebuild(tmp_path: Path) -> None:
    installation = await an_installation()
    node = await installation.node(tmp_path / "queues").start()
    await node.create()
    stores = installation.stores
    stores.coordination.lose()
    await rebuild(stores)
    key = queue_node_key(node.service.directory.node_id)
    held = await stores.coordination.get(key)
    await node.service.lease.renew()
    assert await stores.coordination.get(key) == held
    assert (await node.publish("a")).status_code == 200
    await node.aclose()


async def test_a_start_without_coordination_or_manifest_is_let_in_when_they_answer(
    tmp_path: Path,
) -> None:
    installation = await an_installation()
    node = installation.node(tmp_path / "queues")
    coordination = installation.stores.coordination
    generation = await coordination.get("bottomless:generation")
    coordination.write(Changes({"bottomless:generation": None}))
    node.service.lease.generation = 1
    await node.start()
    assert (await node.client.put("/v1/queues/jobs")).status_code == 503
    coordination.write(Changes({"bottomless:generation": generation}))
    node.service.lease.generation = None
    await node.service.lease.renew()
    await node.create()
    assert (await node.publish("a")).status_code == 200
    await node.aclose()


async def test_a_copy_that_is_found_out_later_answers_nothing(tmp_path: Path) -> None:
    """Its lease lapsed, and another copy was started meanwhile."""
    installation = await an_installation()
    node = await installation.node(tmp_path / "queues").start()
    await node.create()
    copy = installation.node(copied(tmp_path / "queues", "copy"))
    await node.service.lease.stop()
    await copy.start()
    assert (await copy.publish("a")).status_code == 200
    await copy.aclose()
    await node.service.lease.start()
    refused = problem(await node.publish("b"), 503, "not-owner")
    assert "older than another copy" in refused["detail"]
    await node.aclose()


async def test_what_an_operator_says_is_heard_once(tmp_path: Path) -> None:
    installation = await an_installation()
    directory = tmp_path / "queues"
    node = await installation.node(directory).start()
    await node.create()
    await node.aclose()
    older = copied(directory, "older")
    again = await installation.node(directory).start()
    await again.aclose()
    files = RealFileCalls()
    await asyncio.to_thread(give_new_id, StoreDirectory(files, older), bytes(16))
    newest = await installation.node(older).start()
    assert (await newest.publish("a")).status_code == 200
    await newest.aclose()
    assert not load_tokens(files, older).accept_loss
    with pytest.raises(CannotStart, match="not the newest copy"):
        await installation.node(directory).start()


async def test_a_start_that_waits_for_a_lease_takes_it_when_it_is_given_up(tmp_path: Path) -> None:
    installation = await an_installation()
    node = await installation.node(tmp_path / "queues").start()
    await node.create()
    moved = installation.node(copied(tmp_path / "queues", "moved"))
    starting = asyncio.create_task(moved.start())
    await asyncio.sleep(0)
    await node.aclose()
    await starting
    await eventually(moved.service.lease.is_live)
    assert (await moved.publish("a")).status_code == 200
    await moved.aclose()
