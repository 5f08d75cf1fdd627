"""What is decided about the pieces that one flush has of one stream, and the names that it goes by."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bottomless.formats.checks import check
from bottomless.model.chunk import TrackedEntry
from bottomless_server.leaderless.tail_changes import Accepted


class KnownName(NamedTuple):
    """The name under which repeats are recognised: a producer's, or the hash of a key in hex."""

    name: str
    is_producer: bool

    @property
    def member(self) -> bytes:
        """How the index of a stream's names has it."""
        return f"{'p' if self.is_producer else 'k'}{self.name}".encode("ascii")


def parse_known_name(member: bytes) -> KnownName:
    """Read a name from a member of the index of a stream's names.

    Raises:
        Corrupt: no writer can have written it.
    """
    what = "member of the names of a stream"
    check(what, member.isascii() and member[:1] in (b"p", b"k"), "it is no name")
    text = member.decode("ascii")
    return KnownName(text[1:], text[0] == "p")


class NewKnown(NamedTuple):
    """What is known of a name from now on."""

    entries: Sequence[TrackedEntry]
    forget_at: int
    """When it may be forgotten if nothing more is heard of it, in ms since 1970."""


class Decided(NamedTuple):
    """What one stream gets of a flush."""

    accepted: Sequence[Accepted]
    """In the order in which their appends came."""
    known: Mapping[KnownName, NewKnown]
    answers: Any = None
    """What each append is to be told, as far as that depends on what is stored: `Commit.answers` has
    it, of this very attempt. Of an append that is accepted it counts if the stream is not refused."""
