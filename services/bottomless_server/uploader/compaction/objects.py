"""Get WAL objects for a round: each whole, and once. Nothing is written.

What is wrong with an object may be of the way that it came, so it is fetched once more. Then its pieces
are judged one by one: damage to one of them is of its stream alone (stream_runs.py).
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.errors import Corrupt, Unavailable
from bottomless.formats.keys import WAL_PREFIX, parse_wal_key, wal_key
from bottomless.formats.wal import WalDirectory, decode_directory, decode_wal
from bottomless.model.names import Uid
from bottomless_server.runtime.base.task_groups import task_group
from bottomless_server.uploader.compaction.core.waiting import Place, WaitingObjects

log = structlog.get_logger(__name__)

GETS_AT_ONCE: Final = 8


class WalObject(NamedTuple):
    """An object as a round has it."""

    data: memoryview
    directory: WalDirectory | None
    """None where it is damaged: nobody can tell then which streams the object has."""


class Fetched(NamedTuple):
    """What a round got."""

    objects: dict[Place, WalObject]
    missing: list[Place]
    """What is held, and not there."""


async def find_sizes(drive: Drive, objects: WaitingObjects, places: Iterable[Place]) -> None:
    """Learn how large objects are, by one listing for each of their instances.

    Raises:
        DriveUnavailable, DriveRefused
    """
    wanted: Mapping[Uid, set[int]] = defaultdict(set)
    for place in objects.unsized(places):
        wanted[place.instance].add(place.sequence)
    for instance, sequences in wanted.items():
        first, last = min(sequences), max(sequences)
        after = wal_key(instance, first - 1) if first else ""
        async for facts in drive.list(f"{WAL_PREFIX}{instance}/", after):
            found = parse_wal_key(facts.object_key)
            if found is None or found.sequence > last:
                break
            if found.sequence in sequences:
                objects.sized(Place(instance, found.sequence), facts.size)


async def fetch(drive: Drive, places: Sequence[Place]) -> Fetched:
    """Get objects. One that the store does not give now is left out, and the log has it."""
    fetched = Fetched({}, [])
    room = asyncio.Semaphore(GETS_AT_ONCE)

    async def fetch_one(place: Place) -> None:
        async with room:
            try:
                fetched.objects[place] = await _get_whole(drive, place)
            except ObjectMissing:
                log.exception("a WAL object is held and not there", **place._asdict())
                fetched.missing.append(place)
            except Unavailable as error:
                log.warning("no WAL object now", **place._asdict(), error=str(error))

    async with task_group() as gets:
        for place in places:
            gets.create_task(fetch_one(place))
    return fetched


async def _get_whole(drive: Drive, place: Place) -> WalObject:
    data = memoryview(b"")
    for again in (False, True):
        data = memoryview(await drive.get(wal_key(*place)))
        try:
            return WalObject(data, await asyncio.to_thread(decode_wal, data))
        except Corrupt as error:
            write = log.error if again else log.warning
            write("a WAL object is damaged", **place._asdict(), again=again, error=str(error))
    try:
        return WalObject(data, decode_directory(data))
    except Corrupt:
        return WalObject(data, None)
