"""What a move copies, from where to where, and how fast. Pure.

A move is decided by the manifest service, and its record names it (shared/bottomless/model/tiers.py). The
copies have keys of their own, with the number of the move in them, on the drive that it goes to.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from bottomless.errors import Corrupt
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import FragmentPlace, fragment_place
from bottomless.guards import guard
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId, Uid
from bottomless.model.tiers import Move


class Copying(NamedTuple):
    """One object to be copied."""

    uid: Uid
    """The uid of the fragment, which its copy has too."""
    source: FragmentPlace
    target: FragmentPlace
    size: int
    """Bytes of the object, as the manifest says."""
    crc: int
    """CRC-32C of all of them, as the manifest says."""


def copies_of(
    stream_id: StreamId, tenant: str, move: Move, fragments: Sequence[FragmentInfo]
) -> list[Copying]:
    """The objects that a move copies, in the order of the fragments.

    A fragment that does not lie whole between the move's offsets is not meant, and neither is one that
    is not on the drive from which it goes: it was moved meanwhile.
    """
    return [
        Copying(
            info.uid,
            fragment_place(stream_id, info, tenant),
            fragment_place(stream_id, info._replace(drive=move.to_drive, copy=move.copy), tenant),
            info.size,
            info.crc,
        )
        for info in fragments
        if move.first_offset <= info.first_offset
        and info.next_offset <= move.next_offset
        and info.drive == move.from_drive
    ]


@guard("the CRC of a copy")
def require_as_named(copying: Copying, data: bytes | memoryview) -> None:
    """Refuse to copy bytes that are not those of which the manifest knows.

    Raises:
        Corrupt: the object on the drive is damaged, and stays the only one that the manifest names.
    """
    if (len(data), crc32c(data)) != (copying.size, copying.crc):
        raise Corrupt(
            "a fragment that is to be moved is damaged",
            facts={"drive": copying.source.drive, "object_key": copying.source.object_key},
        )


OBJECT_BYTES_PER_SECOND_MIN: Final = 16 * MIB
"""No copy is put more slowly than this to leave time for others."""


class Pace:
    """So many bytes a second, all moves of a process together: what began too early waits."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._next_at = 0.0

    def wait_of(self, size: int, now: float) -> float:
        """The seconds from `now` until an object of so many bytes may begin, which takes its time
        from then on. `now` is in seconds of a clock that nobody sets."""
        begins_at = max(self._next_at, now)
        self._next_at = begins_at + size / self._bytes_per_second
        return begins_at - now

    def of_one_object(self) -> "Pace":
        """The pace at which the blocks of one object follow each other: in a burst they would leave the
        same process, and the store, no time for anything else. A slow pace is kept between objects alone,
        since a put takes no longer than its drive allows."""
        return Pace(max(self._bytes_per_second, OBJECT_BYTES_PER_SECOND_MIN))
