"""Bodies of messages are read where a round said that they lie, after it and under its pin."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bottomless.formats.checks import corrupt
from bottomless.formats.message_file import StoredMessage, decode_record
from bottomless.guards import guard
from bottomless_server.node.file_calls import FileCalls, read_exactly
from bottomless_server.queues.store.descriptors import Descriptors
from bottomless_server.queues.store.names import path_of
from bottomless_server.queues.store.version_1 import envelope_of


class BodyPlace(NamedTuple):
    """Where the record of a message lies, as the ledger said in a round."""

    msg_id: bytes
    file: int
    position: int
    size: int


class Bodies:
    """Reads bodies; any number of threads at once."""

    def __init__(self, files: FileCalls, directory: Path, descriptors: Descriptors) -> None:
        self._files = files
        self._directory = directory
        self._descriptors = descriptors

    def read(self, place: BodyPlace) -> StoredMessage:
        """One message. Its header in the file is not looked at, only its own record.

        The body is an envelope, also of a message in a file of version 1; that one knows neither its
        queues nor its times and its priority, which its items have.

        Raises:
            Corrupt: what lies there is not this message, whole and as it was written.
            OSError: the disk does not work, or the file is gone.
        """
        try:
            data = self._read(place)
        except FileNotFoundError:
            # No two files have one number: so it is of version 1, or gone.
            data = self._read(place, is_version_1=True)
            body = memoryview(envelope_of(place.msg_id, data))
            return StoredMessage(place.msg_id, body, checked=False)
        return checked_record(place, data)

    def read_run(self, places: Sequence[BodyPlace]) -> list[StoredMessage]:
        """Messages that lie one after the other in one file, by one read.

        Raises:
            Corrupt: one of them, or more, is not what it should be; `read` says which.
            OSError: the disk does not give one of them, or the file is of version 1 or gone.
        """
        first, last = places[0], places[-1]
        path = path_of(self._directory, first.file)
        with self._descriptors.use(path) as fd:
            size = last.position + last.size - first.position
            data = memoryview(read_exactly(self._files, fd, size, first.position))
        found = []
        for place in places:
            start = place.position - first.position
            found.append(checked_record(place, data[start : start + place.size]))
        return found

    def _read(self, place: BodyPlace, *, is_version_1: bool = False) -> bytes:
        path = path_of(self._directory, place.file, is_version_1=is_version_1)
        with self._descriptors.use(path) as fd:
            return read_exactly(self._files, fd, place.size, place.position)


@guard("type, size, id and checksum of a body")
def checked_record(place: BodyPlace, data: bytes | memoryview) -> StoredMessage:
    """The message in a record, which must be the one that is meant.

    Raises:
        Corrupt: it is another one, or damaged.
    """
    message = decode_record(data)
    if message.msg_id != place.msg_id:
        found, wanted = message.msg_id.hex(), place.msg_id.hex()
        raise corrupt("record of a message file", f"it is of {found}, not of {wanted}")
    return message
