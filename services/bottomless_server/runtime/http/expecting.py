"""Requests with `Expect: 100-continue`, for routes that speak ASGI themselves."""

from typing import Final

from starlette.types import Message, Receive, Scope, Send

_CLOSE: Final = (b"connection", b"close")


class Expecting:
    """A request that waits for `100 Continue` before it sends its body.

    It is told to go on when the body is asked for. Refused before that, it may send the body
    or not, and nobody can know where the next request begins: so the connection ends.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._waiting = any(name == b"expect" for name, _ in scope["headers"])

    async def receive(self) -> Message:
        self._waiting = False
        return await self._receive()

    async def send(self, message: Message) -> None:
        if self._waiting and message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], _CLOSE]}
        await self._send(message)
