"""What is going: fragments whose deletion may be under way, so that no manifest may name them again.

bottomless:going:{stream_id}     JSON, rows [drive, object key] by rising drive and key; absent if none is

The deleter enters an object before it asks a drive to delete it, and takes it out when it is gone
(`manifest/removal/claims.py`, which also says why no transaction need watch it). Whoever would name an object
that waits to be deleted asks for this value first. Only streams that were ever on another drive than the first have one.
"""

from collections.abc import Collection
from typing import Final

import orjson

from bottomless.errors import Corrupt
from bottomless.formats.json_readers import each, number, row, text
from bottomless.formats.keys import FragmentPlace
from bottomless.guards import guard
from bottomless.model.drive import DEFAULT_NUMBER, NUMBER_MAX
from bottomless.model.names import StreamId

GOING_COUNT_MAX: Final = 256
"""Objects of one stream on one drive that may be going at once."""

_read = each(row(FragmentPlace, number(DEFAULT_NUMBER, NUMBER_MAX), text))


def going_key(stream_id: StreamId) -> str:
    return f"bottomless:going:{stream_id}"


def encode_going(places: Collection[FragmentPlace]) -> bytes | None:
    """Encode the value of a stream's key; None, which deletes the key, where nothing is going."""
    return orjson.dumps(sorted(map(list, places))) if places else None


def decode_going(value: bytes | None) -> frozenset[FragmentPlace]:
    """Read what `encode_going` wrote.

    Raises:
        Corrupt: it is no such value.
    """
    try:
        return frozenset(_read([] if value is None else orjson.loads(value)))
    except (TypeError, ValueError) as error:
        raise Corrupt("what is going of a stream cannot be read") from error


@guard("what is going is not named again")
def unnameable(value: bytes | None) -> frozenset[FragmentPlace]:
    """Read which objects no manifest may name any more, from the value of a stream's key.

    Raises:
        Corrupt: it cannot be read, so nothing may be named.
    """
    return decode_going(value)
