"""Coordination is lost in the middle of a request, or of a snapshot of consumers: at each turn.

What was found a moment ago was not deleted, where everything is gone. The simulation found a commit
that was answered `stream-not-found`, when it began to lose coordination (seed 5 of
`--storm-seconds 8`). No check before it lost anything between two reads of one request.
"""

import asyncio
from contextlib import suppress
from typing import Any

import httpx
import pytest
from support.guards import remove
from support.manifest import ManifestHarness, a_record
from unit.manifest.test_consumers import snapshots_of, store
from unit.manifest.test_manifest_api import Service, running

from bottomless.errors import Unavailable
from bottomless_server.manifest.consumers.consumer_snapshots import ConsumerSnapshots
from bottomless_server.stores.generation import check_generation

REQUESTS: list[tuple[str, str, Any]] = [
    ("PUT", "/v1/streams/orders/consumers/billing/offset", {"next_offset": 0}),
    ("GET", "/v1/streams/orders/consumers/billing/offset", None),
    ("GET", "/v1/streams/orders/consumers/billing", None),
    ("GET", "/v1/streams/orders/consumers", None),
    ("DELETE", "/v1/streams/orders/consumers/billing/offset", None),
    ("GET", "/v1/streams/orders", None),
    ("GET", "/v1/streams", None),
    ("GET", "/v1/streams/orders/manifest", None),
    ("POST", "/v1/streams/orders/trim", {"before_offset": 0}),
    ("DELETE", "/v1/streams/orders", None),
]


async def turns(count: int, task: "asyncio.Task[Any]") -> None:
    for _ in range(count):
        if task.done():
            return
        await asyncio.sleep(0)


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
async def test_who_asks_while_all_is_lost_is_never_told_that_it_was_not_there(
    method: str, path: str, body: Any
) -> None:
    """Each is told what it is told at other times, or that coordination was lost."""
    expected, count, done = None, 0, False
    while not done:
        async with running(harness := ManifestHarness()) as service:
            await create(service)
            if expected is None:
                expected = told(await service.public.request(method, path, json=body))
                continue
            asking = asyncio.create_task(service.public.request(method, path, json=body))
            await turns(count, asking)
            done = asking.done()
            harness.coordination.lose()
            answer = await asking
            lost = answer.status_code == 503 and answer.json()["code"] == "coordination-regressed"
            assert lost or told(answer) == expected, f"after {count} turns: {answer.text}"
            count += 1
    assert count > 2


async def create(service: Service) -> None:
    await service.owned()
    path = "/v1/streams/orders/consumers/billing/offset"
    assert (await service.public.put(path, json={"next_offset": 0})).status_code == 200


def told(answer: httpx.Response) -> tuple[int, int | None]:
    items = answer.json().get("items") if answer.content else None
    return answer.status_code, None if items is None else len(items)


async def test_no_snapshot_is_made_of_what_was_lost_meanwhile() -> None:
    """A rebuild takes the newest snapshot: one with less in it would be believed."""
    await lose_all_while_a_snapshot_is_made()


async def test_without_the_look_a_snapshot_has_less_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look_away(*_: object) -> None:
        pass

    remove(
        monkeypatch,
        "the look at the generation before a snapshot of consumers is put",
        look_away,
    )

    with pytest.raises(AssertionError, match="audit"):
        await lose_all_while_a_snapshot_is_made()


async def lose_all_while_a_snapshot_is_made() -> None:
    done, count = False, 0
    while not done:
        harness = ManifestHarness()
        harness.streams.generation = await check_generation(harness.drive, harness.coordination)
        await harness.streams.create(a_record())
        for consumer in ("audit", "billing"):
            await store(harness, 5, consumer)
        writing = asyncio.create_task(ConsumerSnapshots(harness.context).make_pass())
        await turns(count, writing)
        done = writing.done()
        harness.coordination.lose()
        with suppress(Unavailable):
            await writing

        for snapshot in await snapshots_of(harness):
            assert [one.consumer for one in snapshot.consumers] == ["audit", "billing"]
        count += 1
    assert count > 10
