"""Calls that append to a super stream: the server divides a request among partitions by its keys.

Each partition stores its part whole or not at all, and the parts are independent. A request that has
numbers is stored once as a whole: it is sent again as it was until all of it is stored, also where an
answer says that some parts are and others are not.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bottomless.client.address import check_reference, super_path
from bottomless.client.appends import AppendCalls
from bottomless.client.encoding import JSON, json_body
from bottomless.client.problems import error_from_problem
from bottomless.client.retry import retried
from bottomless.client.transport import Answer
from bottomless.client.wire import members, number_in, stranger, understood
from bottomless.errors import Outcome, StoreError
from bottomless.model.offset_spec import parse_timestamp

_PARTLY: Final = 207
_STORED: Final = 200


class StoredPart(NamedTuple):
    """What one partition stored of a request."""

    partition: int
    stream: str
    """The name of the partition as a stream."""
    first_offset: int | None
    """Offset of its first record. None for a repeat whose original the server has forgotten."""
    timestamp: int | None
    """Milliseconds since 1970."""
    duplicates: int
    """Records of the part that had been stored before."""
    record_indexes: list[int]
    """Where its records stand in the request, from 0, in their order."""

    def within(self, first: int, next_index: int) -> tuple[int, int]:
        """Find which of its records stand in a range of the request, as numbers within the part."""
        indexes = self.record_indexes
        return bisect_left(indexes, first), bisect_left(indexes, next_index)


@dataclass(frozen=True, slots=True)
class SuperAppended:
    """Where a request to a super stream was stored: all of it is."""

    parts: list[StoredPart]
    record_count: int
    """Records that this request stored."""
    duplicates: int
    """Records of the request that had been stored before."""

    def parts_within(self, first: int, next_index: int) -> Iterator[tuple[StoredPart, int, int]]:
        """Give the parts that have records in a range of the request, and which of theirs."""
        for part in self.parts:
            start, end = part.within(first, next_index)
            if start < end:
                yield part, start, end


class SuperAppendCalls(AppendCalls):
    """The calls of `openapi/ingest.yaml` about super streams."""

    async def append_super(self, name: str, records: Iterable[Mapping[str, Any]]) -> SuperAppended:
        """Append records in their JSON form to a super stream, in one request; each must have a key.

        Raises:
            InvalidRequest: a record has no JSON form, no key, or no partition; nothing is stored.
            StoreError: the server's answer says why; `outcome` says whether it may be stored. Where
                some partitions have stored their parts, `failed_records` of its facts names the first
                records that are not stored.
        """
        return await self.append_super_body(name, json_body(records), JSON)

    async def append_super_body(
        self, name: str, body: bytes, media_type: str, *, retry_seconds: float | None = None
    ) -> SuperAppended:
        """Append a body that is encoded already to a super stream, as `append_super` does.

        Raises:
            StoreError: as `append_super` does.
        """
        return await self._append_super(
            name, body, media_type, {}, repeatable=False, retry_seconds=retry_seconds
        )

    async def append_super_numbered(
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
    ) -> SuperAppended:
        """Append to a super stream as a producer; `sequence` is the number of the first record.

        The request is sent again as it was until all partitions have their parts. Have only one
        under way: the next one is refused until this one is whole.

        Raises:
            StoreError: the server's answer says why; `outcome` says whether it may be stored. Send
                the same body with the same numbers again, or begin a new run by a higher epoch.
        """
        numbers = {
            "Producer-Id": check_reference(producer),
            "Producer-Epoch": str(epoch),
            "Producer-Seq": str(sequence),
        }
        if encoding is not None:
            numbers["Content-Encoding"] = encoding
        return await self._append_super(
            name, body, media_type, numbers, repeatable=True, retry_seconds=retry_seconds
        )

    async def raise_super_producer_epoch(self, name: str, producer: str) -> dict[str, Any]:
        """Fence older runs of a producer in all partitions.

        Returns its new `epoch`, and `last_seq` to continue after. A request that an older run could
        not finish stays stored in part.
        """
        path = f"{super_path(name)}/producers/{check_reference(producer)}/epoch"
        return await self._send_json("POST", path, repeatable=True)

    async def _append_super(
        self,
        name: str,
        body: bytes,
        media_type: str,
        headers: Mapping[str, str],
        *,
        repeatable: bool,
        retry_seconds: float | None,
    ) -> SuperAppended:
        async def attempt() -> SuperAppended:
            answer = await self._send(
                "POST",
                f"{super_path(name)}/records",
                content=body,
                type_sent=media_type,
                headers=headers,
                bulk=True,
                repeatable=repeatable,
                retry_seconds=0,
            )
            return _appended(answer)

        # Here and not in each call: an answer of 207 is a success that has to be repeated.
        seconds = self._retry_seconds if retry_seconds is None else retry_seconds
        return await retried(attempt, seconds, repeatable=repeatable, on_retry=self._on_retry)


def _appended(answer: Answer) -> SuperAppended:
    """Read an answer.

    Raises:
        StoreError: it says that some parts are not stored.
    """
    value = members(answer, changes=True)
    # Also where it makes no sense, something may be stored.
    with understood(Outcome.UNKNOWN):
        results = list(value["results"])
        failed = [one for one in results if one["status"] != _STORED]
        if not failed:
            return SuperAppended(
                [_part(one) for one in results],
                number_in(value, "count"),
                number_in(value, "duplicates"),
            )
        errors = [error_from_problem(one["status"], one["problem"]) for one in failed]
        records = sorted(index for one in failed for index in one["record_indexes"])
    if answer.status != _PARTLY:
        raise stranger(Outcome.UNKNOWN)
    raise _partly(errors, records, len(results))


def _partly(errors: list[StoreError], records: list[int], part_count: int) -> StoreError:
    """Make the error of a request of which some parts failed: one that a repeat does not mend, if there
    is one."""
    error = next((one for one in errors if not one.retryable), errors[0])
    # Of the whole request: some parts of it are stored.
    error.outcome = Outcome.UNKNOWN
    error.facts |= {
        "failed_partitions": len(errors),
        "stored_partitions": part_count - len(errors),
        "failed_records": records[:10],
    }
    return error


def _part(value: Mapping[str, Any]) -> StoredPart:
    first, timestamp = value["first_offset"], value["timestamp"]
    return StoredPart(
        number_in(value, "partition"),
        value["stream"],
        None if first is None else number_in(value, "first_offset"),
        None if timestamp is None else parse_timestamp(timestamp),
        number_in(value, "duplicates"),
        list(value["record_indexes"]),
    )
