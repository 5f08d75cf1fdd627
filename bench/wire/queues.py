"""Our requests to queues as bytes: publishes of JSON, receives, and how an acknowledgement begins."""

from collections.abc import Sequence

import orjson


def publish(queue: str, values: Sequence[bytes]) -> bytes:
    """Each value as a message of text."""
    return _post(f"queues/{queue}/messages", {"messages": _messages(values)})


def publish_to(queues: Sequence[str], values: Sequence[bytes]) -> bytes:
    """The same to several queues: all messages to each of them."""
    return _post("publish", {"queues": list(queues), "messages": _messages(values)})


def receive(queue: str, count: int) -> bytes:
    """So many at most, at once or when there is one; they come back after five minutes."""
    asked = {"limit": count, "max_wait_ms": 5_000, "visibility_ms": 300_000, "max_bytes": 16 << 20}
    return _post(f"queues/{queue}/receive", asked)


def ack_head(queue: str) -> bytes:
    """The head of an acknowledgement; the length of its body follows."""
    return (
        f"POST /v1/queues/{queue}/ack HTTP/1.1\r\nHost: bench\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    ).encode()


def _messages(values: Sequence[bytes]) -> list[dict[str, str]]:
    return [{"value": value.decode()} for value in values]


def _post(path: str, content: object) -> bytes:
    body = orjson.dumps(content)
    head = (
        f"POST /v1/{path} HTTP/1.1\r\nHost: bench\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
