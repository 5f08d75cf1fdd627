"""The newest start of a node of queues as JSON: one value in coordination, and an object in the bucket.

The object is what tells the newest copy of a directory when coordination is lost. Its form is that of
sealed_json.py. Spec: docs/formats.md, "Queue start record" and "Queue start object".
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from bottomless.formats.checks import VERSION, check
from bottomless.formats.json_readers import flag, number, text
from bottomless.formats.sealed_json import parse_object, read_members, seal, unseal
from bottomless.model.names import NodeId, parse_uid
from bottomless.model.queue_start import NUMBER_MAX, QueueStart

_RECORD: Final = "queue start record"
_OBJECT: Final = "queue start object"
_NOTED: Final = "noted"


class StartRecord(NamedTuple):
    """A start as coordination has it."""

    start: QueueStart
    noted: bool
    """Whether the bucket says so too. No node serves under a start before that."""


def encode_start(record: StartRecord) -> bytes:
    """Encode the value of a start in coordination: JSON."""
    members = {"format": VERSION, **record.start._asdict(), _NOTED: record.noted}
    return orjson.dumps(members)


def decode_start(data: bytes) -> StartRecord:
    """Read what `encode_start` wrote.

    Raises:
        NotServed: it is of a later version.
        Corrupt: it is not such a value.
    """
    members = parse_object(_RECORD, data)
    known = {*OBJECT_READERS, _NOTED}
    check(_RECORD, members.keys() == known, "its members are not those of its version")
    read = read_members(_RECORD, members, {**OBJECT_READERS, _NOTED: flag})
    noted = read.pop(_NOTED)
    return StartRecord(QueueStart(**read), noted)


def encode_start_object(start: QueueStart) -> bytes:
    """Encode a start as the object that outlives coordination: sealed JSON."""
    return seal(start._asdict())


def decode_start_object(data: bytes) -> QueueStart:
    """Read what `encode_start_object` wrote.

    Raises:
        NotServed: it is of a later version.
        Corrupt: it is damaged, or is not such an object.
    """
    members = unseal(_OBJECT, data, list(OBJECT_READERS))
    return QueueStart(**read_members(_OBJECT, members, OBJECT_READERS))


OBJECT_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "node_id": lambda value: NodeId(parse_uid(text(value))),
    "number": number(1, NUMBER_MAX),
    "token": lambda value: parse_uid(text(value)),
    "lock": lambda value: parse_uid(text(value)),
    "url": text,
    "started_at": number(0, 2**63 - 1),
}
"""How each member of an object is read, in the order in which it is written."""
