"""Encode messages with rstream, RabbitMQ's own client for Python, and write what they say.

    .bench/venv/bin/python tests/golden/rabbitmq/encode.py > tests/golden/rabbitmq/messages.json

Each item has the bytes of a message and the record that an import is to make of it: `value`
and `headers` in hex or as text, where the client's documentation says what it encodes.
"""

import json
import sys
import uuid
from datetime import UTC, datetime
from typing import Any

from rstream import AMQPMessage
from rstream._pyamqp.message import Header, Properties

ID = uuid.UUID("0198d2a4-5b1e-7c3a-9a51-0f7e0198d2a4")
AT = datetime(2026, 11, 26, 12, 30, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1000)


def typed(kind: str, value: Any) -> dict[str, Any]:
    return {"TYPE": kind, "VALUE": value}


def item(message: AMQPMessage, **record: Any) -> dict[str, Any]:
    return {"bytes": bytes(message).hex(), "record": record}


BY_RABBITMQ = (
    "005372C11A02A315782D62617369632D64656C69766572792D6D6F64655002005373C0370DA1036D2D31404040"
    "A107616E7377657273A103632D31A3106170706C69636174696F6E2F6A736F6E404083000001A217D5894040404000"
    "5374C1620AA10C782D62617369632D74797065A1056F72646572A10E782D62617369632D6170702D6964A10473686F"
    "70A106726567696F6EA104656D6561A107726574726965735403A115782D73747265616D2D66696C7465722D76616C"
    "7565A104656D6561005375A0097B226964223A20397D"
)
"""A message of AMQP 0.9.1 as RabbitMQ 3.10.8 turns it into one of 1.0; README.md says how it was had."""

ITEMS = [
    {
        "bytes": BY_RABBITMQ.lower(),
        "record": {
            "value": '{"id": 9}',
            "event_time": AT_MS,
            "filter_value": "emea",
            "headers": {
                "amqp.message-id": "m-1",
                "amqp.reply-to": "answers",
                "amqp.correlation-id": "c-1",
                "amqp.content-type": "application/json",
                "amqp.creation-time": "2026-11-26T12:30:00.000Z",
                "x-basic-type": "order",
                "x-basic-app-id": "shop",
                "region": "emea",
                "retries": "3",
                "x-stream-filter-value": "emea",
            },
        },
    },
    item(AMQPMessage(body=b"a plain one"), value="a plain one"),
    item(AMQPMessage(body=b"x" * 300), value="x" * 300),
    item(
        AMQPMessage(
            header=Header(durable=True, priority=4, ttl=1000, first_acquirer=False),
            message_annotations={
                "x-stream-filter-value": "emea",
                "x-routing-key": "orders.new",
                "x-opt-level": 7,
            },
            properties=Properties(
                message_id=ID,
                user_id=b"guest",
                to="queue",
                subject="orders",
                reply_to="answers",
                correlation_id=b"\x01\xff",
                content_type="application/json",
                content_encoding="utf-8",
                absolute_expiry_time=AT_MS,
                creation_time=AT_MS,
                group_id="till-3",
                group_sequence=12,
                reply_to_group_id="till-4",
            ),
            application_properties={
                "text": "Zoë",
                "small": 7,
                "large": -(2**40),
                "yes": True,
                "no": False,
                "ratio": 0.25,
                "bytes": b"\x00\xfe",
                "id": ID,
                "at": AT,
                "nothing": None,
                "ubyte": typed("UBYTE", 200),
                "byte": typed("BYTE", -3),
                "ushort": typed("USHORT", 40_000),
                "short": typed("SHORT", -300),
                "uint": typed("UINT", 70_000),
                "ulong": typed("ULONG", 2**63),
                "float": typed("FLOAT", 0.5),
                "symbol": typed("SYMBOL", b"a-symbol"),
            },
            body=b'{"id": 7}',
            footer={"x-sum": 3},
        ),
        value='{"id": 7}',
        event_time=AT_MS,
        filter_value="emea",
        keys={
            "property:group-id": "till-3",
            "application:small": "7",
            "annotation:x-routing-key": "orders.new",
            "property:message-id": str(ID),
        },
        headers={
            "amqp.message-id": str(ID),
            "amqp.user-id": "guest",
            "amqp.to": "queue",
            "amqp.subject": "orders",
            "amqp.reply-to": "answers",
            "amqp.correlation-id": "hex:01ff",
            "amqp.content-type": "application/json",
            "amqp.content-encoding": "utf-8",
            "amqp.absolute-expiry-time": "2026-11-26T12:30:00.000Z",
            "amqp.creation-time": "2026-11-26T12:30:00.000Z",
            "amqp.group-id": "till-3",
            "amqp.group-sequence": "12",
            "amqp.reply-to-group-id": "till-4",
            "text": "Zoë",
            "small": "7",
            "large": str(-(2**40)),
            "yes": "true",
            "no": "false",
            "ratio": "0.25",
            "bytes": "hex:00fe",
            "id": str(ID),
            "at": "2026-11-26T12:30:00.000Z",
            "ubyte": "200",
            "byte": "-3",
            "ushort": "40000",
            "short": "-300",
            "uint": "70000",
            "ulong": str(2**63),
            "float": "0.5",
            "symbol": "a-symbol",
        },
    ),
    item(AMQPMessage(value="a text value"), value="a text value", content="text"),
    item(AMQPMessage(value=b"a binary value"), value="a binary value"),
    item(
        AMQPMessage(value={"count": 3, "tags": ["a", "b"]}),
        section="amqp-value",
    ),
    item(AMQPMessage(value=42), section="amqp-value"),
    item(AMQPMessage(sequence=[[1, 2, 3], ["four"]]), section="amqp-sequence"),
    item(
        AMQPMessage(properties=Properties(subject="no body at all")),
        value="",
        headers={"amqp.subject": "no body at all"},
        section="none",
    ),
]

if __name__ == "__main__":
    json.dump(ITEMS, sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")
