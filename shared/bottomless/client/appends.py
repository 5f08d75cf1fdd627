"""Calls that append: one request is stored whole or not at all, and the answer says where."""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final, NamedTuple

from bottomless.client.address import check_reference, producer_path, stream_path
from bottomless.client.encoding import ARROW, JSON, OCTETS, json_body
from bottomless.client.wire import Wire, members, number_in, understood
from bottomless.errors import Outcome
from bottomless.model.limits import KIB
from bottomless.model.offset_spec import parse_timestamp

IN_LINE_SIZE_MAX: Final = 64 * KIB
"""Appends of a producer up to here go over one connection and do not wait for each other's answers.
A larger one has a connection to itself: it is received while the one before it is synced, also by
a server that takes one request of a connection after the other."""


class Appended(NamedTuple):
    """Where an append was stored."""

    first_offset: int | None
    """Offset of its first record. None for a repeat whose original the server has forgotten."""
    next_offset: int
    """The offset after its last record (exclusive end)."""
    timestamp: int | None
    """Milliseconds since 1970."""
    record_count: int = 0
    """Records that this request stored."""
    duplicates: int = 0
    """Records of the request that had been stored before."""


class AppendCalls(Wire):
    """The calls of `openapi/ingest.yaml`.

    Without a key an append is sent again only where nothing of it was stored for certain; otherwise
    the error's `outcome` is `unknown`. With an `idempotency_key` it is sent again in that case too,
    and is stored once.
    """

    async def append(
        self,
        name: str,
        records: Iterable[Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
        expected_offset: int | None = None,
    ) -> Appended:
        """Append records in their JSON form, in one request.

        With `expected_offset` they are stored only if the stream's next offset is this one.

        Raises:
            WrongOffset: the stream's next offset is another than `expected_offset`.
            InvalidRequest: a record has no JSON form, or is not accepted.
            StoreError: the server's answer says why; `outcome` says whether it may be stored.
        """
        return await self.append_body(
            name,
            json_body(records),
            JSON,
            idempotency_key=idempotency_key,
            expected_offset=expected_offset,
        )

    async def append_raw(
        self,
        name: str,
        value: bytes,
        *,
        key: str | None = None,
        filter_value: str | None = None,
        idempotency_key: str | None = None,
        expected_offset: int | None = None,
    ) -> Appended:
        """Append one record whose value is these bytes.

        `key` and `filter_value` must be ASCII here.

        With `expected_offset` it is stored only if the stream's next offset is this one.

        Raises:
            WrongOffset: the stream's next offset is another than `expected_offset`.
            StoreError: the server's answer says why; `outcome` says whether it may be stored.
        """
        given = {"Stream-Key": key, "Stream-Filter-Value": filter_value}
        return await self.append_body(
            name,
            value,
            OCTETS,
            idempotency_key=idempotency_key,
            expected_offset=expected_offset,
            headers={name: text for name, text in given.items() if text is not None},
        )

    async def append_arrow(
        self,
        name: str,
        rows: Any,
        *,
        idempotency_key: str | None = None,
        expected_offset: int | None = None,
    ) -> Appended:
        """Append the rows of a table: Arrow's, or one that Arrow can read, such as a DataFrame.

        It is one request, so that its size is bounded (`/v1/limits`); a producer's `send_table`
        accepts any size. With `expected_offset` the rows are stored only if the stream's next
        offset is this one.

        Raises:
            WrongOffset: the stream's next offset is another than `expected_offset`.
            InvalidRequest: it is no table, or its columns are not those of a record.
            StoreError: the server's answer says why; `outcome` says whether it may be stored.
        """
        from bottomless.client.tables import arrow_body, as_table  # noqa: PLC0415

        return await self.append_body(
            name,
            arrow_body(as_table(rows)),
            ARROW,
            idempotency_key=idempotency_key,
            expected_offset=expected_offset,
        )

    async def append_body(
        self,
        name: str,
        body: bytes,
        media_type: str,
        *,
        idempotency_key: str | None = None,
        expected_offset: int | None = None,
        headers: Mapping[str, str] | None = None,
        retry_seconds: float | None = None,
    ) -> Appended:
        """Append a body that is encoded already, in the form that `media_type` names.

        `retry_seconds` is how long it is tried; without it, as long as the client says. With
        `expected_offset` it is stored only if the stream's next offset is this one.

        Raises:
            WrongOffset: the stream's next offset is another than `expected_offset`.
            StoreError: the server's answer says why; `outcome` says whether it may be stored.
        """
        named = dict(headers or {})
        if idempotency_key is not None:
            named["Idempotency-Key"] = idempotency_key
        if expected_offset is not None:
            named["Stream-Expected-Offset"] = str(expected_offset)
        return await self._append(
            name,
            body,
            media_type,
            named,
            repeatable=idempotency_key is not None,
            retry_seconds=retry_seconds,
        )

    async def append_numbered(
        self,
        name: str,
        body: bytes,
        media_type: str,
        *,
        producer: str,
        epoch: int,
        sequence: int,
        encoding: str | None = None,
        retry_seconds: float | None = None,
    ) -> Appended:
        """Append as a strict producer; `sequence` is the number of the first record.

        A repeat with the same number stores nothing twice, so the request is sent again whatever
        became of the first attempt. Several may be under way at once: small ones of one producer
        reach the server in the order of the calls, large ones may overtake each other, and are then
        refused as a gap.

        Raises:
            StoreError: the server's answer says why; `outcome` says whether it may be stored.
        """
        numbers = {
            "Producer-Id": check_reference(producer),
            "Producer-Epoch": str(epoch),
            "Producer-Seq": str(sequence),
        }
        if encoding is not None:
            numbers["Content-Encoding"] = encoding
        return await self._append(
            name,
            body,
            media_type,
            numbers,
            repeatable=True,
            retry_seconds=retry_seconds,
            line=f"{name}/{producer}" if len(body) <= IN_LINE_SIZE_MAX else None,
        )

    async def append_transaction(
        self,
        name: str,
        body: bytes,
        media_type: str,
        *,
        producer: str,
        number: int,
        epoch: int = 0,
        retry_seconds: float | None = None,
    ) -> Appended:
        """Append as a producer that numbers whole appends; numbers increase, and may have gaps.

        A number that is not above the last one stored counts as a repeat, whatever its body, so the
        request is sent again whatever became of the first attempt. Have only one under way: one
        that a later number overtakes is never stored.

        Raises:
            StoreError: the server's answer says why; `outcome` says whether it may be stored.
        """
        numbers = {
            "Producer-Id": check_reference(producer),
            "Producer-Epoch": str(epoch),
            "Txn-Number": str(number),
        }
        return await self._append(
            name, body, media_type, numbers, repeatable=True, retry_seconds=retry_seconds
        )

    async def raise_producer_epoch(self, name: str, producer: str) -> dict[str, Any]:
        """Fence older instances of a producer.

        Returns its new `epoch`, and `last_seq` to continue after.
        """
        path = f"{producer_path(name, producer)}/epoch"
        return await self._send_json("POST", path, repeatable=True)

    def list_producers(self, name: str) -> AsyncIterator[dict[str, Any]]:
        """List the producers that a stream knows, in the order of their names."""
        return self._list(f"{stream_path(name)}/producers")

    async def describe_producer(self, name: str, producer: str) -> dict[str, Any]:
        """Show what a stream knows about a producer: its mode, its epoch and its last number."""
        return members(await self._send("GET", producer_path(name, producer)))

    async def forget_producer(self, name: str, producer: str) -> None:
        """Forget a producer for good: a repeat of what it sent would then be stored again."""
        await self._send("DELETE", producer_path(name, producer), type_wanted=JSON)

    async def _append(
        self,
        name: str,
        body: bytes,
        media_type: str,
        headers: Mapping[str, str],
        *,
        repeatable: bool,
        retry_seconds: float | None = None,
        line: str | None = None,
    ) -> Appended:
        answer = await self._send(
            "POST",
            f"{stream_path(name)}/records",
            content=body,
            type_sent=media_type,
            headers=headers,
            bulk=True,
            repeatable=repeatable,
            retry_seconds=retry_seconds,
            line=line,
        )
        value = members(answer, changes=True)
        # Also where it makes no sense, something may be stored.
        with understood(Outcome.UNKNOWN):
            first, timestamp = value["first_offset"], value["timestamp"]
            return Appended(
                None if first is None else number_in(value, "first_offset"),
                number_in(value, "next_offset"),
                None if timestamp is None else parse_timestamp(timestamp),
                number_in(value, "count"),
                number_in(value, "duplicates"),
            )
