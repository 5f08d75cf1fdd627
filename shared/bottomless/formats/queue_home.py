"""The home of a tenant's queues as JSON: one value in coordination, and an object for each term.

The object is what a rebuild starts from when coordination is lost. Its form is that of
sealed_json.py. Spec: docs/formats.md, "Queue home record" and "Queue home object".
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from bottomless.formats.checks import VERSION, check
from bottomless.formats.json_readers import flag, number, optional, text
from bottomless.formats.sealed_json import parse_object, read_members, seal, unseal
from bottomless.model.names import NodeId, parse_tenant, parse_uid
from bottomless.model.queue_home import TERM_MAX, QueueHome

_RECORD: Final = "queue home record"
_OBJECT: Final = "queue home object"


class HomeObject(NamedTuple):
    """One term, as its object in the bucket says it."""

    tenant: str
    term: int
    node_id: NodeId


def encode_home(home: QueueHome) -> bytes:
    """Encode the value of a home in coordination: JSON."""
    return orjson.dumps({"format": VERSION, **home._asdict()})


def decode_home(data: bytes) -> QueueHome:
    """Read what `encode_home` wrote.

    Raises:
        NotServed: it is of a later version.
        Corrupt: it is not such a value.
    """
    members = parse_object(_RECORD, data)
    check(_RECORD, members.keys() == READERS.keys(), "its members are not those of its version")
    return QueueHome(**read_members(_RECORD, members, READERS))


def encode_home_object(said: HomeObject) -> bytes:
    """Encode a term as the object that outlives coordination: sealed JSON."""
    return seal(said._asdict())


def decode_home_object(data: bytes) -> HomeObject:
    """Read what `encode_home_object` wrote.

    Raises:
        NotServed: it is of a later version.
        Corrupt: it is damaged, or is not such an object.
    """
    members = unseal(_OBJECT, data, list(OBJECT_READERS))
    return HomeObject(**read_members(_OBJECT, members, OBJECT_READERS))


OBJECT_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "tenant": lambda value: parse_tenant(text(value)),
    "term": number(1, TERM_MAX),
    "node_id": lambda value: NodeId(parse_uid(text(value))),
}
"""How each member of an object is read, in the order in which it is written."""
READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **OBJECT_READERS,
    "url": optional(text),
    "noted": flag,
    "generation": number(0, 2**63 - 1),
}
"""How each member of a record is read, in the order in which it is written."""
