"""An answer as a value: made by functions without I/O, sent by whoever has the connection."""

from typing import NamedTuple

from starlette.types import Send


class WholeAnswer(NamedTuple):
    """Everything that is sent for one request; the names of headers are in lowercase."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""


async def send_whole(send: Send, answer: WholeAnswer) -> None:
    """Send an answer by ASGI's two messages."""
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})
