"""Consumer groups are looked after whatever one of them, or a member of the queue, says."""

import pytest
from support.guards import guarded, remove
from support.manifest import STREAM, ManifestHarness, a_record

from bottomless.errors import StoreError
from bottomless.model.names import Reference
from bottomless_server.coordination.base import Changes, Due
from bottomless_server.core.consumer_group import MemberId
from bottomless_server.manifest.consumers.group_changes import GroupChanges, Joining
from bottomless_server.manifest.consumers.group_checks import GroupChecks
from bottomless_server.stores.groups import CHECKS_KEY, group_key

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
