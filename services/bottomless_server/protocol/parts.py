"""What the node that takes a request to a super stream says to the owners of its partitions.

A part of a request is sent as frames, with what the whole request is: by which layout its records
were divided, and where it has numbers, its first and last one and the checksum of its body. What
else is asked of an owner is a *step*: it concerns what its partition remembers of requests, and no
records. Each step may be done twice.

Contract: openapi/internal.yaml, tag `ingest`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import Field

from bottomless.model.limits import OFFSET_MAX, PARTITION_COUNT_MAX
from bottomless.model.names import parse_reference
from bottomless_server.protocol.closed_body import ClosedBody
from bottomless_server.protocol.parameters import Parser, integer, require
from bottomless_server.protocol.paths import STREAM
from bottomless_server.protocol.peer import Params, number, said_by

PARTS: Final = f"{STREAM}/parts"
STEPS: Final = f"{STREAM}/request-steps"
LAYOUT: Final = f"{STREAM}/layout"
PARTS_MEDIA_TYPE: Final = "application/vnd.bottomless.batches"

_CRC_MAX: Final = 2**32 - 1

Step = Literal[
    "begin", "recall", "highest", "complete", "take-epoch", "raise-parts", "raise-whole", "show"
]


class PartAsked(NamedTuple):
    """A part of a request, without its records."""

    layout: int
    """The layout by which the request was divided."""
    resumed: int = 0
    """1: it is known that the request was begun by this layout, before the super stream grew."""
    producer_id: str | None = None
    """The producer that numbers the request; None where it has no numbers."""
    epoch: int = 0
    first: int = 0
    """The number of the request's first record."""
    last: int = 0
    """The number of its last one."""
    body_crc: int = 0
    """The checksum of the body of the whole request."""

    def params(self) -> Params:
        """The query of the request that asks for it."""
        return {name: value for name, value in self._asdict().items() if value is not None}


PART_QUERY: Final[Mapping[str, Parser]] = {
    "layout": integer(1, PARTITION_COUNT_MAX),
    "resumed": integer(0, 1),
    "producer_id": parse_reference,
    "epoch": integer(0, OFFSET_MAX),
    "first": integer(0, OFFSET_MAX),
    "last": integer(0, OFFSET_MAX),
    "body_crc": integer(0, _CRC_MAX),
}


def decode_part_asked(values: Mapping[str, Any]) -> PartAsked:
    """What a query asks for.

    Raises:
        InvalidRequest: `bad-parameter`: the layout is missing.
    """
    return PartAsked(**require(values, "layout"))


class PartSaid(NamedTuple):
    """What became of a part, or what is remembered of one: it is durable and visible."""

    first_offset: int | None
    """None where the original is too old to be remembered."""
    next_offset: int
    timestamp: int | None
    record_count: int
    """Records that this request stored."""
    duplicates: int
    """Records that were stored before."""
    replayed: bool
    """Whether nothing was stored by this request."""


def encode_part(said: PartSaid) -> dict[str, Any]:
    return said._asdict()


@said_by("ingest")
def decode_part(body: Any) -> PartSaid:
    return _part(body)


class StepAsked(NamedTuple):
    """A question about what a partition remembers of requests, or a change of it."""

    step: Step
    producer_id: str
    epoch: int = 0
    first: int = 0
    last: int = 0
    body_crc: int = 0
    start_any: bool = False
    layouts: Sequence[int] = ()
    """The layouts of which parts are meant."""
    highest: int | None = None
    """The highest number of all parts: with `raise-whole`."""
    layout: int = 0
    """The newest layout that the sender knows: with `begin`, `take-epoch` and what raises. With
    `complete` the one by which the request was divided."""


class StepBody(ClosedBody):
    """The body of a step."""

    step: Step
    producer_id: str
    epoch: Annotated[int, Field(ge=0, le=OFFSET_MAX)]
    first: Annotated[int, Field(ge=0, le=OFFSET_MAX)]
    last: Annotated[int, Field(ge=0, le=OFFSET_MAX)]
    body_crc: Annotated[int, Field(ge=0, le=_CRC_MAX)]
    start_any: bool
    layouts: Annotated[list[int], Field(max_length=PARTITION_COUNT_MAX)]
    highest: Annotated[int, Field(ge=0, le=OFFSET_MAX)] | None
    layout: Annotated[int, Field(ge=0, le=PARTITION_COUNT_MAX)]

    def asked(self) -> StepAsked:
        """The step, with the name of its producer checked.

        Raises:
            InvalidRequest: that is no name of a producer.
        """
        return StepAsked(**{**dict(self), "producer_id": parse_reference(self.producer_id)})


def encode_step(asked: StepAsked) -> dict[str, Any]:
    return {**asked._asdict(), "layouts": [*asked.layouts]}


class StepSaid(NamedTuple):
    """What a partition says of a step; what the step does not ask for is None."""

    state: Literal["go-on", "whole", "raise"] | None = None
    """What is to be done with the request: with `begin`."""
    epoch: int | None = None
    """The epoch under which whole requests of the producer are known."""
    last: int | None = None
    """The number of the last whole request's last record; of parts, the highest that is known."""
    layout_before: int | None = None
    """The layout by which the request was divided that this one follows: with `begin`."""
    part: PartSaid | None = None
    """What is remembered of the part: with `recall`."""
    parts: Sequence[tuple[int, int]] = ()
    """Layouts by which parts are known, each with the highest number: with `highest`."""


def encode_step_said(said: StepSaid) -> dict[str, Any]:
    return {**said._asdict(), "part": None if said.part is None else encode_part(said.part)}


@said_by("ingest")
def decode_step_said(body: Any) -> StepSaid:
    state = body["state"]
    if state not in (None, "go-on", "whole", "raise"):
        raise ValueError("the state is not known")
    return StepSaid(
        state,
        _optional(body["epoch"]),
        _optional(body["last"]),
        _optional(body["layout_before"]),
        None if body["part"] is None else _part(body["part"]),
        tuple((number(layout), number(last)) for layout, last in body["parts"]),
    )


class LayoutTold(ClosedBody):
    """What an owner is told of a growth: it takes no part of an older layout any more."""

    layout: Annotated[int, Field(ge=1, le=PARTITION_COUNT_MAX)]


def encode_layout(layout: int) -> dict[str, Any]:
    return LayoutTold.model_construct(layout=layout).model_dump()


def _part(body: Any) -> PartSaid:
    if not isinstance(body["replayed"], bool):
        raise TypeError
    return PartSaid(
        _optional(body["first_offset"]),
        number(body["next_offset"]),
        _optional(body["timestamp"]),
        number(body["record_count"]),
        number(body["duplicates"]),
        body["replayed"],
    )


def _optional(value: Any) -> int | None:
    return None if value is None else number(value)
