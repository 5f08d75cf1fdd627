"""Read the super objects that a bucket has of one super stream."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial

import structlog

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.errors import Corrupt, NotServed
from bottomless.formats.keys import parse_super_key, super_key
from bottomless.formats.super_record import decode_super_object
from bottomless.model.super_stream import SuperRecord
from bottomless_server.stores.read_again import read_again

log = structlog.get_logger(__name__)


async def read_supers(
    drive: Drive, prefix: str, served: AbstractSet[str]
) -> tuple[list[SuperRecord], Sequence[int]]:
    """Read all super objects below a prefix; the versions of those that cannot be read beside them.

    Raises:
        NotServed: one of them is of a later version, or has a feature that is not among those `served`.
        DriveUnavailable, DriveRefused
    """
    sound, damaged = [], []
    keys = [facts.object_key async for facts in drive.list(f"{prefix}super.")]
    for object_key in keys:
        version = parse_super_key(object_key)
        if version is None:
            log.error("no version of a super object", object_key=object_key)
            continue
        try:
            record = await read_again(partial(_decoded, drive, object_key, served))
        except NotServed:
            raise
        except (ObjectMissing, Corrupt):
            log.exception("a super object cannot be read", object_key=object_key)
            damaged.append(version)
            continue
        own = super_key(record.super_id, record.registry_version, record.tenant)
        if own == object_key:
            sound.append(record)
        else:
            log.error("a super object is not what its key says", object_key=object_key)
            damaged.append(version)
    return sound, damaged


async def _decoded(drive: Drive, object_key: str, served: AbstractSet[str]) -> SuperRecord:
    return decode_super_object(bytes(await drive.get(object_key)), served)
