"""The stream record in coordination and the registry object in the bucket, both JSON.

The registry object (`stream.json`) is what a rebuild starts from when coordination is
lost: it says that the stream exists, how it is configured and which node holds its tail.
It ends with the CRC-32C of its canonical form. Spec: docs/formats.md, "Stream record".
"""

from typing import Any, Final

import orjson

from bottomless.errors import InvalidRequest
from bottomless.formats.checks import VERSION, check, corrupt, crc32c
from bottomless.model.config import encode_config, parse_config
from bottomless.model.names import NodeId, StreamName, Uid, parse_stream_id
from bottomless.model.stream import (
    EpochStart,
    Intent,
    RootPointer,
    StreamRecord,
    StreamState,
    check_record,
)

_REGISTRY_MEMBERS: Final = (
    "format",
    "stream_id",
    "name",
    "tenant",
    "state",
    "created_at",
    "config",
    "config_version",
    "generation",
    "home",
)


def encode_record(record: StreamRecord) -> bytes:
    """The value of the stream's key in coordination."""
    check_record(record)
    return orjson.dumps(_as_json(record))


def decode_record(data: bytes) -> StreamRecord:
    """Read what `encode_record` wrote.

    Raises:
        Corrupt: it is not such a value.
    """
    return _from_json("stream record", _parse("stream record", data))


def encode_registry(record: StreamRecord) -> bytes:
    """The registry object: what of a record must outlive coordination."""
    whole = _as_json(record)
    members = {name: whole[name] for name in _REGISTRY_MEMBERS}
    return orjson.dumps({**members, "crc32c": f"{crc32c(orjson.dumps(members)):08x}"})


def decode_registry(data: bytes) -> StreamRecord:
    """Read a registry object; what only coordination knows has its default.

    Raises:
        Corrupt: it is damaged.
    """
    what = "stream registry object"
    members = _parse(what, data)
    crc = members.pop("crc32c", None)
    check(what, crc == f"{crc32c(orjson.dumps(members)):08x}", "its checksum does not match")
    return _from_json(what, members)


def _parse(what: str, data: bytes) -> dict[str, Any]:
    try:
        members = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise corrupt(what, "it is not JSON") from error
    check(what, isinstance(members, dict), "it is not an object")
    check(what, members.get("format") == VERSION, "its version is not known")
    return dict(members)


def _as_json(record: StreamRecord) -> dict[str, Any]:
    return {
        "format": VERSION,
        "stream_id": record.stream_id,
        "name": record.name,
        "tenant": record.tenant,
        "state": record.state.value,
        "created_at": record.created_at,
        "config": encode_config(record.config),
        "config_version": record.config_version,
        "generation": record.generation,
        "version": record.version,
        "epoch": record.epoch,
        "home": record.home,
        "owner_url": record.owner_url,
        "dirty": record.dirty,
        "reserved_next": record.reserved_next,
        "epochs": [[start.epoch, start.first_offset] for start in record.epochs],
        "root": None if record.root is None else _root_as_json(record.root),
        "past_roots": list(record.past_roots),
        "published_next": record.published_next,
        "last_timestamp": record.last_timestamp,
        "uploader": record.uploader,
        "intents": [_intent_as_json(intent) for intent in record.intents],
        "quarantine": [_intent_as_json(intent) for intent in record.quarantine],
    }


def _root_as_json(root: RootPointer) -> list[Any]:
    return [root.uid, root.generation, root.epoch, root.version, root.size, root.crc]


def _intent_as_json(intent: Intent) -> list[Any]:
    return [intent.uid, intent.first_offset, intent.session]


def _from_json(what: str, members: dict[str, Any]) -> StreamRecord:
    members.pop("format")
    try:
        root = members.pop("root", None)
        record = StreamRecord(
            stream_id=parse_stream_id(members.pop("stream_id")),
            name=StreamName(members.pop("name")),
            state=StreamState(members.pop("state")),
            config=parse_config(members.pop("config")),
            home=NodeId(home) if (home := members.pop("home")) is not None else None,
            epochs=tuple(EpochStart(*start) for start in members.pop("epochs", ())),
            root=None if root is None else RootPointer(*root),
            past_roots=tuple(Uid(uid) for uid in members.pop("past_roots", ())),
            intents=tuple(Intent(*intent) for intent in members.pop("intents", ())),
            quarantine=tuple(Intent(*intent) for intent in members.pop("quarantine", ())),
            **members,
        )
    except (KeyError, TypeError, ValueError, InvalidRequest) as error:
        raise corrupt(what, "its members do not fit its schema") from error
    check_record(record)
    return record
