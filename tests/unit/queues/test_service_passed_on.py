"""Requests to queues that another node passes on, while clients leave, credentials end and homes change."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.asgi import on_tcp
from support.rebuilding import rebuild
from support.waiting import eventually

from bottomless.errors import Denied
from bottomless_server.node.core.ownership import OwnedElsewhere
from bottomless_server.node.forwarding import Answer
from bottomless_server.queues import app
from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.identity.credential_watch import CredentialWatch
from unit.queues.service_harness import (
    QUEUE,
    QueuesHarness,
    one_node,
    problem,
    receive_until,
    two_nodes,
)

LONG: dict[str, Any] = {"max_wait_ms": 30_000}


async def until_waiting(node: QueuesHarness, count: int = 1) -> None:
    engine = node.service.place.there()
    await eventually(lambda: engine.figures().waiting_receives == count)


async def test_who_leaves_a_receive_that_is_passed_on_takes_nothing(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (home, other), on_tcp(wrap(other.as_principal)) as port:
        await home.create()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b'{"max_wait_ms":30000}'
        head = f"POST {QUEUE}/receive HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        await until_waiting(home)
        writer.close()
        await until_waiting(home, 0)
        await home.publish("a")
        assert [message["value"] for message in await home.receive()] == ["a"]


async def test_a_credential_that_ended_while_another_node_waited_gets_nothing(
    tmp_path: Path,
) -> None:
    async def ended() -> float | None:
        raise Denied("it is at an end")

    async with two_nodes(tmp_path) as (home, other):
        await home.create()
        other.watch = CredentialWatch(ended, 10)
        waiting = asyncio.create_task(other.client.post(f"{QUEUE}/receive", json=LONG))
        await until_waiting(home)
        await home.publish("a")
        problem(await waiting, 403, "forbidden")
        # Nobody was given it: others have it at once, and not when its visibility is over.
        other.watch = None
        wanted = {"accept": "application/octet-stream"}
        async with asyncio.timeout(20):
            (message,) = await other.receive(**LONG)
        assert (message["value"], home.service.counts.given_back) == ("a", 1)
        await home.publish("b")
        other.watch = CredentialWatch(ended, 10)
        raw = await other.client.post(f"{QUEUE}/receive", json=LONG, headers=wanted)
        problem(raw, 403, "forbidden")
        async with asyncio.timeout(20):
            assert [one["value"] for one in await home.receive(**LONG)] == ["b"]


async def test_who_leaves_while_another_node_checks_its_credential_takes_nothing(
    tmp_path: Path,
) -> None:
    checked, may_go_on, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slowly() -> float | None:
        checked.set()
        await may_go_on.wait()
        return None

    async with two_nodes(tmp_path) as (home, other):
        await home.create()
        await home.publish("a")
        other.watch = CredentialWatch(slowly, 10)
        asking = asyncio.create_task(receive_until(other, left))
        await checked.wait()
        left.set()
        async with asyncio.timeout(20):
            (message,) = await home.receive(**LONG)
        assert (message["value"], message["deliveries"]) == ("a", 1)
        may_go_on.set()
        assert await asking == []


async def test_who_leaves_in_the_moment_in_which_another_node_has_its_answer_takes_nothing(
    tmp_path: Path,
) -> None:
    left = asyncio.Event()
    async with two_nodes(tmp_path) as (home, other):
        await home.create()
        await home.publish("a")
        receives = other.service.passing.receives
        ask = receives.ask

        async def answered(*asked: Any) -> Answer:
            answer = await ask(*asked)
            left.set()
            return answer

        receives.ask = answered  # type: ignore[method-assign, assignment]
        assert await receive_until(other, left) == []
        (message,) = await home.receive()
        assert (message["value"], message["deliveries"]) == ("a", 1)


async def test_a_drain_waits_for_no_receive_that_is_passed_on(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (home, other):
        await home.create()
        waiting = asyncio.create_task(other.receive(**LONG))
        await until_waiting(home)
        async with asyncio.timeout(20):
            await other.service.drain()
        assert await waiting == []
        # It did not wait for the home, which is told that nobody waits any more.
        await until_waiting(home, 0)


async def test_as_much_as_one_receive_takes_comes_through_another_node(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (home, other):
        await home.create()
        for _ in range(3):
            # Each of its bytes is six in JSON.
            await home.publish("\0" * 2**20)
        assert len(await other.receive()) == 3


async def test_receives_that_wait_through_another_node_hold_up_nobody(tmp_path: Path) -> None:
    count = 257
    async with two_nodes(tmp_path) as (home, other):
        for name in ("jobs", "others"):
            await home.create(name)
        waiting = [asyncio.create_task(other.receive(**LONG)) for _ in range(count)]
        await until_waiting(home, count)
        assert (await other.publish("a", name="others")).status_code == 200
        await home.service.drain()
        assert await asyncio.gather(*waiting) == [[]] * count


async def test_receives_that_wait_take_no_connection_from_who_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "CONNECTION_COUNT_MAX", 1)
    async with two_nodes(tmp_path) as (home, other):
        await home.create()
        waiting = asyncio.create_task(other.receive(**LONG))
        await until_waiting(home)
        assert (await other.publish("a")).status_code == 200
        assert [message["value"] for message in await waiting] == ["a"]


async def test_an_answer_of_before_a_takeover_makes_nobody_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes late, after the node has its lease again, when somebody else asks already."""
    async with two_nodes(tmp_path) as (old, new):
        await old.create()
        await lapse(old)
        await old.service.lease.start()
        answered, may_come = asyncio.Event(), asyncio.Event()
        call = old.peer.call

        async def late(*args: Any, **of_request: Any) -> Any:
            answer = await call(*args, **of_request)
            answered.set()
            await may_come.wait()
            return answer

        monkeypatch.setattr(old.peer, "call", late)
        homes = old.service.homes
        first = asyncio.create_task(homes.found("default"))
        await answered.wait()
        await lapse(old)
        asked = {
            "tenant": "default",
            "accept_loss": True,
            "expect_home": old.service.directory.node_id,
        }
        taken = await new.client.post("/v1/admin/queues/takeover", json=asked)
        assert taken.status_code == 200
        await old.service.lease.start()
        second = asyncio.create_task(homes.found("default"))
        await asyncio.sleep(0)
        may_come.set()
        ended = await asyncio.gather(first, second, return_exceptions=True)
        assert not homes.is_here("default")
        assert isinstance(ended[1], OwnedElsewhere)


async def test_after_a_rebuild_nobody_takes_over_what_its_home_may_serve_still(
    tmp_path: Path,
) -> None:
    async with two_nodes(tmp_path) as (old, new):
        await old.create()
        stores = old.installation.stores
        stores.coordination.lose()
        await rebuild(stores)
        await new.service.lease.renew()
        asked = {
            "tenant": "default",
            "accept_loss": True,
            "expect_home": old.service.directory.node_id,
        }
        taken = await new.client.post("/v1/admin/queues/takeover", json=asked)
        problem(taken, 409, "home-live")
        assert (await old.publish("a")).status_code == 200
        await old.service.lease.renew()
        assert (await old.publish("b")).status_code == 200


async def lapse(node: QueuesHarness) -> None:
    """Let its lease be gone."""
    await node.service.lease.stop()


async def test_the_same_bytes_read_as_something_else_are_no_repeat(tmp_path: Path) -> None:
    async with one_node(tmp_path) as node:
        await node.create()
        body = b'{"messages":[{"value":"a"}]}'
        path = f"{QUEUE}/messages"
        for media_type, status in (("application/json", 200), ("application/octet-stream", 422)):
            headers = {"content-type": media_type, "idempotency-key": "k"}
            answer = await node.client.post(path, content=body, headers=headers)
            assert answer.status_code == status, answer.text
