"""Moves of fragments to another drive, as uploaders ask manifest for them and tell of them.

Contract: openapi/internal.yaml, tag `manifest`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from bottomless.errors import InvalidRequest
from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import StreamId, Uid, parse_stream_id, parse_tenant, parse_uid
from bottomless.model.tiers import Move, copy_text, parse_copy
from bottomless_server.protocol.closed_body import ClosedBody
from bottomless_server.protocol.parameters import Parser
from bottomless_server.protocol.paths import INTERNAL, STREAM
from bottomless_server.protocol.peer import number, said_by, string

MOVES: Final = f"{INTERNAL}/moves"
CLAIM: Final = f"{STREAM}/moves/claim"
FINISH: Final = f"{STREAM}/moves/finish"
GIVE_UP: Final = f"{STREAM}/moves/give-up"

_SESSION_SIZE_MAX: Final = 128
_Session = Annotated[str, Field(min_length=1, max_length=_SESSION_SIZE_MAX)]
COPIED_COUNT_MAX: Final = 1_024
"""Fragments that one call tells of; a move that the policy enters has 64."""
_Uid = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
_Number = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class MovesAsked(NamedTuple):
    """Which moves are looked for."""

    session: str = ""
    """The run of the uploader that asks: its own moves are among the answer. Empty for nobody's."""
    after: str = ""
    """Streams up to this one were looked at; empty for none."""

    def params(self) -> dict[str, str | int]:
        """The query of a request."""
        return {"session": self.session, **({"after": self.after} if self.after else {})}


def _session(value: str) -> str:
    if not 1 <= len(value) <= _SESSION_SIZE_MAX:
        raise InvalidRequest(f"must have 1 to {_SESSION_SIZE_MAX} characters")
    return value


MOVES_QUERY: Final[Mapping[str, Parser]] = {"session": _session, "after": parse_stream_id}


class MoveFound(NamedTuple):
    """A move that waits for an uploader."""

    stream_id: StreamId
    copy: int
    """The number of the move."""
    drives: tuple[int, ...] = ()
    """The drives between which it goes; none where an older release has not said it."""


class MovesFound(NamedTuple):
    """One step of a walk over all streams."""

    moves: tuple[MoveFound, ...]
    after: str | None
    """Where the next step begins; None at the end of the walk."""


class ClaimAsked(ClosedBody):
    """A session wants a move, or says that it is still at it."""

    session: _Session
    move: _Number


class FinishAsked(ClosedBody):
    """A session has copied what it was told of a move."""

    session: _Session
    move: _Number
    uids: Annotated[list[_Uid], Field(max_length=COPIED_COUNT_MAX)]
    """The fragments whose copies are durable."""
    damaged: list[_Uid] = Field(default_factory=list, max_length=COPIED_COUNT_MAX)
    """The fragments that were not copied, since what is on their drive is not what the manifest says."""


class GiveUpAsked(ClosedBody):
    move: _Number


class MoveClaimed(NamedTuple):
    """A move in the hands of a session."""

    tenant: str
    """Under whose prefix the stream's objects are."""
    move: Move
    fragments: tuple[FragmentInfo, ...]
    """What is to be copied, oldest first, without what is known of filters; none where all of it
    was cut meanwhile."""


def encode_claim(session: str, copy: int) -> dict[str, Any]:
    return {"session": session, "move": copy_text(copy)}


def encode_finish(
    session: str, copy: int, uids: Sequence[Uid], damaged: Sequence[Uid] = ()
) -> dict[str, Any]:
    """Tell that the copies of these fragments of a move are there, and which are `damaged`. Of the latter
    nothing is said where there are none, as an older release wants it."""
    said = {**encode_claim(session, copy), "uids": list(uids)}
    return {**said, "damaged": list(damaged)} if damaged else said


def encode_give_up(copy: int) -> dict[str, Any]:
    return {"move": copy_text(copy)}


def encode_found(moves: Iterable[MoveFound], after: str | None) -> dict[str, Any]:
    items = [
        {"stream_id": one.stream_id, "move": copy_text(one.copy), "drives": list(one.drives)}
        for one in moves
    ]
    return {"items": items, "after": after}


@said_by("manifest")
def decode_found(body: Any) -> MovesFound:
    after = body["after"]
    return MovesFound(
        tuple(
            MoveFound(
                parse_stream_id(string(one["stream_id"])),
                parse_copy(string(one["move"])),
                tuple(number(each) for each in one.get("drives", ())),
            )
            for one in body["items"]
        ),
        None if after is None else parse_stream_id(string(after)),
    )


def encode_claimed(tenant: str, move: Move, fragments: Sequence[FragmentInfo]) -> dict[str, Any]:
    said = {**move._asdict(), "copy": copy_text(move.copy)}
    return {"tenant": tenant, "move": said, "fragments": [_encode(info) for info in fragments]}


@said_by("manifest")
def decode_claimed(body: Any) -> MoveClaimed:
    said = body["move"]
    move = Move(
        parse_copy(string(said["copy"])),
        number(said["first_offset"]),
        number(said["next_offset"]),
        number(said["from_drive"]),
        number(said["to_drive"]),
        string(said["session"]),
        number(said["at"]),
    )
    fragments = tuple(_decode(one) for one in body["fragments"])
    return MoveClaimed(parse_tenant(body["tenant"]), move, fragments)


_NUMBERS: Final = (
    "first_offset",
    "next_offset",
    "first_timestamp",
    "last_timestamp",
    "epoch",
    "record_count",
    "size",
    "index_size",
    "crc",
    "drive",
)


def _encode(info: FragmentInfo) -> dict[str, Any]:
    said = info._asdict()
    # The whole number does not fit into a number of JSON; 0 says that it was never moved.
    copy = f"{info.copy:016x}"
    return {"uid": info.uid, **{name: said[name] for name in _NUMBERS}, "copy": copy}


def _decode(said: Any) -> FragmentInfo:
    copy = string(said["copy"])
    return FragmentInfo(
        uid=parse_uid(said["uid"]),
        first_offset=number(said["first_offset"]),
        next_offset=number(said["next_offset"]),
        first_timestamp=number(said["first_timestamp"]),
        last_timestamp=number(said["last_timestamp"]),
        epoch=number(said["epoch"]),
        record_count=number(said["record_count"]),
        size=number(said["size"]),
        index_size=number(said["index_size"]),
        crc=number(said["crc"]),
        drive=number(said["drive"]),
        copy=0 if copy == "0" * 16 else parse_copy(copy),
    )
