"""The loss of a drive that died between its root and its EXEC, and then the loss of coordination."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest
from support.guards import remove
from support.manifest import STREAM, Fault
from support.moving import COLD, HOT
from support.rebuilding import rebuild
from unit.manifest.test_kept_of_lost_drives import gaps
from unit.manifest.test_lost_drives import NAME, Losing, a_losing, take_it_away
from unit.manifest.test_rebuild_drives import lost

from bottomless.drives.base import Body
from bottomless.errors import Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import fragment_place
from bottomless.model.names import Uid
from bottomless_server.manifest.mutators.losing import Losses, give_up_uploads, lose_drive
from bottomless_server.manifest.mutators.moves import Claimed, claim
from bottomless_server.manifest.tree.committer import Committer

HIGH = 2**100


async def told(there: Losing, uids_from: int) -> Losses:
    """A process tells the stream; uids of what it puts are `uids_from` and so on."""
    harness = there.moving.harness
    numbers = count(uids_from)
    new_uid: Callable[[], Uid] = lambda: Uid(f"{next(numbers):032x}")  # noqa: E731
    context = replace(harness.context, new_uid=new_uid)
    await give_up_uploads(context, await harness.record(), COLD)
    return await lose_drive(context, await Committer.open(context, STREAM), COLD)


async def told_in_vain(
    there: Losing, monkeypatch: pytest.MonkeyPatch, uids_from: int = HIGH
) -> None:
    """It puts the root with the gaps, and then coordination does not answer."""
    harness = there.moving.harness
    put = harness.drive.put

    async def put_and_hear_nothing(object_key: str, body: Body, crc: int) -> None:
        await put(object_key, body, crc)
        if "/metadata/root." in object_key:
            harness.coordination.faults = [Fault.UNAVAILABLE]

    with monkeypatch.context() as patched:
        patched.setattr(harness.drive, "put", put_and_hear_nothing)
        with pytest.raises(Unavailable):
            await told(there, uids_from)
    assert harness.coordination.faults == []


async def test_a_rebuild_believes_gaps_that_were_about_to_be_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = await a_losing()
    await take_it_away(there)
    await there.loss.begin(NAME, NAME, "default")
    await told_in_vain(there, monkeypatch)
    assert await gaps(there) == []

    await lost(there.moving)
    await rebuild(there.moving.harness)

    assert await gaps(there) == [10, 20, 30]
    assert [info.first_offset for info in await there.moving.leaves()] == [0, 40, 50]


async def read_of(there: Losing, claimed: Claimed) -> dict[str, bytes]:
    """What a mover has read, by the keys of the copies that it puts."""
    found: dict[str, bytes] = {}
    for info in claimed.fragments:
        source = fragment_place(STREAM, info, "default")
        copy = info._replace(drive=HOT, copy=claimed.move.copy)
        data = bytes(await there.moving.drive(source.drive).get(source.object_key))
        found[fragment_place(STREAM, copy, "default").object_key] = data
    return found


async def kept_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch, uids_from: int, uids_then_from: int
) -> list[int]:
    """A mover has read what lies on a drive, which is lost. Who tells the stream puts a root with gaps, and no
    more. The copies land, and the next one names them, under the same version. Returns the gaps that there are
    after a loss of coordination."""
    there = await a_losing()
    moving, context = there.moving, there.moving.harness.context
    number = await moving.enter(10, 30, COLD, HOT)
    copies = await read_of(there, await claim(context, moving.committer, number, "m1"))
    await take_it_away(there)
    await there.loss.begin(NAME, NAME, "default")
    await told_in_vain(there, monkeypatch, uids_from)
    for object_key, data in copies.items():
        await moving.harness.drive.put(object_key, [data], crc32c(data))
    assert (await told(there, uids_then_from)).kept.fragment_count == 2
    assert await gaps(there) == [30]

    await lost(moving)
    await rebuild(moving.harness)
    return await gaps(there)


UIDS = [(HIGH, 2 * HIGH), (2 * HIGH, HIGH)]


@pytest.mark.parametrize(("first", "then"), UIDS)
async def test_what_was_named_again_is_named_after_a_rebuild(
    first: int, then: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await kept_by_the_next_one(monkeypatch, first, then) == [30]


async def test_without_the_count_of_records_it_depends_on_uids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "more records, of roots of one version and one end", lambda _: 0)
    assert await kept_by_the_next_one(monkeypatch, 2 * HIGH, HIGH) == [10, 20, 30]
