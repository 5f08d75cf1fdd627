"""What WAL objects prove of coordination: that it is an older copy of itself, with the same generation.

Each object carries the attempt that its writer had in its record, and notes of what was committed. All
of that was in coordination before the object was sealed, and none of it goes back. Of another
generation an object proves nothing: a rebuild has begun anew.
"""

from bottomless.model.wal import Note, WalHeader
from bottomless_server.leaderless.instance import WalInstance
from bottomless_server.leaderless.tail import Tail, TailState


def shows_less(record: WalInstance, header: WalHeader) -> bool:
    """Tell whether the record of an instance is older than one of its objects."""
    if header.generation != record.generation:
        return False
    return header.attempt > record.attempt or header.sequence >= record.reserved


def lacks(tail: Tail, note: Note) -> bool:
    """Tell whether a tail is older than a commit of its stream that is noted.

    One that is closed proves nothing, as one that is gone does not, since its stream may be deleted;
    nor does one with another epoch.
    """
    if tail.state is TailState.CLOSED or tail.epoch != note.epoch:
        return False
    return note.number > tail.number
