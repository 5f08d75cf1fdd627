"""What tests of the protocol share: a peer that notes what it is asked, and bytes as they travel."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import orjson
from starlette.datastructures import Headers
from support.peers import SilentPeer

from bottomless.model.names import StreamId
from bottomless_server.protocol.peer import Params, PeerAnswer, PeerBytes
from bottomless_server.runtime.http.app import message_response

STREAM_ID = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")


class Asked(Exception):
    """A question was asked, and nobody answers it."""


class NotingPeer(SilentPeer):
    """Notes each question as method, path with its query, and body."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bytes]] = []

    def at(self, _: str, /) -> "NotingPeer":
        return self

    async def call(
        self,
        method: str,
        path: str,
        /,
        *,
        params: Params | None = None,
        body: Any = None,
        **_: Any,
    ) -> PeerAnswer:
        self._note(method, path, params, b"" if body is None else orjson.dumps(body))
        raise Asked

    async def fetch(
        self,
        path: str,
        /,
        *,
        params: Params | None = None,
        **_: Any,
    ) -> PeerBytes:
        self._note("GET", path, params, b"")
        raise Asked

    def _note(self, method: str, path: str, params: Params | None, body: bytes) -> None:
        query = f"?{urlencode(params)}" if params else ""
        self.asked.append((method, path + query, body))


def sent(members: Any) -> bytes:
    """The JSON of an answer, as a service sends it."""
    return bytes(message_response(members).body)


def received(data: bytes) -> Any:
    """The JSON of an answer, as the one who asked gets it."""
    return orjson.loads(data)


def received_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Headers as the one who asked gets them."""
    return Headers(dict(headers))
