"""Scatter-gather responses: a body is sent as several buffers, without joining them first.

ASGI's word for a body is `bytes`. A page is views of what was read, and joining them would copy
each byte once more, only for a socket that takes several buffers at once. So our own listener
says in the scope that it does (`bottomless.gathers`), and elsewhere the pieces are joined.

All pieces are handed over in one message, not one after the other: then everything that a slow
client has not taken yet waits in the transport, where it is counted and bounded.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

GATHERS: Final = "bottomless.gathers"
"""In a scope: the server takes `Gathered` where ASGI has bytes."""

Piece = bytes | memoryview | pa.Buffer


class Gathered:
    """The bytes of its pieces, one after the other."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.views = [memoryview(piece) for piece in pieces]
        self._size = sum(view.nbytes for view in self.views)

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.views)


class GatheredResponse(Response):
    """A whole answer, of pieces."""

    def __init__(
        self, pieces: Sequence[Piece], status: int, headers: Mapping[str, str], media_type: str
    ) -> None:
        self._gathered = Gathered(pieces)
        length = {"Content-Length": str(len(self._gathered))}
        super().__init__(None, status, {**headers, **length}, media_type)

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        gathers = scope.get(GATHERS, False)
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        body = self._gathered if gathers else bytes(self._gathered)
        await send({"type": "http.response.body", "body": body})
