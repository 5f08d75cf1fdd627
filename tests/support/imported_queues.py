"""What was imported of a broker's directory, beside what that broker delivered when it was drained."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

import orjson

from bottomless.formats.envelope import decode_envelope
from bottomless.model.queue import QueueMessage
from bottomless_server.queues.ledger.base import Ledger
from bottomless_server.queues.offline.store_directory import StoreDirectory
from bottomless_server.queues.store.bodies import Bodies, BodyPlace
from bottomless_server.queues.store.descriptors import Descriptors

TENANTS: Final = {"/": "default", "shop/eu": "shop"}
RENAMES: Final = {"dead letters": "dead-letters"}


def messages(
    store: StoreDirectory, ledger: Ledger, tenant: str, name: str
) -> Iterator[QueueMessage]:
    """What consumers would get, in order."""
    row = ledger.queue_named(tenant, name)
    reader = Bodies(store.files, store.messages, Descriptors(store.files, 4))
    for stored in ledger.ready(row.inside, 10_000) if row is not None else ():
        place = stored.message
        body = reader.read(BodyPlace(place.msg_id, place.file, place.position, place.size)).body
        yield decode_envelope(body)


def check_imported(
    store: StoreDirectory, ledger: Ledger, drained: dict[str, dict[str, list[dict[str, Any]]]]
) -> None:
    """Every queue has what its broker delivered, in that order, with its properties as headers."""
    for vhost, queues in drained.items():
        for name, expected in queues.items():
            named = RENAMES.get(name, name)
            found = list(messages(store, ledger, TENANTS[vhost], named))
            digests = [hashlib.sha256(one.value).hexdigest() for one in found]
            assert digests == [one["sha256"] for one in expected], (vhost, name)
            for one, other in zip(found, expected, strict=True):
                assert_same(dict(one.headers), other)


def assert_same(headers: dict[str, bytes], expected: dict[str, Any]) -> None:
    assert headers["amqp-exchange"].decode() == expected["exchange"]
    assert headers["amqp-routing-key"].decode() == expected["routing_key"]
    properties = dict(expected["properties"])
    own = properties.pop("headers", {})
    properties.pop("timestamp", None)
    for name, value in properties.items():
        assert headers[f"amqp-{name.replace('_', '-')}"].decode() == str(value)
    for name, value in own.items():
        if isinstance(value, str):
            assert headers[name].decode() == value
        elif value is None:
            assert name not in headers
        elif isinstance(value, bool | int):
            assert headers[name].decode() == json.dumps(value)
        elif isinstance(value, dict) and "hex" in value:
            assert headers[name] == bytes.fromhex(value["hex"])
        elif name == "nested":
            assert orjson.loads(headers[name]) == value
