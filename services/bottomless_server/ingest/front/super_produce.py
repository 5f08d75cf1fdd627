"""What one request to a super stream does, from its headers to the outcome of each of its parts.

Any node takes it: the records are divided among the partitions, and each part goes to the owner of
its partition, which may be this node. All records are routed before any is written.

A request with numbers is stored once however often it comes, by the steps of
producers/super_requests.py. What is on disk after a crash of this node:

- before and after `begin`: nothing of the request, unless an earlier try of it has left parts.
- while parts are appended: any of them, each whole or not at all.
- before `complete`: all parts. It is not known yet that the request is whole.
- after it: the request is whole, answered or not.

In each case the producer sends it again as it was, and no later one gets ahead of it. A request
without numbers leaves the same parts, and who repeats it stores them twice.

Partitions forget a producer that is idle for long. A node that slept between the first step of a
request and a part of it does not send that part: another node may have stored all of the request
meanwhile, and its partition have forgotten so.

On the record's path: after super_routes.py, before remote_partitions.py or local/owned_partitions.py.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import structlog
from starlette.types import Receive, Scope

from bottomless.errors import Code, Outcome, StoreError, Unavailable
from bottomless.guards import guard
from bottomless.model.names import FullName, StreamId
from bottomless.model.super_stream import Layout, SuperState
from bottomless_server.core.faults import bad_header
from bottomless_server.core.not_found import super_not_found
from bottomless_server.core.restated import restated
from bottomless_server.core.super_growing import super_growing
from bottomless_server.ingest.front.append_requests import AppendRequests
from bottomless_server.ingest.front.forms import (
    ACCEPTED_BY_SUPERS,
    INLINE_SIZE,
    JSON,
    Form,
    read_form,
)
from bottomless_server.ingest.front.metrics import AppendCounts
from bottomless_server.ingest.front.remote_partitions import PartitionOwners
from bottomless_server.ingest.front.request_steps import Steps, all_of, begin_run, step_of
from bottomless_server.ingest.front.super_answers import PartResult
from bottomless_server.ingest.front.super_names import SuperNames
from bottomless_server.ingest.front.super_senders import check_producer_id, sender_of
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.producers.super_requests import (
    Request,
    conditions_of_part,
    layout_of,
)
from bottomless_server.ingest.records.conditions import (
    NO_CONDITIONS,
    SEQUENCE_MAX,
    Conditions,
    FromProducer,
)
from bottomless_server.ingest.records.dividing import Divided, Routes, divide
from bottomless_server.ingest.records.intake import Append
from bottomless_server.node.room import MemoryRoom
from bottomless_server.node.under_way import RequestsUnderWay
from bottomless_server.protocol.parts import StepAsked, StepSaid
from bottomless_server.protocol.supers import SuperSaid
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.runtime.http.app import request_id_of
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.runtime.http.problems import enough_memory, unexpected

log = structlog.get_logger(__name__)
T = TypeVar("T")
_OBJECT: Final = re.compile(rb"\s*\{")

_DIVIDINGS_MAX: Final = 2
"""Requests that are divided at once: of each all records are there twice meanwhile."""


class SuperProduce:
    """Takes requests to super streams; keeps nothing of them."""

    def __init__(
        self,
        supers: SuperNames,
        owners: PartitionOwners,
        requests: AppendRequests,
        under_way: RequestsUnderWay,
        room: MemoryRoom,
        counts: AppendCounts,
        *,
        frame_size_max: int,
        parts_in_flight: int,
        since_boot: Callable[[], int],
        parts_ms: int,
    ) -> None:
        """`parts_in_flight`: how many owners one request is under way to at once. `parts_ms`: until
        when after its beginning parts of a request with numbers are sent, by `since_boot`, which
        tells the ms since boot and goes on while the machine sleeps."""
        self._supers = supers
        self.owners: Final = owners
        self._requests = requests
        self._under_way = under_way
        self._room = room
        self._counts = counts
        self.frame_size_max: Final = frame_size_max
        self.parts_in_flight: Final = parts_in_flight
        self.since_boot: Final = since_boot
        self.parts_ms: Final = parts_ms
        self.dividing: Final = asyncio.Semaphore(_DIVIDINGS_MAX)

    async def take(self, text: str, scope: Scope, receive: Receive) -> list[PartResult]:
        """Do all that one request asks for; `text` is the name in its path.

        Raises:
            StoreError: no part was stored, or all of them were (outcome committed).
            ClientGone: the client left before the whole body was here.
        """
        form = read_form(scope, ACCEPTED_BY_SUPERS)
        sender = sender_of(form.conditions)
        # Of a part they say something else.
        form = form._replace(conditions=NO_CONDITIONS)
        name = full_name_of(scope, text)
        self._under_way.require_accepting()
        with self._under_way.counted():
            found = await self._find(name)
            async with self._room.body(StreamId(found.super_id), form.size_to_hold) as room:
                append, body = await self._requests.read(form, scope, receive, room)
                run = _Run(self, name, found, append, _pointer_of(form, body), scope)
                del append, body
                parts = await run.divide(found.layout)
                if sender is None or len(found.layouts) == 1:
                    run.forget_records()
                if (await self._find(name)).super_id != found.super_id:
                    raise super_not_found()
                try:
                    if sender is None:
                        results = await run.append_parts(parts, found.layout, None)
                    else:
                        results = await run.store_once(parts, sender)
                except StoreError as error:
                    if error.code is Code.STREAM_NOT_FOUND:
                        await self._require_same(name, found, error)
                    raise
                if gone := _all_gone(results):
                    await self._require_same(name, found, gone)
                return results

    async def _require_same(self, name: FullName, found: SuperSaid, error: StoreError) -> None:
        """Find out whether a super stream of which nothing is left was made anew under its name.

        Raises:
            NotFound: there is none.
            Unavailable: it was: outcome none.
        """
        self._supers.forget(name)
        if (await self._find(name)).super_id != found.super_id:
            raise Unavailable(
                "the super stream was deleted and made anew; send the request again",
                retry_after_seconds=1,
                outcome=Outcome.NONE,
            ) from error

    async def raise_epoch(self, text: str, producer_id: str, scope: Scope) -> StepSaid:
        """Lock earlier runs of a producer out of all partitions; returns its new epoch, which no other
        run gets, and the last number that any of them has.

        Raises:
            StoreError: the same again is right.
        """
        check_producer_id(producer_id)
        name = full_name_of(scope, text)
        self._under_way.require_accepting()
        with self._under_way.counted():
            found = await self._find(name)
            steps = Steps(self.owners, found, self.parts_in_flight)
            known = await steps.at_coordinating(StepAsked("show", producer_id))
            try:
                return await begin_run(steps, producer_id, (known.epoch or 0) + 1)
            except StoreError as error:
                self.note_refusal(name, error)
                raise

    async def _find(self, name: FullName) -> SuperSaid:
        found = await self._supers.find(name)
        if found.state is not SuperState.ACTIVE:
            self._supers.forget(name)
            raise super_growing()
        return found

    def note(self, name: FullName, outcome: Appended | StoreError, size: int) -> None:
        """Take up what became of a part of a request with so many bytes in all."""
        if isinstance(outcome, Appended):
            self._counts.note(outcome, size)
            self._counts.super_parts += 1
            return
        self._counts.super_parts_failed += 1
        self.note_refusal(name, outcome)

    def note_refusal(self, name: FullName, error: StoreError) -> None:
        """Ask anew about a super stream, if what was known of it is outdated."""
        if error.code in (Code.SUPER_STREAM_GROWING, Code.STREAM_NOT_FOUND):
            self._supers.forget(name)


class _Run:
    """One request, on its way."""

    def __init__(
        self,
        produce: SuperProduce,
        name: FullName,
        found: SuperSaid,
        append: Append,
        pointer: str,
        scope: Scope,
    ) -> None:
        self._produce = produce
        self._name = name
        self._found = found
        self._append: Append | None = append
        self._record_count = append.record_count
        self._body_crc = append.body_crc
        self._pointer = pointer
        self._request_id = request_id_of(scope)
        self._steps = Steps(produce.owners, found, produce.parts_in_flight)
        self._begun_at = produce.since_boot()

    async def divide(self, layout: Layout) -> Mapping[int, Divided]:
        """The parts of the request by a layout.

        Raises:
            InvalidRequest: a record has no partition; nothing is stored.
        """
        append, routes = self._append, routes_of(self._found, layout)
        assert append is not None, "its records are there until it is divided for the last time"
        work = partial(divide, append, routes, self._produce.frame_size_max, self._pointer)
        with enough_memory():
            if append.size <= INLINE_SIZE:
                return work()
            async with self._produce.dividing:
                return await asyncio.to_thread(work)

    def forget_records(self) -> None:
        """Let go of the records as they came, where they will not be divided another time: the room
        that is held is that of one copy."""
        self._append = None

    async def store_once(
        self, parts: Mapping[int, Divided], sender: FromProducer
    ) -> list[PartResult]:
        """Store a request with numbers, or find that it is stored."""
        last = sender.number + self._record_count - 1
        if last > SEQUENCE_MAX:
            raise bad_header("producer-seq", f"the last number must be at most {SEQUENCE_MAX}")
        request = Request(
            sender.producer_id,
            sender.epoch,
            sender.number,
            last,
            self._body_crc,
            sender.start_any,
        )
        try:
            begun = await _nothing_stored(self._begin(request))
        except StoreError as error:
            self._produce.note_refusal(self._name, error)
            raise
        await reach("ingest.super.after-begin")
        newest = self._found.layout
        layout = await _nothing_stored(self._layout(request, begun))
        if layout.version != newest.version:
            parts = await self.divide(layout)
        self.forget_records()
        if begun.state == "whole":
            return await self._recall(parts, request, layout)
        results = await self.append_parts(parts, layout, request)
        if all(isinstance(one.outcome, Appended) for one in results):
            await reach("ingest.super.before-complete")
            await self._complete(request, layout)
        return results

    async def append_parts(
        self, parts: Mapping[int, Divided], layout: Layout, request: Request | None
    ) -> list[PartResult]:
        """Append all parts, side by side."""
        resumed = layout.version != self._found.layout.version
        conditions = conditions_of_part(request, layout.version, resumed=resumed)
        room = asyncio.Semaphore(self._produce.parts_in_flight)

        async def one(index: int, part: Divided) -> PartResult:
            async with room:
                outcome = await self._outcome(index, part.append, conditions)
            self._produce.note(self._name, outcome, part.append.size)
            return PartResult(self._found.partitions[index], part.record_indexes, outcome)

        return await all_of(one(index, part) for index, part in parts.items())

    async def _outcome(
        self, index: int, append: Append, conditions: Conditions
    ) -> Appended | StoreError:
        try:
            owner = await self._produce.owners.at(self._found.partitions[index].stream_id)
            if conditions.identity is not None:
                self._require_soon()
            appended = await owner.append_part(with_conditions(append, conditions))
            await reach("ingest.super.after-part")
        except StoreError as error:
            return error
        except Exception as error:
            log.exception("a part met a bug", request_id=self._request_id)
            return unexpected(error, Outcome.UNKNOWN)
        return appended

    @guard("no part long after the beginning of its request")
    def _require_soon(self) -> None:
        """Refuse to send a part so late that its partition may have forgotten that it has it.

        Raises:
            Unavailable: outcome none.
        """
        if self._produce.since_boot() - self._begun_at > self._produce.parts_ms:
            raise Unavailable(
                "this node stood still while the request was under way; send it again as it was",
                retry_after_seconds=1,
            )

    async def _begin(self, request: Request) -> StepSaid:
        newest = self._found.layout.version
        asked = step_of("begin", request)._replace(layout=newest)
        begun = await self._steps.at_coordinating(asked)
        if begun.state != "raise":
            return begun
        await self._steps.raise_epoch(request.producer_id, request.epoch)
        begun = await self._steps.at_coordinating(asked)
        if begun.state == "raise":
            # Forgotten in between. Were parts stored now, a run of before could still store some.
            raise Unavailable("the epoch of this run was not kept; send the request again")
        return begun

    async def _layout(self, request: Request, begun: StepSaid) -> Layout:
        """The layout by which the request goes: the newest, or that by which it was begun."""
        newest, older = self._found.layout, self._found.layouts[:-1]
        if not older or (begun.state == "go-on" and begun.layout_before == newest.version):
            # The one before it was whole after the growth, and this one was never begun before that.
            return newest
        highest = await self._steps.highest_by_layout(request, older)
        version = layout_of(request, highest, newest.version)
        return next(one for one in self._found.layouts if one.version == version)

    async def _recall(
        self, parts: Mapping[int, Divided], request: Request, layout: Layout
    ) -> list[PartResult]:
        """What the partitions remember of a request that is whole."""
        asked = step_of("recall", request)._replace(layouts=[layout.version])

        async def one(index: int, part: Divided) -> PartResult:
            said = await self._steps.at(index, asked)
            assert said.part is not None, "a recall always says something of the part"
            count = len(part.record_indexes)
            appended = Appended(**said.part._replace(duplicates=count)._asdict())
            return PartResult(self._found.partitions[index], part.record_indexes, appended)

        return await all_of(one(index, part) for index, part in parts.items())

    async def _complete(self, request: Request, layout: Layout) -> None:
        """Note that the request is whole.

        Raises:
            StoreError: outcome committed: all parts are stored, and the same again is right.
        """
        try:
            asked = step_of("complete", request)._replace(layout=layout.version)
            await self._steps.at_coordinating(asked)
        except StoreError as error:
            raise restated(error, Outcome.COMMITTED) from error


def _all_gone(results: Sequence[PartResult]) -> StoreError | None:
    """Why nothing was stored, if that is that no partition is there any more."""
    failed = [one.outcome for one in results if isinstance(one.outcome, StoreError)]
    gone = [error for error in failed if error.code is Code.STREAM_NOT_FOUND]
    return gone[0] if gone and len(gone) == len(results) else None


def routes_of(found: SuperSaid, layout: Layout) -> Routes:
    """How a layout of a super stream divides records."""
    bound = [one.binding_key for one in found.partitions[: layout.count]]
    keys = [key.encode() for key in bound if key is not None]
    return Routes(layout.count, tuple(keys) if keys else None)


def with_conditions(append: Append, conditions: Conditions) -> Append:
    """An append as the part of a request."""
    return replace(append, conditions=conditions)


def _pointer_of(form: Form, body: bytes) -> str:
    """Where the records stand in the body: in a member of an object, or in the body itself."""
    if form.media_type == JSON and not form.as_value and _OBJECT.match(body):
        return "/records"
    return ""


async def _nothing_stored(work: Awaitable[T]) -> T:
    """What has to be done before the first part is sent: where it fails, nothing was stored by it."""
    try:
        return await work
    except StoreError as error:
        raise restated(error, Outcome.NONE) from error
