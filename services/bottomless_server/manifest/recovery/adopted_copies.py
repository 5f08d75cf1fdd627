"""Put fragments that a rebuild adopts under uids that nobody knew before.

A fragment that goes on from the end of a manifest may have been given up by a session of before
the loss, and its deletion may be under way: the queue that said so is lost, and a request that a
store has taken lands when it lands. So it is never named itself. Its chunks are put once more,
under a new uid, and the object that was there is deleted later, as others are that nobody can vouch for.

After a crash at any moment a copy is an object that no manifest names; the next rebuild sees two
fragments of the same offsets, and copies one of them.
"""

from collections.abc import Sequence
from typing import Final

import structlog

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.fragment import (
    HEADER_SIZE,
    decode_footer,
    decode_stored_filters,
    pack_fragment,
)
from bottomless.formats.keys import fragment_place
from bottomless.model.fragment import FragmentInfo
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.tree.core.adoption_check import footer_piece
from bottomless_server.protocol.uploads import INTENT_COUNT_MAX
from bottomless_server.stores.put_retries import put_object

log = structlog.get_logger(__name__)

COPIED_COUNT_MAX: Final = INTENT_COUNT_MAX
"""How many fragments at the end of a run can have been put and not published. A longer run is
that of a stream whose roots are lost, and what lies before was published."""


async def copy_run(
    context: Context, record: StreamRecord, run: Sequence[FragmentInfo]
) -> tuple[FragmentInfo, ...]:
    """The run with copies at its end; shorter where one cannot be read any more.

    Raises:
        DriveUnavailable, DriveRefused, DriveAmbiguous: the same again is right.
    """
    kept = len(run) - min(len(run), COPIED_COUNT_MAX)
    adopted = list(run[:kept])
    for fragment in run[kept:]:
        try:
            adopted.append(await _copy(context, record, fragment))
        except (ObjectMissing, Corrupt):
            log.exception(
                "a fragment that goes on from a manifest cannot be copied",
                stream_id=record.stream_id,
                first_offset=fragment.first_offset,
                uid=fragment.uid,
            )
            break
    return tuple(adopted)


async def _copy(context: Context, record: StreamRecord, fragment: FragmentInfo) -> FragmentInfo:
    old = fragment_place(record.stream_id, fragment, record.tenant)
    data = memoryview(await context.drives.of(old.drive).get(old.object_key))
    footer = footer_piece(len(data))
    said = decode_footer(data[footer.start :])
    end = said.filters_position
    tables = decode_stored_filters(data[end : said.index_position], said)
    packed = pack_fragment(record.stream_id, context.new_uid(), [data[HEADER_SIZE:end]], tables)
    new = fragment_place(record.stream_id, packed.info, record.tenant)
    await put_object(
        context.drives.of(new.drive),
        new.object_key,
        packed.parts,
        packed.info.crc,
        deadline_seconds=context.settings.manifest_put_seconds,
    )
    return packed.info
