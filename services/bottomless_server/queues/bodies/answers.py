"""What is answered about queues: plain JSON values, and one message as its bytes with headers."""

import re
from collections.abc import Sequence
from typing import Any, Final

from bottomless.model.offset_spec import format_timestamp
from bottomless.model.queue import encode_queue_config
from bottomless.model.record import Content
from bottomless_server.core.shown_values import ValueEncoding, add_value, shown_header
from bottomless_server.queues.calls import (
    PeekedMessage,
    PublishedTo,
    QueueDescription,
    ReceivedMessage,
    Settlement,
)
from bottomless_server.queues.core.origin import Origin

_CONTENT: Final = {Content.BYTES: b"bytes", Content.TEXT: b"text", Content.JSON: b"json"}
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_SHOWN: Final = re.compile(rb"[!-~](?:[ -~]*[!-~])?|")
"""Values that a header of HTTP carries as they are."""


def published_members(published: PublishedTo) -> dict[str, Any]:
    """What a publish has come to in one queue."""
    return {
        "queue_id": published.queue_id.hex(),
        "messages": [
            {
                "message_id": message.message_id.hex(),
                "sequence": message.sequence,
                "duplicate": message.duplicate,
            }
            for message in published.messages
        ],
    }


def fan_out_members(published: Sequence[PublishedTo]) -> dict[str, Any]:
    """What a publish has come to in each of its queues, in the order of the request."""
    return {"queues": [{"queue": one.queue, **published_members(one)} for one in published]}


def received_members(messages: Sequence[ReceivedMessage]) -> dict[str, Any]:
    """Messages for whoever received them."""
    return {"messages": [_received(message) for message in messages]}


def _received(message: ReceivedMessage) -> dict[str, Any]:
    shown = {
        "receipt": message.receipt,
        "message_id": message.message_id.hex(),
        "sequence": message.sequence,
        "deliveries": message.deliveries,
        "published_at": format_timestamp(message.published_at),
        "priority": message.priority,
    }
    _add_contents(shown, message.value, message.content, message.headers, message.dead_letter)
    return shown


def peeked_members(message: PeekedMessage) -> dict[str, Any]:
    """A message as it lies in a queue, without a receipt."""
    shown = {
        "message_id": message.message_id.hex(),
        "sequence": message.sequence,
        "state": message.state,
        "deliveries": message.deliveries,
        "published_at": format_timestamp(message.published_at),
        "priority": message.priority,
        "due_at": _time(message.due_at),
        "expires_at": _time(message.expires_at),
    }
    _add_contents(shown, message.value, message.content, message.headers, message.dead_letter)
    return shown


def settled_members(done: str, settled: Settlement) -> dict[str, Any]:
    """What became of receipts; `done` is the name of the member that counts the good ones."""
    return {done: settled.done, "gone": list(settled.gone), "stale": list(settled.stale)}


def queue_etag(queue: QueueDescription) -> str:
    """The entity tag of the configuration of a queue: another one with each change of it."""
    return f'"{queue.queue_id.hex()}.c{queue.version}"'


def queue_members(queue: QueueDescription) -> dict[str, Any]:
    """A queue, its configuration and what is in it."""
    sums, totals = queue.sums, queue.totals
    return {
        "name": queue.name,
        "queue_id": queue.queue_id.hex(),
        "config_version": queue.version,
        **encode_queue_config(queue.config),
        "ready": sums.ready,
        "delayed": sums.delayed,
        "in_flight": sums.in_flight,
        "damaged": sums.damaged,
        "outgoing": queue.outgoing,
        "outgoing_waiting_for": queue.outgoing_waiting_for,
        "outgoing_oldest_at": _time(queue.outgoing_oldest_at),
        "bytes": sums.bytes,
        "next_sequence": queue.next_sequence,
        "oldest_published_at": _time(queue.oldest_published_at),
        "totals": totals._asdict(),
    }


def raw_answer_headers(message: ReceivedMessage) -> list[tuple[bytes, bytes]]:
    """What an answer with the bytes of one message says of it in headers.

    A header of the message that HTTP cannot carry is left out, and counted; so is one whose name differs
    from that of an earlier one in upper and lower case alone, which HTTP would take for the same.
    """
    headers = [
        (b"message-receipt", message.receipt.encode()),
        (b"message-id", message.message_id.hex().encode()),
        (b"message-sequence", b"%d" % message.sequence),
        (b"message-deliveries", b"%d" % message.deliveries),
        (b"message-published-at", format_timestamp(message.published_at).encode()),
        (b"message-priority", b"%d" % message.priority),
        (b"message-content", _CONTENT[message.content]),
    ]
    own: dict[bytes, bytes] = {}
    for name, value in message.headers:
        if _TOKEN.fullmatch(name) and _SHOWN.fullmatch(value):
            own.setdefault(f"message-header-{name.lower()}".encode(), value)
    headers += own.items()
    if left_out := len(message.headers) - len(own):
        headers.append((b"message-headers-left-out", b"%d" % left_out))
    if (left := message.dead_letter) is not None:
        headers += [
            (b"message-dead-letter-queue", left.queue.encode()),
            (b"message-dead-letter-reason", left.reason.value.encode()),
        ]
    return headers


def _add_contents(
    shown: dict[str, Any],
    value: bytes | memoryview | None,
    content: Content,
    headers: Sequence[tuple[str, bytes]],
    dead_letter: Origin | None,
) -> None:
    if value is not None:
        add_value(shown, bytes(value), content, ValueEncoding.AUTO)
    if headers:
        shown["headers"] = {name: shown_header(part) for name, part in headers}
    if dead_letter is not None:
        shown["dead_letter"] = {
            "queue": dead_letter.queue,
            "reason": dead_letter.reason.value,
            "deliveries": dead_letter.deliveries,
            "at": format_timestamp(dead_letter.at),
        }


def _time(timestamp: int | None) -> str | None:
    return None if timestamp is None else format_timestamp(timestamp)
