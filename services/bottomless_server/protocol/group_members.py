"""What members of consumer groups hold, as the reader asks it of manifest.

Contract: openapi/internal.yaml, tag `manifest`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from bottomless.model.names import StreamId, parse_stream_id
from bottomless_server.protocol.closed_body import ClosedBody
from bottomless_server.protocol.paths import INTERNAL
from bottomless_server.protocol.peer import number, said_by

HELD: Final = f"{INTERNAL}/group-members"
ASKED_COUNT_MAX: Final = 1_000
"""Members that one question may be about."""


class MemberOf(NamedTuple):
    """A member of a consumer group, and the stream that it says it holds."""

    stream_id: StreamId
    member_id: str


class _Member(ClosedBody):
    stream_id: str
    member_id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class HeldAsked(ClosedBody):
    members: Annotated[list[_Member], Field(min_length=1, max_length=ASKED_COUNT_MAX)]

    def places(self) -> list[MemberOf]:
        """The members.

        Raises:
            InvalidRequest: one names what is no id of a stream.
        """
        return [MemberOf(parse_stream_id(one.stream_id), one.member_id) for one in self.members]


def encode_held_asked(members: Sequence[MemberOf]) -> dict[str, Any]:
    return {"members": [one._asdict() for one in members]}


def encode_held(generations: Sequence[int | None]) -> dict[str, Any]:
    """In the order of the question; None of who does not hold the stream."""
    return {"generations": list(generations)}


@said_by("manifest")
def decode_held(body: Any) -> list[int | None]:
    return [None if one is None else number(one) for one in body["generations"]]
