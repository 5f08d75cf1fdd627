"""Consumer groups are looked after whatever one of them, or a member of the queue, says."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from support.guards import guarded, remove
from support.manifest import STREAM, ManifestHarness, a_record

from bottomless.errors import Outcome, StoreError, Unavailable
from bottomless.model.names import Reference
from bottomless_server.coordination.base import Changes, CoordinationUnknown, Due
from bottomless_server.core.consumer_group import MemberId
from bottomless_server.manifest.common import lines
from bottomless_server.manifest.consumers.group_changes import GroupChanges, Joining
from bottomless_server.manifest.consumers.group_checks import GroupChecks
from bottomless_server.stores.groups import CHECKS_KEY, Lease, group_key, member_key

BILLING, AUDIT = Reference("billing"), Reference("audit")
LEASE_MS = 5_000


class Checked:
    """Two groups, each with one member, whose leases run out soon."""

    def __init__(self) -> None:
        self.harness = ManifestHarness()
        self.changes = GroupChanges(self.harness.context)
        self.checks = GroupChecks(self.harness.context, self.changes)

    async def begin(self) -> None:
        await self.harness.streams.create(a_record())
        record = await self.harness.streams.load(STREAM)
        for group in (AUDIT, BILLING):
            await self.changes.join(record, group, Joining(Reference("m"), LEASE_MS, None))
        self.harness.clock.now += 2 * LEASE_MS

    def queue(self, *members: bytes) -> None:
        dues = [Due(CHECKS_KEY, member, 0) for member in members]
        self.harness.coordination.write(Changes(queued=dues))

    async def members_of(self, group: Reference) -> list[MemberId]:
        found = await self.changes.groups.find(STREAM, group)
        assert found is not None
        return [one.member_id for one in found.members]


@pytest.mark.parametrize("guarded_", [True, False])
async def test_without_its_guard_one_member_of_the_queue_ends_the_look_at_all_groups(
    guarded_: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later release may have queued it, before a roll-back."""
    name = "what cannot be read of the queue of checks, told beside the others"
    parse = guarded(name)

    def raising(member: bytes) -> object:
        found = parse(member)
        if isinstance(found, Exception):
            raise found
        return found

    if not guarded_:
        remove(monkeypatch, name, raising)
    checked = Checked()
    await checked.begin()
    checked.queue(b"tide:all:of:it", b"member", b"partition:a:b:c", b"\xff")

    if not guarded_:
        with pytest.raises(StoreError):
            await checked.checks.look()
        assert len(await checked.members_of(BILLING)) == 1
        return
    await checked.checks.look()
    assert await checked.members_of(BILLING) == await checked.members_of(AUDIT) == []
    now = checked.harness.clock.now
    assert await checked.harness.coordination.due(CHECKS_KEY, now, 10) == []
    assert len(await checked.harness.coordination.due(CHECKS_KEY, now + 3_600_000, 10)) == 4


async def test_a_group_that_cannot_be_read_keeps_no_other_from_being_looked_after() -> None:
    checked = Checked()
    await checked.begin()
    checked.harness.coordination.write(Changes({group_key(STREAM, AUDIT): b"{}"}))

    await checked.checks.look()

    assert await checked.members_of(BILLING) == []
    now = checked.harness.clock.now
    assert await checked.harness.coordination.due(CHECKS_KEY, now, 10) == []


async def test_many_who_join_one_group_at_once_are_all_let_in_by_any_process() -> None:
    """Each EXEC of one changes what all others watch: sixteen at once used up all attempts of somebody,
    who was told 503."""
    harness = ManifestHarness()
    await harness.streams.create(a_record())
    record = await harness.streams.load(STREAM)
    processes = [GroupChanges(harness.context) for _ in range(3)]
    first, *names = [Reference(f"m{number}") for number in range(97)]
    # Who comes into a group that is new stands in the line of its scope as well.
    await processes[0].join(record, BILLING, Joining(first, LEASE_MS, None))

    await asyncio.gather(
        *(
            processes[number % 3].join(record, BILLING, Joining(name, LEASE_MS, None))
            for number, name in enumerate(names)
        )
    )

    found = await processes[0].groups.find(STREAM, BILLING)
    assert found is not None
    assert {one.name for one in found.members} == {first, *names}


async def test_who_dies_of_one_group_at_one_time_is_struck_out_by_one_exec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = Checked()
    await checked.harness.streams.create(a_record())
    record = await checked.harness.streams.load(STREAM)
    joining = [Joining(Reference(f"m{number}"), LEASE_MS, None) for number in range(50)]
    ids = [(await checked.changes.join(record, BILLING, one))[0] for one in joining]
    checked.harness.clock.now += 2 * LEASE_MS
    lives = ids[7]
    transact, asked = checked.harness.coordination.transact, list[int]()

    async def counted(keys: Sequence[str], *given: Any, **named: Any) -> Any:
        asked.append(len(keys))
        if len(asked) == 1:
            # A heartbeat at the last moment.
            await checked.changes.groups.hold(lives, Lease(STREAM, BILLING, LEASE_MS))
        return await transact(keys, *given, **named)

    monkeypatch.setattr(checked.harness.coordination, "transact", counted)
    await checked.checks.look()

    assert asked == [1 + len(ids)]
    assert await checked.members_of(BILLING) == [lives]
    found = await checked.changes.groups.find(STREAM, BILLING)
    assert found is not None
    # Nobody who was dead held it on the way.
    assert (found.partitions[0].holder, found.counter) == (lives, 2)
    now = checked.harness.clock.now
    left = await checked.harness.coordination.due(CHECKS_KEY, now, 100)
    assert [due.member for due in left] == [f"member:{STREAM}:{BILLING}:{lives}".encode()]


@pytest.mark.parametrize("guarded_", [True, False])
async def test_who_waits_in_line_leaves_a_holder_its_time_and_comes_in_alive(
    guarded_: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decided by the time at which it had begun to wait, ten seconds at most: as many as a holder has to
    end its batch. And a lease of five seconds was over when its member came in."""
    if not guarded_:
        remove(
            monkeypatch,
            "what has passed in line, before a change of a group is decided",
            lambda asked, _: asked,
        )
    checked = Checked()
    coordination, clock = checked.harness.coordination, checked.harness.clock
    await checked.harness.streams.create(a_record())
    record = await checked.harness.streams.load(STREAM)
    joining = [Joining(Reference(name), LEASE_MS, None) for name in ("first", "second", "third")]
    for one in joining[:2]:
        await checked.changes.join(record, BILLING, one)
    transact, turn = coordination.transact, asyncio.Event()

    async def slow(*given: Any, **named: Any) -> Any:
        await turn.wait()
        return await transact(*given, **named)

    monkeypatch.setattr(coordination, "transact", slow)
    before = asyncio.create_task(checked.changes.take_overdue(STREAM, BILLING))
    moving = asyncio.create_task(checked.changes.activate(STREAM, BILLING, 0, Reference("second")))
    third = asyncio.create_task(checked.changes.join(record, BILLING, joining[2]))
    for _ in range(20):
        await asyncio.sleep(0)
    clock.now += 9_000
    turn.set()
    await before
    group, (member_id, _) = await moving, await third

    (asked_back,) = group.partitions
    assert asked_back.revoke_at is not None
    left = asked_back.revoke_at - clock.now
    assert left == (group.revoke_ms if guarded_ else group.revoke_ms - 9_000)
    assert await coordination.remaining([member_key(member_id)]) == [LEASE_MS]


async def lose_the_first_reply(
    checked: Checked, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Awaitable[None]]
) -> Joining:
    """A group in which somebody is, and somebody else, the reply to whose join is lost; `meanwhile` goes on
    between its two attempts."""
    coordination = checked.harness.coordination
    await checked.harness.streams.create(a_record())
    record = await checked.harness.streams.load(STREAM)
    await checked.changes.join(record, BILLING, Joining(Reference("first"), LEASE_MS, None))
    transact = coordination.transact

    async def lost(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(coordination, "transact", transact)
        await transact(*given, **named)
        await meanwhile()
        raise CoordinationUnknown("the reply was lost")

    monkeypatch.setattr(coordination, "transact", lost)
    return Joining(Reference("m"), LEASE_MS, None)


async def test_who_is_let_in_once_more_after_a_lost_reply_has_its_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reply was waited for longer than the lease is: it was told that it is in the group, and was
    struck out at the next look."""
    checked = Checked()

    async def wait() -> None:
        checked.harness.clock.now += 2 * LEASE_MS

    joining = await lose_the_first_reply(checked, monkeypatch, wait)
    record = await checked.harness.streams.load(STREAM)

    member_id, _ = await checked.changes.join(record, BILLING, joining)

    left = await checked.harness.coordination.remaining([member_key(member_id)])
    assert left == [LEASE_MS]


async def test_who_gets_no_second_turn_after_a_lost_reply_does_not_hear_that_nothing_was_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody else had come first, and was slow; the first attempt had let it in."""
    checked = Checked()
    waiting, turn = list[asyncio.Task[None]](), asyncio.Event()

    async def slow(*_: Any, **__: Any) -> Any:
        await turn.wait()

    async def let_another_come_first() -> None:
        waiting.append(asyncio.create_task(checked.changes.take_overdue(STREAM, BILLING)))
        for _ in range(20):
            await asyncio.sleep(0)
        monkeypatch.setattr(checked.harness.coordination, "transact", slow)
        monkeypatch.setattr(lines, "TURN_SECONDS", 0)

    joining = await lose_the_first_reply(checked, monkeypatch, let_another_come_first)
    record = await checked.harness.streams.load(STREAM)

    with pytest.raises(Unavailable) as told:
        await checked.changes.join(record, BILLING, joining)
    assert told.value.outcome is Outcome.UNKNOWN
    turn.set()
    await asyncio.gather(*waiting)
