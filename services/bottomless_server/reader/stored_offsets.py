"""Where a consumer continues, as it committed; the manifest service keeps it.

Contract: openapi/internal.yaml, `get_stored_offset`.
"""

from bottomless.errors import Code, NotFound
from bottomless.model.names import Reference, StreamId
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.protocol.registry import decode_stored_offset, stored_offset


class StoredOffsets:
    def __init__(self, manifest: PeerPort) -> None:
        self._manifest = manifest

    async def find(self, stream_id: StreamId, consumer: Reference) -> int | None:
        """The next offset that a consumer wants; None if it has committed none.

        Raises:
            NotFound: the stream is gone.
            Unavailable
        """
        path = stored_offset(stream_id, consumer)
        try:
            answer = await self._manifest.call("GET", path)
        except NotFound as error:
            if error.code is not Code.OFFSET_NOT_FOUND:
                raise
            return None
        return decode_stored_offset(answer.body)
