"""Staged batches of a stream with replicas: objects, which the next owner commits as this one would."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import pytest
from support.guards import remove

from bottomless.drives.base import Body, DriveUnavailable
from bottomless.errors import StoreError, Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import StagedPlanKey, staged_plan_key
from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.limits import KIB
from bottomless.model.names import TENANT_DEFAULT
from bottomless.model.stream import StreamRecord
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.ingest.producers.commit_plan import CommitPlan, encode_plan, plan_name
from bottomless_server.ingest.staged import batches as staged_module
from bottomless_server.ingest.staged import commits as commits_module
from bottomless_server.ingest.staged.commit_appends import CommitAppends
from bottomless_server.ingest.staged.object_batches import ObjectBatches
from unit.ingest.harness import NAME, STREAM, IngestHarness, problem
from unit.ingest.replica_services import Node, ThreeServices
from unit.ingest.staging import LARGE, body_of, commit, cut_off, files, raise_epoch, stage

LATE_MS: Final = 300_000
"""After so long callers are told that an outcome is unknown: no busy machine takes that long."""
SETTINGS: Final[dict[str, Any]] = {
    "ingest_group_bytes_max": 4 * KIB,
    "ingest_replica_commit_ms": LATE_MS,
}
PRODUCER: Final = f"/v1/streams/{NAME}/producers/job"
_T = TypeVar("_T")


class SlowDrive(MemoryDrive):
    """A store that gives a while nothing but so many objects."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: int | None = None
        self.keys: set[str] = set()

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        await super().put(object_key, body, crc)
        self.keys.add(object_key)

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        failures = await super().delete(object_keys)
        self.keys.difference_update(object_keys)
        return failures

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        if self.gets is not None:
            if not self.gets:
                raise DriveUnavailable("the store does not answer")
            self.gets -= 1
        return await super().get(object_key, start, size)

    def staged(self) -> list[str]:
        """How the keys of all that is staged end."""
        return sorted(key.rsplit(".", 1)[1] for key in self.keys if "/staged/" in key)


@pytest.fixture(autouse=True)
def nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits that were cut off are finished when a test says so."""
    monkeypatch.setattr(staged_module, "SWEEP_SECONDS", 1e6)


@pytest.fixture
def drive() -> SlowDrive:
    return SlowDrive()


@pytest.fixture
async def three(tmp_path: Path, drive: SlowDrive) -> AsyncIterator[ThreeServices]:
    made = await ThreeServices(tmp_path, drive=drive, **SETTINGS).start()
    for node in made.nodes:
        # A round is held here for as long as a stream may be before it is given away.
        await node.harness.service.replicas.step_down.stop()
    yield made
    await made.aclose()


@pytest.fixture
async def one_of_three(tmp_path: Path, drive: SlowDrive) -> AsyncIterator[ThreeServices]:
    """Three nodes, and a stream that one of them holds at first."""
    made = await ThreeServices(tmp_path / "one", drive=drive, replicas=1, **SETTINGS).start()
    for node in made.nodes:
        await node.harness.service.replicas.step_down.stop()
    yield made
    await made.aclose()


async def meanwhile(three: ThreeServices, asked: Awaitable[_T]) -> _T:
    """What somebody is told, while time goes on."""
    asking = asyncio.ensure_future(asked)
    while not asking.done():
        await three.step()
    return asking.result()


async def ready(three: ThreeServices) -> Node:
    """The owner of the stream, with two nodes in sync."""
    owner = three.nodes[0]
    assert await three.append(owner, "before") == 0
    await three.until_all_in_sync()
    return owner


async def pieces(node: Node, *values: str) -> list[str]:
    """Stage batches of which no two go into one part."""
    return [await stage(node.harness, f"{value}{LARGE}") for value in values]


async def committed(three: ThreeServices, node: Node, *ids: str, number: int = 7) -> httpx.Response:
    """Commit as often as it is refused and may be asked for again."""
    while True:
        answer = await meanwhile(three, commit(node.harness, *ids, number=number))
        if answer.status_code != 503:
            return answer


async def cut_off_after(
    three: ThreeServices, owner: Node, parts: int, drive: SlowDrive, values: str = "012"
) -> list[str]:
    """A commit of which the owner stores some parts, and then is never heard of again."""
    ids = await pieces(owner, *values)
    drive.gets = parts
    answer = await meanwhile(three, commit(owner.harness, *ids))
    assert answer.status_code == 503
    assert answer.json()["outcome"] == ("unknown" if parts else "none")
    drive.gets = None
    await three.cut_off(owner)
    return ids


async def heir_of(three: ThreeServices) -> Node:
    return await three.until_owned_by(*three.nodes[1:])


async def firsts(three: ThreeServices, node: Node) -> list[str]:
    """The first letters of all records, once all are shown."""

    async def are_shown() -> bool:
        log = node.harness.appender.log
        return log.committed_next == log.synced_next

    await three.until(are_shown)
    return [value.decode()[:1] for value in await three.values(node)]


async def test_staged_batches_are_objects_until_they_are_committed(
    three: ThreeServices, drive: SlowDrive
) -> None:
    owner = await ready(three)
    first, second = await stage(owner.harness, "1", "2"), await stage(owner.harness, "3")
    assert drive.staged() == ["staged", "staged"]
    answer = await committed(three, owner, first, second)
    assert (answer.json()["first_offset"], answer.json()["count"]) == (1, 3)
    assert await firsts(three, owner) == ["b", "1", "2", "3"]
    assert drive.staged() == []
    assert all(files(node.harness) == [] for node in three.nodes)


async def test_a_new_owner_finishes_a_commit_that_was_cut_off(
    three: ThreeServices, drive: SlowDrive
) -> None:
    """RP10."""
    ids = await cut_off_after(three, await ready(three), 1, drive)
    heir = await heir_of(three)
    assert drive.staged() == ["plan", "staged", "staged", "staged"]
    await meanwhile(three, heir.harness.service.appenders.finish_commits())
    assert await firsts(three, heir) == ["b", "0", "1", "2"]
    assert drive.staged() == []

    # The client does not know that, and asks again; then it goes on.
    again = await committed(three, heir, *ids)
    assert (again.json()["first_offset"], again.json()["duplicates"]) == (1, 3)
    other = await committed(three, heir, *await pieces(heir, "3", "4"), number=8)
    assert (other.json()["first_offset"], other.json()["count"]) == (4, 2)
    assert await firsts(three, heir) == ["b", "0", "1", "2", "3", "4"]
    assert drive.staged() == []


async def test_a_repeat_in_other_pieces_is_finished_by_the_plan_that_was_begun(
    three: ThreeServices, drive: SlowDrive
) -> None:
    """RP10."""
    await cut_off_after(three, await ready(three), 2, drive)
    heir = await heir_of(three)
    answer = await committed(
        three, heir, await stage(heir.harness, *(f"{n}{LARGE}" for n in "012"))
    )
    assert (answer.json()["count"], answer.json()["duplicates"]) == (1, 2)
    assert await firsts(three, heir) == ["b", "0", "1", "2"]
    assert drive.staged() == []


async def test_the_epoch_of_a_producer_is_raised_when_its_commit_is_whole(
    three: ThreeServices, drive: SlowDrive
) -> None:
    """RP10."""
    await cut_off_after(three, await ready(three), 1, drive)
    heir = await heir_of(three)
    raised = await meanwhile(three, raise_epoch(heir.harness))
    assert (raised.json()["epoch"], raised.json()["last_seq"]) == (1, 7)
    assert await firsts(three, heir) == ["b", "0", "1", "2"]
    old = await committed(three, heir, *await pieces(heir, "3", "4"), number=8)
    assert problem(old) == (409, "producer-fenced")


@pytest.mark.parametrize(
    ("point", "time"),
    [
        ("ingest.commit.after-plan", 0),
        ("ingest.commit.after-part", 0),
        ("ingest.commit.after-part", 2),
        ("ingest.commit.after-append", 0),
    ],
)
async def test_each_record_is_there_once_after_whatever_step_the_owner_died(
    three: ThreeServices, monkeypatch: pytest.MonkeyPatch, point: str, time: int
) -> None:
    owner = await ready(three)
    ids = await pieces(owner, *"012")
    died = asyncio.Event()
    seen: list[str] = []

    async def dies(name: str) -> None:
        seen.append(name)
        if seen.count(point) > time:
            died.set()
            await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(commits_module, "reach", dies)
        asking = asyncio.create_task(commit(owner.harness, *ids))
        await meanwhile(three, died.wait())
    await three.cut_off(owner)
    heir = await heir_of(three)
    answer = await committed(three, heir, *ids)
    assert answer.json()["count"] + answer.json()["duplicates"] == 3
    assert await firsts(three, heir) == ["b", "0", "1", "2"]
    asking.cancel()


async def test_without_the_look_for_plans_the_rest_is_never_found(
    three: ThreeServices, drive: SlowDrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def looks_for_none(_: ObjectBatches) -> None:
        pass

    remove(monkeypatch, "the plans of an earlier owner", looks_for_none)
    ids = await cut_off_after(three, await ready(three), 1, drive)
    refused = await committed(three, await heir_of(three), *ids)
    assert problem(refused) == (404, "staged-not-found")
    assert refused.json()["outcome"] == "unknown"


async def test_without_a_plan_in_the_store_the_rest_is_lost_with_the_node(
    three: ThreeServices, drive: SlowDrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def puts_nothing(*_: object) -> None:
        pass

    remove(monkeypatch, "the plan in the object store before the first part", puts_nothing)
    ids = await cut_off_after(three, await ready(three), 1, drive)
    refused = await committed(three, await heir_of(three), *ids)
    assert problem(refused) == (404, "staged-not-found")


async def committed_without_one(three: ThreeServices, drive: SlowDrive) -> httpx.Response:
    """What is said of a commit of three parts, of which garbage collection has taken the second."""
    owner = await ready(three)
    ids = await pieces(owner, *"012")
    await drive.delete([key for key in drive.keys if ids[1].removeprefix("st_") in key])
    return await committed(three, owner, *ids)


async def test_a_commit_is_not_begun_of_which_a_batch_is_gone(
    three: ThreeServices, drive: SlowDrive
) -> None:
    refused = await committed_without_one(three, drive)
    assert problem(refused) == (404, "staged-not-found")
    assert refused.json()["outcome"] == "none"
    owner = three.nodes[0]
    assert await firsts(three, owner) == ["b"]
    assert drive.staged() == ["staged", "staged"]
    # Its number is free, for the same records staged anew.
    assert (await committed(three, owner, *await pieces(owner, *"012"))).json()["count"] == 3
    assert await firsts(three, owner) == ["b", "0", "1", "2"]


async def test_without_the_look_for_its_batches_a_commit_stays_half(
    three: ThreeServices, drive: SlowDrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def looks_for_none(*_: object) -> None:
        pass

    remove(monkeypatch, "the batches of a plan, looked for before its first part", looks_for_none)
    refused = await committed_without_one(three, drive)
    assert refused.json()["outcome"] == "unknown"
    assert await firsts(three, three.nodes[0]) == ["b", "0"]


async def bound(three: ThreeServices) -> tuple[Node, list[str]]:
    """An owner with half a commit that was begun on its disk; two other nodes have all of the log."""
    owner = three.nodes[0]
    assert await three.append(owner, "before") == 0
    ids = await pieces(owner, *"012")
    append, count = CommitAppends.append, 0

    async def fails(*asked: Any) -> Any:
        nonlocal count
        count += 1
        if count > 1:
            raise DriveUnavailable("not now")
        return await append(*asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitAppends, "append", fails)
        answer = await meanwhile(three, commit(owner.harness, *ids))
    assert answer.json()["outcome"] == "unknown"
    await three.set_replicas(3)
    await three.until_all_in_sync()
    return owner, ids


async def given(three: ThreeServices, owner: Node) -> None:
    giving = asyncio.create_task(owner.harness.service.replicas.transfers.give(STREAM))
    await meanwhile(three, giving)


async def test_a_stream_is_not_given_away_before_a_commit_is_whole_that_was_begun_on_its_disk(
    one_of_three: ThreeServices,
) -> None:
    owner, ids = await bound(one_of_three)
    with pytest.raises(Unavailable):
        await given(one_of_three, owner)
    assert owner.harness.service.streams.owns(STREAM)
    await meanwhile(one_of_three, owner.harness.service.appenders.finish_commits())
    await given(one_of_three, owner)
    heir = await heir_of(one_of_three)
    assert await firsts(one_of_three, heir) == ["b", "0", "1", "2"]
    assert (await committed(one_of_three, heir, *ids)).json()["duplicates"] == 3


async def test_without_that_the_rest_of_the_commit_stays_on_the_disk_of_the_node_before(
    one_of_three: ThreeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the rest of a commit, before a stream is given away", lambda _: None)
    owner, ids = await bound(one_of_three)
    await given(one_of_three, owner)
    heir = await heir_of(one_of_three)
    assert problem(await committed(one_of_three, heir, *ids)) == (404, "staged-not-found")
    assert await firsts(one_of_three, heir) == ["b", "0"]


async def put(drive: MemoryDrive, object_key: str, data: bytes) -> None:
    await drive.put(object_key, [data], crc32c(data))


async def test_the_plan_of_an_earlier_owner_that_lands_late_counts_for_nothing(
    three: ThreeServices, drive: SlowDrive
) -> None:
    owner = await ready(three)
    other = await pieces(owner, "x", "y", "z")
    plan = CommitPlan("job", 7, 0, tuple((one,) for one in other), 0)
    producer = plan_name("job").removesuffix(".plan")
    key = staged_plan_key(STREAM, StagedPlanKey(0, 99, producer), TENANT_DEFAULT)
    ids = await cut_off_after(three, owner, 1, drive)
    await put(drive, key, encode_plan(plan))
    heir = await heir_of(three)
    assert (await committed(three, heir, *ids)).json()["count"] == 2
    assert await firsts(three, heir) == ["b", "0", "1", "2"]


async def test_after_damage_of_its_plan_a_commit_is_refused_until_its_producer_is_forgotten(
    three: ThreeServices, drive: SlowDrive
) -> None:
    ids = await cut_off_after(three, await ready(three), 1, drive)
    [key] = [key for key in drive.keys if key.endswith(".plan")]
    await drive.delete([key])
    await put(drive, key, b"{}")
    heir = await heir_of(three)
    refused = await committed(three, heir, *ids)
    assert (refused.status_code, refused.json()["outcome"]) == (502, "unknown")
    await meanwhile(three, heir.harness.client.delete(PRODUCER))
    answer = await committed(three, heir, *ids)
    assert answer.json()["count"] == 3
    assert await firsts(three, heir) == ["b", "0", "0", "1", "2"]


async def held(three: ThreeServices) -> Node:
    """An owner with a commit whose first part it has, and nobody else answers for."""
    owner = await ready(three)
    ids = await pieces(owner, *"012")
    append = CommitAppends.append

    async def lost_before(*asked: Any) -> Any:
        for node in three.nodes[1:]:
            node.address.gone = True
        return await append(*asked)

    log = owner.harness.appender.log

    async def is_written() -> bool:
        return log.synced_next == 2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitAppends, "append", lost_before)
        asking = asyncio.create_task(commit(owner.harness, *ids))
        await three.until(is_written)
        await pass_time(three, LATE_MS)
        answer = await meanwhile(three, asking)
    assert problem(answer) == (504, "commit-timeout")
    assert answer.json()["outcome"] == "unknown"
    return owner


async def pass_time(three: ThreeServices, ms: int) -> None:
    """Let much time go on, with the leases renewed."""
    for _ in range(0, ms, 3_000):
        three.first.time.advance(3_000)
        for node in three.nodes:
            await node.harness.lease.renew()


async def again_while_held(three: ThreeServices, owner: Node) -> httpx.Response:
    """The same records in other pieces, asked for before and after the other nodes are back."""
    ids = [
        await stage(owner.harness, f"0{LARGE}", f"1{LARGE}"),
        await stage(owner.harness, f"2{LARGE}"),
    ]
    refused = await meanwhile(three, commit(owner.harness, *ids))
    assert problem(refused) == (503, "not-enough-replicas")
    for node in three.nodes:
        node.address.gone = False
    await firsts(three, owner)
    return await committed(three, owner, *ids)


async def test_no_plan_is_made_anew_while_a_part_of_the_one_before_is_held(
    three: ThreeServices,
) -> None:
    owner = await held(three)
    answer = await again_while_held(three, owner)
    assert (answer.json()["count"], answer.json()["duplicates"]) == (2, 1)
    assert await firsts(three, owner) == ["b", "0", "1", "2"]


async def test_without_that_the_plan_is_lost_by_which_a_held_part_was_stored(
    three: ThreeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "no held round before a plan is made anew", lambda _: None)
    owner = await held(three)
    assert problem(await again_while_held(three, owner)) == (404, "staged-not-found")


@pytest.fixture
async def alone(tmp_path: Path, drive: SlowDrive) -> AsyncIterator[IngestHarness]:
    """One node, with a stream that lies there alone."""
    made = await IngestHarness(tmp_path / "alone", drive=drive, **SETTINGS).declare()
    yield await made.start()
    await made.aclose()


async def replicated(harness: IngestHarness, replicas: int) -> None:
    """Open the stream anew with another number of replicas, of which one has to be in sync."""

    def asked(record: StreamRecord) -> StreamRecord:
        if replicas == 1:
            # No other node holds it: so the owner takes itself out of the record as well.
            return replace(record, config=StreamConfig(), members=(), in_sync=())
        replication = ReplicationConfig(replicas=replicas, min_in_sync=1)
        return replace(record, config=StreamConfig(replication=replication))

    await harness.streams.update(STREAM, asked)
    await harness.service.streams.close(STREAM)
    opened = await harness.service.streams.get(STREAM)
    assert opened.has_replicas == (replicas > 1)


async def first_letters(harness: IngestHarness) -> list[str]:
    return [value.decode()[:1] for value in await harness.values()]


async def test_what_was_staged_on_a_disk_is_committed_when_the_stream_has_replicas(
    alone: IngestHarness, drive: SlowDrive
) -> None:
    """RP7, staged: 1 to 3 by PATCH."""
    ids = [await stage(alone, f"{value}{LARGE}") for value in "012"]
    assert (len(files(alone)), drive.staged()) == (3, [])
    await replicated(alone, 3)
    ids.append(await stage(alone, f"3{LARGE}"))
    answer = await commit(alone, *ids)
    assert answer.json()["count"] == 4, answer.text
    assert await first_letters(alone) == ["0", "1", "2", "3"]
    assert (files(alone), drive.staged()) == ([], [])


async def test_what_was_staged_as_objects_is_committed_when_the_stream_lies_here_alone(
    alone: IngestHarness, drive: SlowDrive
) -> None:
    """3 to 1 by PATCH."""
    await replicated(alone, 3)
    ids = [await stage(alone, f"{value}{LARGE}") for value in "012"]
    assert (files(alone), len(drive.staged())) == ([], 3)
    await replicated(alone, 1)
    ids.append(await stage(alone, f"3{LARGE}"))
    answer = await commit(alone, *ids)
    assert answer.json()["count"] == 4, answer.text
    assert await first_letters(alone) == ["0", "1", "2", "3"]
    assert (files(alone), drive.staged()) == ([], [])


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
async def test_a_commit_is_finished_where_it_was_begun(
    alone: IngestHarness, drive: SlowDrive, before: int, after: int
) -> None:
    await replicated(alone, before)
    ids = [await stage(alone, f"{value}{LARGE}") for value in "012"]
    with pytest.MonkeyPatch.context() as patch:
        append, count = CommitAppends.append, 0

        async def fails(*asked: Any) -> Any:
            nonlocal count
            count += 1
            if count > 1:
                raise DriveUnavailable("not now")
            return await append(*asked)

        patch.setattr(CommitAppends, "append", fails)
        assert (await commit(alone, *ids)).json()["outcome"] == "unknown"
    await replicated(alone, after)
    await alone.service.appenders.finish_commits()
    assert await first_letters(alone) == ["0", "1", "2"]
    assert (files(alone), drive.staged()) == ([], [])
    assert (await commit(alone, *ids)).json()["duplicates"] == 3


async def test_a_node_without_an_object_store_stages_nothing_for_a_stream_with_replicas(
    tmp_path: Path,
) -> None:
    harness = await (await IngestHarness(tmp_path / "ingest").declare()).start()
    await replicated(harness, 3)
    refused = await harness.client.post(
        f"/v1/streams/{NAME}/staged",
        content=body_of("a"),
        headers={"content-type": "application/vnd.bottomless.batches"},
    )
    assert problem(refused) == (422, "validation-failed")
    assert "BOTTOMLESS_STORE_URL" in refused.json()["errors"][0]["detail"]
    await harness.aclose()


async def test_a_stream_that_lies_here_alone_does_without_the_store(
    alone: IngestHarness, drive: SlowDrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while a commit of another producer is open, of which only this disk has the rest."""

    def is_away(*_: object) -> None:
        raise DriveUnavailable("the store does not answer")

    monkeypatch.setattr(drive, "list", is_away)
    drive.gets = 0
    await cut_off(alone, 1)
    ids = [await stage(alone, f"{value}{LARGE}") for value in "345"]
    assert (await commit(alone, *ids, producer="other")).json()["count"] == 3
    assert (await commit(alone, *ids, producer="other")).json()["duplicates"] == 3
    await alone.service.appenders.finish_commits()
    assert await first_letters(alone) == ["0", "3", "4", "5", "1", "2"]
