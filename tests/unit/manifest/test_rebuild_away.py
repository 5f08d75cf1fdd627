"""A rebuild while a drive is away: other streams go on, and so does a stream that cannot lose by it."""

from dataclasses import replace

import pytest
from support import guards
from support.drives import bring_back, register, take_away
from support.guards import remove
from support.manifest import NEIGHBOUR, NODE, OWNER, STREAM, a_record
from support.moving import COLD, HOT, Moving, a_moving_stream
from support.rebuilding import nothing, put_registry, rebuild
from unit.manifest.test_first_tier import POLICY, give, intended, put
from unit.manifest.test_garbage import collect
from unit.manifest.test_rebuild_drives import firsts_and_drives, lost, put_and_not_published

from bottomless.drives.base import DriveUnavailable
from bottomless.formats.stream_record import decode_record, encode_record, encode_registry
from bottomless.model.names import TENANT_DEFAULT, StreamName, Uid
from bottomless.model.stream import Intent
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.mutators.sessions import begin
from bottomless_server.manifest.mutators.takeover import take_over
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done
from bottomless_server.manifest.recovery.rebuild import Rebuild
from bottomless_server.manifest.recovery.regression import is_served
from bottomless_server.manifest.recovery.waiting_streams import LOOK_AGAIN_MS
from bottomless_server.manifest.removal.drive_loss import DriveLoss
from bottomless_server.protocol.uploads import INTENT_COUNT_MAX
from bottomless_server.stores.operations import OperationStore
from bottomless_server.stores.streams import stream_key

OTHER = 9
"""The number of a third drive."""


async def rebuilt_while_away() -> Moving:
    """A fragment is on the drive that no root names; the drive is away, and comes back afterwards."""
    return await rebuilt_without(await put_and_not_published())


async def rebuilt_without(moving: Moving) -> Moving:
    await take_away(moving.harness.context.drives, COLD)
    await rebuild(moving.harness)
    await moving.reopen()
    await moving.committer.change(lambda record: replace(record, owner_url=OWNER))
    await bring_back(moving.harness.context.drives, COLD)
    return moving


async def rebuilt_without_the_middle() -> Moving:
    """One more fragment continues on drive 0 what the rebuild did not see."""
    moving = await a_moving_stream(1)
    await register(moving.harness.drive, COLD)
    await give(moving, POLICY)
    await put(moving, await intended(moving, COLD), COLD)
    await put(moving, await intended(moving, at=20), HOT, at=20)
    await lost(moving)
    return await rebuilt_without(moving)


async def test_a_stream_whose_root_names_nothing_on_a_drive_is_rebuilt_without_it() -> None:
    moving = await put_and_not_published()
    await take_away(moving.harness.context.drives, COLD)

    await rebuild(moving.harness)

    record = await moving.harness.record()
    assert record.unseen == (COLD,)
    assert await firsts_and_drives(moving) == [(0, HOT)]
    assert decode_record(encode_record(record)) == record
    # The next rebuild looks for itself.
    assert encode_registry(record) == encode_registry(replace(record, unseen=()))


async def test_what_lay_there_is_adopted_when_the_drive_is_back() -> None:
    moving = await rebuilt_while_away()
    moving.harness.owners.committed[STREAM] = 20

    await begin(moving.harness.context, moving.committer, "s2")

    assert await firsts_and_drives(moving) == [(0, HOT), (10, COLD)]
    assert (await moving.harness.record()).unseen == ()
    await moving.after_the_grace()
    await moving.check_nothing_else_is_there()


async def test_what_lay_there_is_given_up_where_nobody_vouches_for_it() -> None:
    moving = await rebuilt_while_away()
    moving.harness.owners.committed[STREAM] = 10

    await begin(moving.harness.context, moving.committer, "s2")

    assert [one.drive for one in (await moving.harness.record()).quarantine] == [COLD]
    await moving.after_the_grace()
    assert await moving.fragments(COLD) == []


async def test_uploads_go_on_while_the_drive_is_still_away() -> None:
    moving = await rebuilt_while_away()
    await take_away(moving.harness.context.drives, COLD)
    await begin(moving.harness.context, moving.committer, "s2")
    assert (await moving.harness.record()).unseen == (COLD,)


async def test_nobody_takes_what_was_not_seen_for_garbage() -> None:
    moving = await rebuilt_while_away()
    await collect(moving.harness)
    await moving.after_the_grace()
    assert len(await moving.fragments(COLD)) == 1


async def test_without_the_look_at_what_was_not_seen_it_is_deleted_as_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guards.remove(monkeypatch, "what a rebuild did not see is no garbage", lambda *_: False)
    moving = await rebuilt_while_away()
    await collect(moving.harness)
    await moving.after_the_grace()
    assert await moving.fragments(COLD) == []


async def test_a_takeover_waits_for_what_was_not_seen_and_adopts_it() -> None:
    moving = await rebuilt_while_away()
    epoch = (await moving.harness.record()).epoch
    await take_away(moving.harness.context.drives, COLD)
    with pytest.raises(DriveUnavailable):
        await take_over(moving.harness.context, moving.committer, NODE, epoch)
    await bring_back(moving.harness.context.drives, COLD)

    await take_over(moving.harness.context, moving.committer, NODE, epoch)

    assert (await firsts_and_drives(moving))[:2] == [(0, HOT), (10, COLD)]


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_takeover_adopts_what_continues_on_another_drive_what_was_not_seen(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing_more(*_: object) -> list[Intent]:
        return []

    if not guarded:
        remove(monkeypatch, "what continues on another drive what was not seen", nothing_more)
    moving = await rebuilt_without_the_middle()
    await collect(moving.harness)
    await moving.after_the_grace()

    epoch = (await moving.harness.record()).epoch
    await take_over(moving.harness.context, moving.committer, NODE, epoch)

    found = await firsts_and_drives(moving)
    assert found[:2] == [(0, HOT), (10, COLD)]
    assert ((20, HOT) in found) is guarded


async def test_a_session_adopts_it_where_the_owner_vouches_for_it() -> None:
    moving = await rebuilt_without_the_middle()
    moving.harness.owners.committed[STREAM] = 30
    await begin(moving.harness.context, moving.committer, "s2")
    assert await firsts_and_drives(moving) == [(0, HOT), (10, COLD), (20, HOT)]
    assert (await moving.harness.record()).unseen == ()
    await moving.after_the_grace()
    await moving.check_nothing_else_is_there()


@pytest.mark.parametrize("first", [COLD, OTHER])
async def test_a_session_gives_up_nothing_while_one_of_two_drives_is_still_away(first: int) -> None:
    """One run goes over three drives, and home is lost after the first of two is back."""
    moving = await a_moving_stream(1, OTHER)
    await register(moving.harness.drive, COLD, OTHER)
    for drive, at in ((COLD, 10), (OTHER, 20)):
        await give(moving, [{"drive": f"d{drive}", "max_bytes": "1 GiB"}, {"drive": "default"}])
        await put(moving, await intended(moving, drive, at=at), drive, at=at)
    await put(moving, await intended(moving, at=30), HOT, at=30)
    await lost(moving)
    drives = moving.harness.context.drives
    await take_away(drives, OTHER)
    await rebuilt_without(moving)
    if first == OTHER:
        await take_away(drives, COLD)
        await bring_back(drives, OTHER)
    moving.harness.owners.committed[STREAM] = 40

    await begin(moving.harness.context, moving.committer, "s2")
    await moving.after_the_grace()
    for drive in {COLD, OTHER} - {first}:
        await bring_back(drives, drive)
    epoch = (await moving.harness.record()).epoch
    await take_over(moving.harness.context, moving.committer, NODE, epoch)

    assert (await firsts_and_drives(moving))[:4] == [(0, HOT), (10, COLD), (20, OTHER), (30, HOT)]


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_takeover_adopts_it_however_many_uploads_are_under_way(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        remove(monkeypatch, "room for what a gap would cover", lambda _: INTENT_COUNT_MAX)
    moving = await rebuilt_while_away()
    others = tuple(
        Intent(Uid(f"{2**64 + number:032x}"), 1_000 + number, "s9", HOT)
        for number in range(INTENT_COUNT_MAX)
    )
    await moving.committer.change(lambda record: replace(record, intents=others, uploader="s9"))

    epoch = (await moving.harness.record()).epoch
    await take_over(moving.harness.context, moving.committer, NODE, epoch)

    assert ((10, COLD) in await firsts_and_drives(moving)) is guarded


async def test_without_that_wait_a_takeover_gives_up_what_lies_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nowhere(*_: object) -> None:
        pass

    guards.remove(monkeypatch, "all drives before a gap", nowhere)
    moving = await rebuilt_while_away()
    epoch = (await moving.harness.record()).epoch
    await take_over(moving.harness.context, moving.committer, NODE, epoch)
    assert (10, COLD) not in await firsts_and_drives(moving)


async def whose_newest_root_is_damaged() -> Moving:
    """Two fragments are published; the second one is on the drive that is away, and so is its root lost."""
    moving = await a_moving_stream(1)
    await register(moving.harness.drive, COLD)
    await give(moving, POLICY)
    info = await put(moving, await intended(moving, COLD), COLD)
    first_root = (await moving.harness.record()).root
    await moving.committer.register("s1", [info])
    await moving.committer.flush()
    (newest,) = [
        key
        for key in await moving.keys(HOT)
        if "/metadata/root." in key and first_root is not None and first_root.uid not in key
    ][-1:]
    moving.harness.drive.flip(newest, -1)
    await lost(moving)
    await take_away(moving.harness.context.drives, COLD)
    return moving


async def outcome_of(moving: Moving, steps: int = 12) -> Again | Done:
    """What a rebuild has come to after some steps, or at its end."""
    operations = Operations(moving.harness.context)
    rebuilding = Rebuild(moving.harness.context, operations, nothing, stream_count=1)
    operation = await rebuilding.begin(TENANT_DEFAULT)
    store = OperationStore(moving.harness.coordination)
    for _ in range(steps):
        outcome = await rebuilding.step(moving.harness.context, operation)
        if not isinstance(outcome, Again) or outcome.due_at:
            break
        operation = await store.move(operation, 0, 0, progress=dict(outcome.progress))
    assert isinstance(outcome, Again | Done)
    return outcome


async def test_a_stream_waits_for_a_drive_where_published_records_may_lie() -> None:
    moving = await whose_newest_root_is_damaged()
    waits = await outcome_of(moving)
    assert isinstance(waits, Again)
    assert waits.progress["waiting"] == [f"default/{STREAM}"]

    await bring_back(moving.harness.context.drives, COLD)
    result = await rebuild(moving.harness)
    assert [first for first, _ in await firsts_and_drives(moving)] == [0, 10]
    assert result["streams"] == 1


async def test_a_rebuild_that_waits_for_a_drive_goes_on_when_it_is_said_to_be_lost() -> None:
    moving = await whose_newest_root_is_damaged()
    assert isinstance(await outcome_of(moving), Again)
    context = moving.harness.context
    operations = Operations(context)
    loss = DriveLoss(context, operations, Mutators(context))

    operation = await loss.begin(f"d{COLD}", f"d{COLD}", TENANT_DEFAULT)
    moving.harness.clock.now += LOOK_AGAIN_MS
    await rebuild(moving.harness)

    assert await firsts_and_drives(moving) == [(0, HOT)]
    assert not (await operations.find(operation.operation_id)).finished, "it goes on by itself"


async def test_without_the_rule_of_what_may_be_passed_over_published_records_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guards.remove(monkeypatch, "what a drive that is away may decide", lambda *_: True)
    moving = await whose_newest_root_is_damaged()
    await rebuild(moving.harness)
    assert [first for first, _ in await firsts_and_drives(moving)] == [0]


def test_of_drives_only_what_is_in_the_bucket_is_answered_while_coordination_is_lost() -> None:
    assert is_served("/v1/drives")
    assert is_served("/v1/admin/drives/shelf/lost")
    assert not is_served("/v1/admin/drives/shelf")
    assert not is_served("/v1/admin/drives/shelf/lost/")
    assert not is_served("/v1/streams/lost")


async def test_a_stream_that_waits_holds_up_no_other_stream() -> None:
    moving = await whose_newest_root_is_damaged()
    other = a_record(stream_id=NEIGHBOUR, home=NODE, name=StreamName("others"))
    await put_registry(moving.harness, other)

    waits = await outcome_of(moving)

    assert isinstance(waits, Again)
    assert waits.due_at > moving.harness.clock.now
    assert waits.error is not None
    assert (waits.progress["streams"], waits.progress["waiting_streams"]) == (1, 1)
    assert await moving.harness.coordination.get(stream_key(NEIGHBOUR)) is not None
    assert await moving.harness.coordination.get(stream_key(STREAM)) is None
