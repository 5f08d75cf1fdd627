"""The registry object of a work queue: what a rebuild of a lost ledger has to know of it, as sealed JSON.

Messages name queues by their ids alone. The object says whose the queue is and what it is called, from
which sequence on new messages may be counted, and which old ones were purged. Spec:
docs/message-files.md, "Registry object".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bottomless.formats.json_readers import number, text
from bottomless.formats.sealed_json import read_members, seal, unseal
from bottomless.model.limits import QUEUE_SEQUENCE_MAX
from bottomless.model.names import parse_queue_name, parse_tenant, parse_uid
from bottomless.model.queue import QueueConfig, encode_queue_config, parse_queue_config

_WHAT: Final = "registry object of a queue"


@dataclass(frozen=True, slots=True)
class QueueObject:
    """A queue, as a rebuild makes it again."""

    queue_id: bytes
    tenant: str
    name: str
    config: QueueConfig
    version: int
    """Counts changes of the configuration, from 1."""
    purged_below: int
    """Messages with a lower sequence are not wanted any more."""
    reserved_below: int
    """No message has this sequence or a higher one: new ones are counted from here."""


def encode_queue_object(queue: QueueObject) -> bytes:
    """Encode the object of a queue."""
    return seal(
        {
            "queue_id": queue.queue_id.hex(),
            "tenant": queue.tenant,
            "name": queue.name,
            "config": encode_queue_config(queue.config),
            "version": queue.version,
            "purged_below": queue.purged_below,
            "reserved_below": queue.reserved_below,
        }
    )


def decode_queue_object(data: bytes) -> QueueObject:
    """Read what `encode_queue_object` wrote.

    Raises:
        NotServed: it is of a later version.
        Corrupt: it is damaged, or is not such an object.
    """
    members = unseal(_WHAT, data, list(READERS))
    return QueueObject(**read_members(_WHAT, members, READERS))


_sequence = number(0, QUEUE_SEQUENCE_MAX)

READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "queue_id": lambda value: bytes.fromhex(parse_uid(text(value))),
    "tenant": lambda value: parse_tenant(text(value)),
    "name": lambda value: parse_queue_name(text(value)),
    "config": parse_queue_config,
    "version": number(1, QUEUE_SEQUENCE_MAX),
    "purged_below": _sequence,
    "reserved_below": _sequence,
}
"""How each member is read, in the order in which it is written."""
