"""Steps of requests to super streams, at the partitions that they concern, wherever their owners are.

On the record's path: beside super_produce.py, before remote_partitions.py or local/owned_partitions.py.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, Literal, TypeVar

from bottomless.errors import Code, Unavailable, WrongOffset
from bottomless.model.super_stream import Layout
from bottomless_server.ingest.front.remote_partitions import PartitionOwners
from bottomless_server.ingest.producers.super_requests import (
    Request,
    coordinating_partition,
    raises,
)
from bottomless_server.protocol.parts import StepAsked, StepSaid
from bottomless_server.protocol.supers import SuperSaid

T = TypeVar("T")

_TAKES_MAX: Final = 8
"""Epochs that are tried for one run."""


class Steps:
    """Steps of requests at the partitions of one super stream."""

    def __init__(self, owners: PartitionOwners, found: SuperSaid, parts_in_flight: int) -> None:
        self._owners = owners
        self._found = found
        self._under_way = asyncio.Semaphore(parts_in_flight)

    async def at_coordinating(self, asked: StepAsked) -> StepSaid:
        """Do a step at the partition that coordinates a producer's requests."""
        index = coordinating_partition(asked.producer_id, self._found.initial_count)
        return await self.at(index, asked)

    async def at(self, index: int, asked: StepAsked) -> StepSaid:
        """Do a step at one partition."""
        async with self._under_way:
            owner = await self._owners.at(self._found.partitions[index].stream_id)
            return await owner.do_step(asked)

    async def take_epoch(self, producer_id: str, epoch: int) -> None:
        """Take an epoch for a run that begins, where requests are coordinated: no other run gets it.

        Raises:
            WrongOffset: `producer-fenced`: another run may have it.
        """
        index = coordinating_partition(producer_id, self._found.initial_count)
        await self.at(index, self._of_parts("take-epoch", index, producer_id, epoch))

    async def raise_epoch(self, producer_id: str, epoch: int) -> StepSaid:
        """Raise the epoch of a producer in all partitions, and then where requests are coordinated.

        After a crash in between it is raised in some of them: an older run stores nothing more
        there, and who raises it again finishes it.
        """
        coordinating = coordinating_partition(producer_id, self._found.initial_count)
        steps = raises(len(self._found.partitions), coordinating)
        highest: int | None = None
        said = StepSaid()
        for coordinates, together in groupby(steps, lambda step: step.coordinates):
            if coordinates:
                newest = self._found.layout.version
                asked = StepAsked("raise-whole", producer_id, epoch, highest=highest, layout=newest)
                said = await self.at(coordinating, asked)
                continue
            found = await all_of(
                self.at(
                    step.partition,
                    self._of_parts("raise-parts", step.partition, producer_id, epoch),
                )
                for step in together
            )
            lasts = [one.last for one in found if one.last is not None]
            highest = max(lasts, default=None)
        return said

    async def highest_by_layout(
        self, request: Request, layouts: Sequence[Layout]
    ) -> Mapping[int, int | None]:
        """The highest number of a part that any partition knows, by older layouts."""
        found = await all_of(
            self.at(index, self._of_parts("highest", index, request.producer_id, 0, layouts))
            for index in range(layouts[-1].count)
        )
        highest: dict[int, int | None] = {}
        for layout, last in (part for said in found for part in said.parts):
            highest[layout] = max(last, highest.get(layout) or 0)
        return highest

    def _of_parts(
        self,
        step: Literal["take-epoch", "raise-parts", "highest"],
        index: int,
        producer_id: str,
        epoch: int,
        layouts: Sequence[Layout] | None = None,
    ) -> StepAsked:
        wanted = self._found.layouts if layouts is None else layouts
        having = [layout.version for layout in wanted if layout.count > index]
        newest = self._found.layout.version
        return StepAsked(step, producer_id, epoch, layouts=having, layout=newest)


def step_of(step: Literal["begin", "recall", "complete"], request: Request) -> StepAsked:
    """A step of one request."""
    return StepAsked(
        step,
        request.producer_id,
        request.epoch,
        request.first,
        request.last,
        request.body_crc,
        request.start_any,
    )


async def all_of(works: Iterable[Awaitable[T]]) -> list[T]:
    """The results of all; where one fails, of none, after all have ended."""
    done = await asyncio.gather(*works, return_exceptions=True)
    failed = [one for one in done if isinstance(one, BaseException)]
    if failed:
        raise failed[0]
    return [one for one in done if not isinstance(one, BaseException)]


async def begin_run(steps: Steps, producer_id: str, epoch: int) -> StepSaid:
    """Take the first epoch from this one on that is free, and raise it everywhere.

    Where the coordinating partition has forgotten the producer, others may know higher ones; and
    other runs may begin at this moment.
    """
    for _ in range(_TAKES_MAX):
        try:
            await steps.take_epoch(producer_id, epoch)
            said = await steps.raise_epoch(producer_id, epoch)
        except WrongOffset as error:
            known = error.facts.get("current_epoch")
            if error.code is not Code.PRODUCER_FENCED or not isinstance(known, int):
                raise
            epoch = max(epoch, known) + 1
            continue
        if said.epoch == epoch:
            return said
        # Another run has begun after this one, before it could be told.
        epoch = max(epoch, said.epoch or 0) + 1
    raise Unavailable(
        "other runs of this producer begin all the time; the same again is right",
        retry_after_seconds=1,
    )
