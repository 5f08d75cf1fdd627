"""Messages of queues that go to streams: appended at the node that has the stream, as requests are passed on.

The path is that of every append, over the internal listener, so a stream gets them in the order of their
numbers and each once (mode highwater). Who may append there was asked when the queue was configured.
Only the home of the tenant's queues sends; docs/decisions/0119 tells what of two homes is there once.
"""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import orjson

from bottomless.errors import Code, NotFound, Outcome, StoreError, Unavailable
from bottomless.model.limits import JSON_BODY_SIZE_MAX, KIB
from bottomless.model.names import FullName, parse_stream_name
from bottomless.model.record import Content
from bottomless_server.node.core.ownership import not_owner
from bottomless_server.node.forwarding import Forwarding, said_in
from bottomless_server.node.stream_nodes import StreamNodes
from bottomless_server.protocol.forwarding import ForwardedFor, encode_forwarded
from bottomless_server.queues.ports import OutgoingRecord, RecordRefused
from bottomless_server.stores.streams import Streams

_ACTOR: Final = None
_OF_ONE: Final = (
    Code.RECORD_TOO_LARGE,
    Code.VALIDATION_FAILED,
    Code.NUMBER_OUT_OF_RANGE,
    # A record goes alone where it makes a body too large.
    Code.BODY_TOO_LARGE,
)
"""Refusals of a request for one of its records."""
_SIZE_MAX: Final = JSON_BODY_SIZE_MAX - 64 * KIB


class StreamAppends:
    """Streams as targets of queues, wherever they are."""

    def __init__(
        self,
        streams: Streams,
        nodes: StreamNodes,
        forwarding: Forwarding,
        require_home: Callable[[str], Awaitable[None]],
    ) -> None:
        """`require_home` raises where the queues of a tenant are not here any more: nothing is sent then."""
        self._require_home = require_home
        self._streams = streams
        self._nodes = nodes
        self._forwarding = forwarding

    async def require(self, tenant: str, stream: str) -> None:
        """Ask whether there is a stream of this name.

        Raises:
            NotFound: there is none, or a super stream has the name.
            StoreError: coordination does not say.
        """
        await self._streams.find(FullName(tenant, parse_stream_name(stream)))

    async def last_id(self, tenant: str, stream: str, producer: str) -> int | None:
        """The highest publishing id that the stream knows of a producer; None where it knows none.

        Raises:
            StoreError: it does not say.
        """
        path = f"/v1/streams/{quote(stream)}/producers/{quote(producer)}"
        try:
            said = await self._ask("GET", tenant, stream, path, b"")
        except NotFound as error:
            if error.code is Code.PRODUCER_NOT_FOUND:
                return None
            raise
        last = said.get("last_seq") if isinstance(said, dict) else None
        if last is not None and type(last) is not int:
            raise Unavailable("ingest gave an answer that the protocol does not know")
        return last

    async def append(
        self, tenant: str, stream: str, producer: str, records: Sequence[OutgoingRecord]
    ) -> None:
        """Append records whose numbers grow; those that are there already are not appended again.

        Raises:
            RecordRefused: one is refused for itself; those before it may be stored.
            StoreError: anything else; some may be stored.
        """
        path = f"/v1/streams/{quote(stream)}/records"
        for part, body in _bodies(records):
            try:
                await self._ask("POST", tenant, stream, path, body, {"producer-id": producer})
            except StoreError as error:
                refused = _refused(error, part)
                if refused is None:
                    raise
                raise RecordRefused(refused.number) from error

    async def _ask(
        self,
        method: str,
        tenant: str,
        stream: str,
        path: str,
        body: bytes,
        headers: dict[str, str] | None = None,
    ) -> Any:
        stream_id = await self._streams.find(FullName(tenant, parse_stream_name(stream)))
        url = await self._nodes.url_of(stream_id)
        sent = {
            **dict(encode_forwarded(ForwardedFor(tenant, _ACTOR))),
            "accept": "application/json",
            **({"content-type": "application/json"} if body else {}),
            **(headers or {}),
        }
        # At each send, and last: what a home sends after another one has its queues nobody there knows of.
        await self._require_home(tenant)
        try:
            answer = await self._forwarding.send(url, method, path, body, sent)
        except Unavailable:
            self._nodes.forget(url)
            raise
        if answer.disowned:
            self._nodes.forget(url)
            raise not_owner()
        return said_in(answer)


def _refused(error: StoreError, part: Sequence[OutgoingRecord]) -> OutgoingRecord | None:
    """The record that a request was refused for; None where it is another reason, or not known."""
    if error.outcome is not Outcome.NONE or error.code not in _OF_ONE:
        return None
    for fault in error.faults:
        _, _, rest = (fault.pointer or "").partition("/records/")
        number = rest.partition("/")[0]
        if number.isdigit() and int(number) < len(part):
            return part[int(number)]
    return part[0] if len(part) == 1 else None


def _bodies(
    records: Sequence[OutgoingRecord],
) -> Iterator[tuple[Sequence[OutgoingRecord], bytes]]:
    """Bodies of requests, each with the records that it has: as many as one takes."""
    part: list[OutgoingRecord] = []
    encoded: list[bytes] = []
    size = 0
    for record in records:
        data = orjson.dumps(_members(record))
        if part and size + len(data) > _SIZE_MAX:
            yield part, _body(encoded)
            part, encoded, size = [], [], 0
        part.append(record)
        encoded.append(data)
        size += len(data) + 1
    if part:
        yield part, _body(encoded)


def _body(encoded: Sequence[bytes]) -> bytes:
    return b'{"records":[' + b",".join(encoded) + b"]}"


def _members(record: OutgoingRecord) -> dict[str, Any]:
    value = bytes(record.value)
    members: dict[str, Any] = {
        "publishing_id": record.number,
        "event_time": record.event_time,
        "headers": {name: {"base64": _base64(part)} for name, part in record.headers},
    }
    if record.content is Content.JSON:
        members["json"] = orjson.Fragment(value)
    elif record.content is Content.TEXT:
        members["value"] = value.decode("utf-8")
    else:
        members["value_base64"] = _base64(value)
    return members


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")
