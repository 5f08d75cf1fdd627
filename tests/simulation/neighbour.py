"""A stream that is damaged beside the healthy ones: what it must not stop.

Its record is of a later release, so that nobody can read it, and hundreds of its objects are
due to be deleted before anything of the others is.
"""

from typing import Final

import orjson
from support.object_keys import root_key

from bottomless.model.names import TENANT_DEFAULT, FullName, StreamId, StreamName, Uid
from bottomless.model.stream import StreamState
from bottomless_server.coordination.base import Changes, Member
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.stores.streams import (
    DELETES_KEY,
    STREAMS_KEY,
    Named,
    delete_later,
    name_key,
    names_key,
    stream_key,
)

NAME: Final = StreamName("damaged")
STREAM_ID: Final = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c77")
_DUE_COUNT: Final = 300
"""More than a page of the deleter."""


def damage(coordination: MemoryCoordination) -> None:
    """Enter it with all that leads to it."""
    keys = [root_key(STREAM_ID, 0, 1, n, Uid(f"{n:032x}")) for n in range(_DUE_COUNT)]
    mine = STREAM_ID.encode("ascii")
    coordination.write(
        Changes(
            {
                stream_key(STREAM_ID): orjson.dumps({"format": 99, "name": NAME}),
                name_key(FullName(TENANT_DEFAULT, NAME)): mine,
            },
            [delete_later(key, 0) for key in keys],
            [
                Member(STREAMS_KEY, mine, True),
                Member(
                    names_key(StreamState.ACTIVE, TENANT_DEFAULT),
                    Named(NAME, STREAM_ID).member(),
                    True,
                ),
            ],
        )
    )


def others_waiting(coordination: MemoryCoordination) -> dict[bytes, int]:
    """Members of the delete queue that are not the damaged stream's, and when each is due."""
    queue = coordination.peek_queue(DELETES_KEY)
    own = STREAM_ID.encode("ascii")
    return {member: due_at for member, due_at in queue.items() if own not in member}
