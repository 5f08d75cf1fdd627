"""What is wrong with the super object by which a rebuild would know a partition."""

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt, NotFound
from bottomless.formats.keys import super_key
from bottomless.formats.super_record import decode_super_object
from bottomless.model.stream import StreamRecord
from bottomless.model.super_stream import SuperState
from bottomless_server.manifest.common.context import Context
from bottomless_server.stores.supers import Supers


async def super_faults(context: Context, record: StreamRecord) -> list[str]:
    """List what is wrong, as kinds of faults; nothing of a stream that is no partition.

    Raises:
        CoordinationUnavailable, DriveUnavailable, DriveRefused
    """
    place = record.partition_of
    if place is None:
        return []
    try:
        whole = await Supers(context.coordination, context.streams).load(place.super_id)
        if whole.state is not SuperState.ACTIVE:
            # It grows, and may not have got this one yet; or goes, with all of them.
            return []
        object_key = super_key(place.super_id, whole.registry_version, record.tenant)
        stored = decode_super_object(bytes(await context.drive.get(object_key)), context.served)
    except (NotFound, ObjectMissing):
        return ["super-missing"]
    except Corrupt:
        return ["super-corrupt"]
    named = [one.stream_id for one in stored.partitions]
    return [] if named[place.index : place.index + 1] == [record.stream_id] else ["super-other"]
