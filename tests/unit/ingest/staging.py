"""Staging and committing batches at a node: what tests of staged batches have in common."""

import errno
import os
from typing import Any

import httpx
import pytest

from bottomless.client.tables import frames_body
from bottomless.model.chunk import AppendMode
from bottomless.model.limits import KIB
from bottomless.model.rows import Rows
from bottomless_server.ingest.producers.commit_plan import CommitPlan
from bottomless_server.ingest.records.conditions import Conditions, FromProducer
from bottomless_server.ingest.service import IngestService
from bottomless_server.ingest.staged.batches import StagedBatches
from unit.ingest.harness import NAME, ROUTE, STREAM, IngestHarness, problem

STAGE = f"/v1/streams/{NAME}/staged"
FRAMES = {"content-type": "application/vnd.bottomless.batches"}
STAGED = "application/vnd.bottomless.staged+json"
KEEP_MS = 60_000
SETTINGS: dict[str, Any] = {
    "ingest_staged_keep_ms": KEEP_MS,
    "ingest_staged_plan_keep_ms": 10 * KEEP_MS,
    "ingest_group_bytes_max": 4 * KIB,
}
LARGE = "x" * 3 * KIB
"""Two of them do not go into one part."""


def body_of(*values: str) -> bytes:
    return frames_body(Rows([value.encode() for value in values], [1] * len(values)))


async def try_stage(harness: IngestHarness, *values: str) -> httpx.Response:
    return await harness.client.post(STAGE, content=body_of(*values), headers=FRAMES)


async def stage(harness: IngestHarness, *values: str) -> str:
    answer = await try_stage(harness, *values)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["staged_id"])


async def commit(
    harness: IngestHarness, *staged_ids: str, number: int = 7, producer: str = "job", **headers: str
) -> httpx.Response:
    named = {
        "content-type": STAGED,
        "producer-id": producer,
        "txn-number": str(number),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return await harness.client.post(ROUTE, json={"staged": list(staged_ids)}, headers=named)


def staged_of(harness: IngestHarness) -> StagedBatches:
    service: IngestService = harness.service
    return service.staged


async def sweep(harness: IngestHarness) -> None:
    """What the timer does."""
    assert harness.service.sweeping
    begun = harness.service.appenders.is_begun
    await staged_of(harness).sweep(begun)


def files(harness: IngestHarness) -> list[str]:
    directory = harness.data_dir / "staged" / STREAM
    return sorted(path.suffix for path in directory.iterdir()) if directory.exists() else []


async def last_number(harness: IngestHarness, producer: str = "job") -> int:
    answer = await harness.client.get(f"/v1/streams/{NAME}/producers/{producer}")
    return int(answer.json()["last_seq"])


async def raise_epoch(harness: IngestHarness) -> httpx.Response:
    return await harness.client.post(f"/v1/streams/{NAME}/producers/job/epoch")


async def begun_by_an_earlier_build(harness: IngestHarness) -> None:
    """A plan of version 1, and its first part under the producer's own number."""
    ids = [await stage(harness, f"{number}{LARGE}") for number in range(3)]
    plan = CommitPlan("job", 7, harness.time.wall, tuple((one,) for one in ids), None)
    await staged_of(harness).save_plan(STREAM, plan)
    async with staged_of(harness).pinned(STREAM, "job", ids) as batches:
        asked = FromProducer("job", 0, AppendMode.TRANSACTION, 7)
        commits = harness.service.appenders.commits
        appender = await harness.service.streams.get(STREAM)
        await commits._appends.append(staged_of(harness), appender, Conditions(asked), batches[:1])


async def cut_off(harness: IngestHarness, appended: int, values: str = "012") -> list[str]:
    """A commit of three parts that the disk breaks after some of them; returns what it named."""
    ids = [await stage(harness, f"{value}{LARGE}") for value in values]
    broken = OSError(errno.EIO, os.strerror(errno.EIO))
    committed = staged_of(harness)
    read, count = committed.read, 0

    async def fails(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count > appended:
            raise broken
        return await read(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(committed, "read", fails)
        answer = await commit(harness, *ids)
    assert problem(answer) == (503, "storage-failed")
    assert answer.json()["outcome"] == "unknown"
    return ids


async def broken_read(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))
