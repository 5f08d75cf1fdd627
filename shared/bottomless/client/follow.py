"""Follow a stream: batches as they are appended, over any number of connections.

The position is that of the last whole batch, however an answer ends, and whether it has an end at
all. A batch that a broken connection cut is dropped and asked for again, so nothing comes twice and
nothing is left out.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from bottomless.client.address import stream_path
from bottomless.client.parameters import Parameter, query_of
from bottomless.client.place import Place, spec_of
from bottomless.client.problems import error_from_problem
from bottomless.client.record import Record
from bottomless.client.retry import Backoff, jittered
from bottomless.client.transport import OpenAnswer, QueryValue
from bottomless.client.wire import Wire, stranger
from bottomless.errors import Code, NotFound, OffsetGone, StoreError, Unavailable
from bottomless.model.limits import MIB

_NDJSON: Final = "application/x-ndjson"
_LINE_SIZE_MAX: Final = 64 * MIB
"""Far above what the largest record can become as JSON."""
_ASKED_FOR: Final = frozenset({"max-records", "until-offset"})
_NOT_OF_THE_ERROR: Final = frozenset({"end", "time", "up_to_date", "gaps"})
_AGAIN: Final = frozenset({"rotate", "draining", "slow-consumer"})


class Batch(NamedTuple):
    """Records that came together, and the offset at which to continue after them."""

    records: list[Record]
    next_offset: int
    """The offset after the batch (exclusive end)."""
    gaps: list[dict[str, int]]
    """Offsets between the records that were given up for good."""
    stream_id: str = ""
    """The id of the stream that holds them; its name may be that of another stream by now."""
    partition: int | None = None
    """The index of their partition, where a group shares a super stream; None of any other stream."""


class FollowCalls(Wire):
    """The call that follows a stream, and so does not end by itself."""

    def follow(
        self,
        /,
        name: str,
        offset: Place,
        *,
        on_outage: Callable[[StoreError], None],
        **parameters: Parameter,
    ) -> AsyncIterator[Batch]:
        """Give the records from a place on, and then those that are appended later.

        If the server cannot be reached at first, that is an error, as with any call. After that an
        outage is waited out, however long it lasts; `on_outage` is called with each. Batches may be
        empty. `parameters` such as `filter` and `key` may be lists.

        Raises:
            InvalidRequest: a list is empty.
            OffsetGone: retention or trim has passed the position, or the place where it begins.
            NotFound: the stream was deleted.
            WrongOffset: `stream-replaced`, another stream has taken the name.
        """
        return self._followed(name, offset, on_outage, {}, parameters)

    def follow_as_member(
        self,
        /,
        name: str,
        offset: Place,
        member_id: str,
        generation: int,
        *,
        on_outage: Callable[[StoreError], None],
        **parameters: Parameter,
    ) -> AsyncIterator[Batch]:
        """Follow a stream as `follow` does, only while a member of a consumer group holds it.

        `member_id` is what the join gave, `generation` that of the assignment.

        Raises:
            WrongOffset: `not-active`, another member may hold the stream by now; and whatever
                `follow` raises.
        """
        headers = {"Group-Member": member_id, "Group-Generation": str(generation)}
        return self._followed(name, offset, on_outage, headers, parameters)

    async def _followed(
        self,
        name: str,
        offset: Place,
        on_outage: Callable[[StoreError], None],
        headers: Mapping[str, str],
        parameters: Mapping[str, Parameter],
    ) -> AsyncIterator[Batch]:
        path = f"{stream_path(name)}/records"
        query: dict[str, QueryValue] = {
            "on_out_of_range": "error",
            **query_of(parameters),
            "offset": spec_of(offset),
            "follow": "true",
        }
        connected = False
        failures = 0
        backoff = Backoff(self._retry_seconds)
        while True:
            pause = 0.0
            try:
                async with self._open(path, query, _NDJSON, headers) as answer:
                    stream_id = _stay_with(query, answer, begun=connected)
                    connected = True
                    async for batch in read_batches(answer.pieces):
                        failures = 0
                        query["offset"] = batch.next_offset
                        if "limit" in query:
                            # Of all answers together; of 0 no server would hear.
                            query["limit"] = _number(query["limit"]) - len(batch.records)
                        yield batch._replace(stream_id=stream_id)
            except StoreError as error:
                if not error.retryable or (not connected and backoff.after(error) is None):
                    raise
                on_outage(error)
                # An answer that the server ended in good order is taken up again at once.
                if failures or error.retry_after_seconds != 0:
                    pause = jittered(failures, error.retry_after_seconds)
                failures += 1
                if query.get("limit") == 0:
                    return
            else:
                return
            await asyncio.sleep(pause)


def _number(value: QueryValue) -> int:
    assert not isinstance(value, tuple)
    return int(value)


def _stay_with(query: dict[str, QueryValue], answer: OpenAnswer, *, begun: bool) -> str:
    """Let whatever is asked from now on be this stream, from this offset, or an error; returns
    the stream's id.

    A spec is for the first time: asked again, `next` would leap over what came meanwhile,
    and a position that retention has passed would be moved without a word.
    """
    stream_id, start = answer.headers.get("Stream-Id"), answer.headers.get("Page-Start-Offset", "")
    if stream_id is None or not (start.isascii() and start.isdigit()):
        raise stranger()
    query["expect_stream_id"] = stream_id
    if not begun:
        query["offset"] = int(start)
    query["on_out_of_range"] = "error"
    for beginning in ("consumer", "default"):
        query.pop(beginning, None)
    return stream_id


async def read_batches(pieces: AsyncIterator[bytes]) -> AsyncIterator[Batch]:
    """Read the batches of one connection.

    Raises:
        Unavailable: another connection may continue, or the answer is not that of a server of
            ours.
    """
    records: list[Record] = []
    async for line in _lines(pieces):
        control = line.get("_control")
        if control is None:
            records.append(Record(line))
            continue
        if not isinstance(control, dict) or type(control.get("next_offset")) is not int:
            raise stranger()
        if "end" in control:
            # Its offset is not gone by: where more was read than was sent, a server of an
            # earlier release named the end of what it had read.
            if records:
                break
            _end(control)
            return
        if "time" not in control:
            yield Batch(records, control["next_offset"], control.get("gaps") or [])
            records = []
    raise Unavailable("the answer broke off")


def _end(control: Mapping[str, Any]) -> None:
    """Return if this end was asked for; what else it is is raised."""
    reason, position = control["end"], {"next_offset": control["next_offset"]}
    if not isinstance(reason, str):
        raise stranger()
    if reason in _ASKED_FOR:
        return
    if reason in _AGAIN:
        raise Unavailable("the server ended the answer", retry_after_seconds=0)
    if reason == "stream-deleted":
        raise NotFound("the stream was deleted", facts=position)
    if reason == "offset-trimmed":
        raise OffsetGone(
            "what comes next was removed by retention or trim",
            code=Code.OFFSET_TRIMMED,
            facts={**position, "first_offset": control.get("first_offset")},
        )
    # All else that it says are facts, as of a problem: such as where one can read on.
    problem = {name: value for name, value in control.items() if name not in _NOT_OF_THE_ERROR}
    problem["detail"] = "the server ended the answer with an error"
    raise error_from_problem(503, problem)


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    held: list[bytes] = []
    size = 0
    async for piece in pieces:
        *whole, rest = piece.split(b"\n")
        for line in whole:
            yield _decoded(b"".join((*held, line)))
            held, size = [], 0
        held.append(rest)
        size += len(rest)
        if size > _LINE_SIZE_MAX:
            raise Unavailable("a line of the answer is too long", retryable=False)


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise stranger()
    return value
