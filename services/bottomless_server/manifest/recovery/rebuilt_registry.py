"""Find what the bucket says of a stream, and say it once more in the generation of a rebuild.

A process of the generation before may put a registry object at any time: it wrote the record of a
stream, stood still while coordination was lost and rebuilt, and goes on. So versions alone do not
tell what came last. Each rebuild puts an object of its own generation for every stream that it
restores, above all that it found; of several the highest generation counts, and then the highest
version. What is put late is then of an older generation, and counts for nobody.

That holds for tombstones too: an attempt that was given up may have left an object that says that
the stream lives.

After a crash that follows the put, and comes before the record is in coordination, the object is
one of a generation that did not come. The next attempt puts another one above it, and never takes
it for its own, even where it says the same: its delete may be under way. Nothing is deleted here;
the objects that the new one replaces are named, to be deleted when coordination says so.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import structlog

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.errors import Corrupt, NotServed, Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import parse_registry_key, registry_key, stream_prefix
from bottomless.formats.stream_record import TIERS, decode_registry, encode_registry
from bottomless.guards import guard
from bottomless.model.config import RetentionConfig, StreamConfig
from bottomless.model.drive import DriveRegistry
from bottomless.model.stream import StreamRecord
from bottomless_server.drives.table import load_registry
from bottomless_server.manifest.common.context import Context
from bottomless_server.stores.put_retries import put_object
from bottomless_server.stores.read_again import read_again
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.restored_streams import name_in

log = structlog.get_logger(__name__)

_ALL: Final = RetentionConfig(max_age="unlimited", max_bytes="unlimited")


class ReadRegistry(NamedTuple):
    """The registry objects below one prefix."""

    sound: list[StreamRecord]
    damaged: list[int]
    """The versions of those that cannot be read."""
    object_keys: dict[int, str]
    """All of them by their versions."""


@dataclass(frozen=True, slots=True)
class FoundRegistry:
    """What the registry objects of one stream say together."""

    record: StreamRecord
    """What counts: of the generations below the rebuild's the newest, and of that the last."""
    damaged: bool
    """Whether one that may be newer cannot be read."""
    object_keys: tuple[str, ...]
    """The keys of all objects, in the order of their versions."""
    version_max: int


async def find_registry(
    drive: Drive, prefix: str, generation: int, served: AbstractSet[str]
) -> FoundRegistry | None:
    """Read the registry objects below a prefix, for a rebuild to a generation; None if none is sound.

    Where one that may be newer cannot be read, nobody knows any more for how long records were to
    be kept: then nothing of the stream goes for its age or size, until somebody says so anew. Nor does
    anybody know whether a leaderless stream was fenced, or on which drives it has fragments.

    Raises:
        NotServed: a later release has put one of them.
        DriveUnavailable, DriveRefused
    """
    sound, damaged, versions = await read_registry(drive, prefix, served)
    counting = [record for record in sound if record.generation < generation]
    if not counting:
        return None
    best = max(counting, key=lambda record: (record.generation, record.registry_version))
    unknown = any(version > best.registry_version for version in damaged)
    if unknown:
        drives = best.drives
        if TIERS in served:
            drives = with_drives_that_are_lost(drives, await load_registry(drive))
        best = replace(best, config=without_what_is_lost(best.config), drives=drives)
    return FoundRegistry(
        best,
        unknown,
        tuple(versions[version] for version in sorted(versions)),
        max(versions),
    )


@guard("what a configuration that is lost may have said")
def without_what_is_lost(config: StreamConfig) -> StreamConfig:
    """An older configuration where a newer one cannot be read: it keeps all records, and fences a
    leaderless stream, since the newer one may have."""
    lost: dict[str, object] = {"retention": _ALL}
    if config.leaderless:
        lost["fenced"] = True
    return config.model_copy(update=lost)


@guard("drives that are lost")
def with_drives_that_are_lost(drives: tuple[int, ...], registry: DriveRegistry) -> tuple[int, ...]:
    """The drives of an older registry object where a newer one cannot be read: all that are registered,
    since the newer one may have named any of them."""
    used = {drive.number for drive in registry.drives if not drive.retired}
    return tuple(sorted(used.union(drives)))


async def read_registry(drive: Drive, prefix: str, served: AbstractSet[str]) -> ReadRegistry:
    """Read all registry objects below a prefix.

    One that a later release has put is not damage: it may say anything, also that the others do
    not count. So nothing is told of the others then.

    Raises:
        NotServed: a later release has put one of them; the error names the stream.
        DriveUnavailable, DriveRefused
    """
    read = ReadRegistry([], [], {})
    async for facts in drive.list(f"{prefix}stream."):
        version = parse_registry_key(facts.object_key)
        if version is None:
            log.error("no version of a registry object", object_key=facts.object_key)
            continue
        read.object_keys[version] = facts.object_key
    for version, object_key in read.object_keys.items():
        record = await _read(drive, prefix, version, object_key, served)
        if record is None:
            read.damaged.append(version)
        else:
            read.sound.append(record)
    return read


async def _read(
    drive: Drive, prefix: str, version: int, object_key: str, served: AbstractSet[str]
) -> StreamRecord | None:
    try:
        record = await read_again(partial(_decoded, drive, object_key, served))
    except NotServed:
        # It is not damaged, although decoders take it for that where nobody asks: see above.
        raise
    except (ObjectMissing, Corrupt):
        log.exception("a registry object cannot be read", object_key=object_key)
        return None
    if stream_prefix(record.stream_id, record.tenant) != prefix or (
        record.registry_version != version
    ):
        log.error("a registry object is not what its key says", object_key=object_key)
        return None
    return record


async def _decoded(drive: Drive, object_key: str, served: AbstractSet[str]) -> StreamRecord:
    data = bytes(await drive.get(object_key))
    try:
        return decode_registry(data, served)
    except NotServed as error:
        raise _of_others(object_key, data, error) from error


def _of_others(object_key: str, data: bytes, error: NotServed) -> NotServed:
    name = name_in(data)
    whose = "a stream" if name is None else f"the stream {name.name} of the tenant {name.tenant}"
    return NotServed(
        f"{error.message}. It is of {whose}, at {object_key}. Have a release that reads it carry "
        "out the rebuild"
    )


@guard("a registry object of the rebuild's own generation")
async def put_registry(
    context: Context, record: StreamRecord, found: FoundRegistry, step: RebuildStep
) -> StreamRecord:
    """Say in the bucket once more what was found, in the rebuild's generation; returns that record,
    with its generation and the version of the object.

    Raises:
        DriveUnavailable, DriveRefused, DriveAmbiguous: the same again is right.
        Unavailable: the step is not what goes on; or somebody puts objects of the stream at this
            moment, and the step is to be done again.
    """
    # What was listed before this was there before the rebuild ended.
    await step.check(context.coordination)
    version = found.version_max + 1
    raised = replace(record, generation=step.generation, registry_version=version)
    await put_object_of(context, raised)
    return raised


async def put_object_of(context: Context, record: StreamRecord) -> None:
    """Put the registry object that a record names.

    Raises:
        DriveUnavailable, DriveRefused, DriveAmbiguous: the same again is right.
        Unavailable: another object has its key: somebody puts objects of the stream at this moment.
    """
    data = encode_registry(record)
    try:
        await put_object(
            context.drive,
            registry_key(record.stream_id, record.registry_version, record.tenant),
            [data],
            crc32c(data),
            deadline_seconds=context.settings.manifest_put_seconds,
        )
    except Corrupt as error:
        raise Unavailable("a registry object of the stream was put at this moment") from error


def replaced_by(record: StreamRecord, found: FoundRegistry) -> tuple[str, ...]:
    """Keys of what the object of a record replaces; none where one of them cannot be read."""
    if found.damaged:
        return ()
    mine = registry_key(record.stream_id, record.registry_version, record.tenant)
    return tuple(object_key for object_key in found.object_keys if object_key != mine)
