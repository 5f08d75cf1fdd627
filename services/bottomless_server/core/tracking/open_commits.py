"""The commits of a stream that are begun and not whole: their names keep their places.

Two names say of a commit how far it is: that of its parts, and its producer's
(ingest/producers/commit_parts.py). If one of them were forgotten, its repeat would store again what
is stored, or could never be refused as it has to be. So neither makes room for a new name, however
long it is silent, until the commit is whole or its producer is forgotten.

Told by tracking.py of each change, in the order of the log.
"""

from collections.abc import Iterable
from typing import Final

from bottomless.guards import guard
from bottomless_server.core.short_hash import hash_of

_MARK: Final = "~"
"""No name that a request may give begins with it."""


def name_of_parts(producer_id: str) -> str:
    """The producer under which the parts of another one's commits are stored."""
    return name_of_parts_by_hash(hash_of(producer_id.encode("ascii")).hex())


def name_of_parts_by_hash(digest: str) -> str:
    """The producer of the parts of one of which only the hash of its name is known, in hex."""
    return _MARK + digest


def is_of_parts(producer_id: str) -> bool:
    """Whether a name is that of the parts of commits, and no producer's own."""
    return producer_id.startswith(_MARK)


class OpenCommits:
    """The commits of one stream that are begun; there are hardly ever any."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        """Whether a name is that of the parts of an open commit."""
        return name in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def note_part(self, name: str, number: int) -> None:
        """A part before the last is stored."""
        self._numbers[name] = number

    def note_whole(self, producer_id: str, number: int) -> None:
        """A producer's number is stored, and with it every earlier one."""
        if self._numbers:
            name = name_of_parts(producer_id)
            if name in self._numbers and self._numbers[name] <= number:
                del self._numbers[name]

    def note_wholes(self, known: Iterable[tuple[str, int]]) -> None:
        """Note for many producers that all up to their last number is whole."""
        for producer_id, number in known:
            self.note_whole(producer_id, number)

    def note_forgotten(self, name: str) -> None:
        """Parts are known no more."""
        self._numbers.pop(name, None)

    @guard("the look at open commits")
    def needs(self, producer_id: str) -> bool:
        """Whether a name, of parts or not, is one of an open commit."""
        if not self._numbers:
            return False
        name = producer_id if is_of_parts(producer_id) else name_of_parts(producer_id)
        return name in self._numbers
