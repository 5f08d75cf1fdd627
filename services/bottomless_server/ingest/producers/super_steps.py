"""The steps of requests to super streams at one partition, beside the parts: asked, and written.

A step that changes nothing is answered by what is committed. One that does is written first, in
order with the appends of the stream, and answered by what is known afterwards; done again, it
writes nothing more, and an epoch that was taken is refused.

On the record's path: beside it; asked by local/owned_partitions.py.
"""

from collections.abc import Sequence
from typing import Final

from bottomless.guards import guard
from bottomless.model.chunk import TrackedEntry
from bottomless_server.core.super_growing import super_growing
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.producers.places import Places
from bottomless_server.ingest.producers.super_requests import (
    Begun,
    Request,
    decide_begin,
    entries_of_raise,
    entries_of_whole,
    highest_epoch,
    highest_part,
    layout_before,
    part_name,
    remembered_part,
    require_free_epoch,
    require_place,
    whole_name,
)
from bottomless_server.protocol.parts import PartSaid, StepAsked, StepSaid

_STATES: Final = {Begun.GO_ON: "go-on", Begun.WHOLE: "whole", Begun.RAISE: "raise"}


NEED_LAYOUT: Final = ("begin", "take-epoch", "raise-parts", "raise-whole")
"""Steps of which a partition has to know what its newest layout is."""


def changes(asked: StepAsked) -> bool:
    """Whether something has to be written for a step."""
    return asked.step in ("complete", "take-epoch", "raise-parts", "raise-whole")


def entries_of(
    tracking: Tracking, asked: StepAsked, now: int, places: Places, layout: int
) -> Sequence[TrackedEntry]:
    """What is written for a step that changes something; nothing where it is done already. `layout` is
    the oldest one of which the partition takes parts.

    Raises:
        StoreError: it is refused.
    """
    if asked.step == "complete":
        return entries_of_whole(tracking, request_of(asked), now, places, asked.layout)
    require_all_layouts(asked, layout)
    if asked.step == "raise-whole":
        name = whole_name(asked.producer_id)
        return entries_of_raise(tracking, name, asked.epoch, now, asked.highest, places)
    if asked.step == "take-epoch":
        require_free_epoch(highest_epoch(tracking, asked.producer_id, asked.layouts), asked.epoch)
    return [
        entry
        for layout in asked.layouts
        for entry in entries_of_raise(
            tracking, part_name(layout, asked.producer_id), asked.epoch, now, places=places
        )
    ]


@guard("the layout of who raises an epoch")
def require_all_layouts(asked: StepAsked, layout: int) -> None:
    """Refuse a step of who does not know all layouts: of an epoch that it raises, the parts of an
    older run by the newest one would not be locked out.

    Raises:
        Unavailable: `super-stream-growing`; outcome none.
    """
    if asked.layout < layout:
        raise super_growing()


def answer_to_step(tracking: Tracking, asked: StepAsked, next_offset: int, layout: int) -> StepSaid:
    """What a partition says of a step, by what is committed; the stream ends at `next_offset`, and
    `layout` is the oldest one of which it takes parts.

    Raises:
        StoreError: the request is refused: with `begin`.
    """
    if asked.step == "begin":
        # Who does not know the newest one would divide a request otherwise than it is stored.
        require_all_layouts(asked, layout)
        begun = decide_begin(tracking, request_of(asked))
        if begun is Begun.GO_ON:
            require_place(tracking, request_of(asked))
        before = layout_before(tracking, request_of(asked))
        return _of_whole(tracking, asked)._replace(
            state=_STATES[begun],  # type: ignore[arg-type]
            layout_before=before or None,
        )
    if asked.step == "recall":
        return StepSaid(part=_recalled(tracking, asked, next_offset))
    if asked.step in ("highest", "take-epoch", "raise-parts"):
        last = highest_part(tracking, asked.producer_id, asked.layouts)
        return StepSaid(last=last, parts=_parts(tracking, asked))
    return _of_whole(tracking, asked)


def request_of(asked: StepAsked) -> Request:
    """The request that a step is of."""
    return Request(
        asked.producer_id, asked.epoch, asked.first, asked.last, asked.body_crc, asked.start_any
    )


def _of_whole(tracking: Tracking, asked: StepAsked) -> StepSaid:
    known = tracking.producers.get(whole_name(asked.producer_id))
    if known is None:
        return StepSaid()
    return StepSaid(epoch=known.epoch, last=known.last_sequence)


def _recalled(tracking: Tracking, asked: StepAsked, next_offset: int) -> PartSaid:
    """What is remembered of the part of a request that is whole."""
    [layout] = asked.layouts
    known = tracking.producers.get(part_name(layout, asked.producer_id))
    found = None if known is None else remembered_part(known, request_of(asked))
    if found is None:
        return PartSaid(None, next_offset, None, 0, 0, True)
    end = found.first_offset + found.record_count
    return PartSaid(found.first_offset, end, found.timestamp, 0, found.record_count, True)


def _parts(tracking: Tracking, asked: StepAsked) -> list[tuple[int, int]]:
    found = [(one, highest_part(tracking, asked.producer_id, [one])) for one in asked.layouts]
    return [(layout, last) for layout, last in found if last is not None]
