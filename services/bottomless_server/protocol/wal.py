"""WAL objects, as the node that put one gives its bytes to others for as long as it keeps them.

It is a short cut and never the only way: the same bytes lie in object storage, and were durable there
before anything named them. So a node answers from memory alone, and whoever asks goes to the store
where it says `not-found`, or is late.

Contract: openapi/internal.yaml, `get_wal`.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bottomless.model.limits import WAL_SEQUENCE_MAX, WAL_SIZE_MAX
from bottomless.model.names import Uid, parse_uid
from bottomless_server.protocol.parameters import Parser, integer, require
from bottomless_server.protocol.paths import INTERNAL
from bottomless_server.protocol.peer import Params

_INSTANCE: Final = "instance"
_SEQUENCE: Final = "sequence"
WAL_BYTES: Final = f"{INTERNAL}/wal/{{{_INSTANCE}}}/{{{_SEQUENCE}}}"
WAL_MEDIA_TYPE: Final = "application/octet-stream"


class WalBytesAsked(NamedTuple):
    """A range of the bytes of one object; an answer has fewer where the object ends before."""

    start: int
    size: int

    def params(self) -> Params:
        return self._asdict()


WAL_BYTES_QUERY: Final[Mapping[str, Parser]] = {
    "start": integer(0, WAL_SIZE_MAX - 1),
    "size": integer(1, WAL_SIZE_MAX),
}


def wal_bytes(instance: Uid, sequence: int) -> str:
    """The path of the bytes of an object."""
    path = WAL_BYTES.replace(f"{{{_INSTANCE}}}", instance)
    return path.replace(f"{{{_SEQUENCE}}}", str(sequence))


def instance_in(path_params: Mapping[str, str]) -> Uid:
    """The instance whose object a path is about, by what its route found in it.

    Raises:
        InvalidRequest: it is not the id of an instance.
    """
    return parse_uid(path_params[_INSTANCE])


def sequence_in(path_params: Mapping[str, str]) -> int:
    """The sequence of the object that a path is about, by what its route found in it.

    Raises:
        InvalidRequest: it is not the sequence of an object.
    """
    sequence: int = integer(0, WAL_SEQUENCE_MAX)(path_params[_SEQUENCE])
    return sequence


def decode_wal_bytes_asked(values: Mapping[str, Any]) -> WalBytesAsked:
    """What a query asks for, of which `WAL_BYTES_QUERY` made these values.

    Raises:
        InvalidRequest: start or size is missing.
    """
    return WalBytesAsked(**require(require(values, "start"), "size"))
