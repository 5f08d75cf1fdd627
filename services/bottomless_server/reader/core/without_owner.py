"""What is said of a stream while nobody answers who owns it: as far as it is published, and no farther.

Published records are final, whoever owns the stream next. Where it ends is not known then: records
that nobody may show now can follow, so an answer never says that it reaches the end.

On the record's path: what ../published_tail.py answers in the owner's place.
"""

from bottomless_server.protocol.registry import RootState
from bottomless_server.protocol.tail import Bounds


def bounds_without_owner(
    first_offset: int, state: RootState, heard: Bounds | None
) -> Bounds | None:
    """What is certain of a stream without its owner, for who reads from `first_offset` on; None where
    that is not published, so that the owner alone may show it.

    `heard` is what the last owner said. Its end counts, so that what this process shows never goes
    back; but not where another owner came since, which an operator may have let begin earlier.
    """
    if first_offset >= state.published_next:
        return None
    committed_next = state.published_next
    if heard is not None and heard.epoch >= state.epoch:
        committed_next = max(committed_next, heard.committed_next)
    return Bounds(
        epoch=state.epoch if heard is None else max(state.epoch, heard.epoch),
        # The tail has nothing: all that may be read is in object storage.
        local_first_offset=state.published_next,
        committed_next=committed_next,
        published_next=state.published_next,
        version=state.version,
        last_chunk_offset=None,
        last_timestamp=None,
    )
