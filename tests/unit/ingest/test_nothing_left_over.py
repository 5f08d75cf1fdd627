"""What an append leaves goes with its answer, whatever the answer is.

An error refers to the frames that it went through, and they to what was sent. If something that it
is handed over by refers to the error in turn, the body stays until Python's garbage collector comes,
which looks at what lives long seldom (runtime/process/long_lived.py).
"""

import asyncio
import errno
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.collected import left_to_the_collector, only_what_is_new

from unit.ingest.harness import ROUTE, IngestHarness

ONE = {"records": [{"value": "one"}]}


@pytest.fixture(autouse=True)
def _without_the_collector() -> Iterator[None]:
    with only_what_is_new():
        yield


async def left_over() -> Counter[str]:
    # The loop holds what woke this task until its next turn.
    await asyncio.sleep(0)
    return left_to_the_collector()


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, ONE, 200),
        ({}, {"records": [{"worth": "one"}]}, 422),
        ({"stream-expected-offset": "9"}, ONE, 412),
        ({"producer-id": "p", "producer-seq": "7"}, ONE, 409),
        ({"idempotency-key": "k"}, {"records": [{"value": "another"}]}, 422),
        ({"content-type": "text/plain"}, ONE, 415),
    ],
)
async def test_an_append_leaves_nothing_to_the_collector(
    harness: IngestHarness, headers: Mapping[str, str], body: Any, status: int
) -> None:
    await harness.client.post(ROUTE, json=ONE, headers={"idempotency-key": "k"})
    left_to_the_collector()

    answer = await harness.client.post(ROUTE, json=body, headers=headers)

    assert answer.status_code == status, answer.text
    del answer
    assert not await left_over()


async def test_a_change_of_producers_that_is_refused_leaves_nothing(harness: IngestHarness) -> None:
    await harness.append("a")
    left_to_the_collector()

    route = ROUTE.replace("/records", "/producers/nobody")
    assert (await harness.client.delete(route)).status_code == 404

    assert not await left_over()


async def test_an_append_that_the_disk_does_not_take_leaves_nothing(
    harness: IngestHarness,
) -> None:
    await harness.append("a")
    left_to_the_collector()

    harness.files.faults["pwritev"] = [OSError(errno.EIO, "no")]
    assert (await harness.client.post(ROUTE, json=ONE)).status_code == 503

    assert not await left_over()
