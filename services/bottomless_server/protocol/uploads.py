"""Uploads, as the uploader tells manifest of them: sessions, intents, fragments.

Bodies are checked as strictly as public ones, since a peer of another version is the usual
reason for a wrong one.

Contract: openapi/internal.yaml, tag `manifest`.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from bottomless.errors import Code, InvalidRequest
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import Uid, parse_tenant, parse_uid
from bottomless.model.stream import StreamRecord
from bottomless_server.protocol.closed_body import ClosedBody
from bottomless_server.protocol.paths import STREAM
from bottomless_server.protocol.peer import number, said_by

UPLOADS: Final = f"{STREAM}/uploads"
INTENTS: Final = f"{STREAM}/intents"
FRAGMENTS: Final = f"{STREAM}/fragments"
ABANDON: Final = f"{STREAM}/abandon"

INTENT_COUNT_MAX: Final = 256
"""Uploads of one stream under way; also bounds the record, which every change rewrites."""
FRAGMENT_COUNT_MAX: Final = 1_024
"""Fragments that one call tells of."""

_Uid = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
_Session = Annotated[str, Field(min_length=1, max_length=128)]
_Offset = Annotated[int, Field(ge=0, le=OFFSET_MAX + 1)]
_U64 = Annotated[int, Field(ge=0, lt=2**63)]
_U32 = Annotated[int, Field(ge=0, lt=2**32)]
_Timestamp = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class BeginAsked(ClosedBody):
    session: _Session


class IntentsAsked(ClosedBody):
    session: _Session
    first_offsets: Annotated[list[_Offset], Field(min_length=1, max_length=INTENT_COUNT_MAX)]


class _Fragment(ClosedBody):
    uid: _Uid
    first_offset: _Offset
    next_offset: _Offset
    first_timestamp: _Timestamp
    last_timestamp: _Timestamp
    epoch: _U64
    record_count: Annotated[int, Field(ge=1, lt=2**63)]
    size: _U64
    index_size: _U32
    crc: _U32


class RegisterAsked(ClosedBody):
    session: _Session
    fragments: Annotated[list[_Fragment], Field(min_length=1, max_length=FRAGMENT_COUNT_MAX)]

    def infos(self) -> list[FragmentInfo]:
        """The fragments that are told of.

        Raises:
            InvalidRequest: what is said of one cannot be true.
        """
        return [_info(fragment) for fragment in self.fragments]


class AbandonAsked(ClosedBody):
    session: _Session
    uids: Annotated[list[_Uid], Field(max_length=FRAGMENT_COUNT_MAX)]


class Opened(NamedTuple):
    """Where a new session begins."""

    published_next: int
    version: int
    epoch: int
    tenant: str
    """Under whose prefix the stream's objects are."""


class Registered(NamedTuple):
    """What the last successful EXEC says of the fragments that were told of."""

    published_next: int
    version: int
    applied: tuple[Uid, ...]
    waiting: tuple[Uid, ...]
    """In the manifest's memory only: they are told again until they are applied."""


def encode_begin(session: str) -> dict[str, Any]:
    return BeginAsked.model_construct(session=session).model_dump()


def encode_intents_asked(session: str, first_offsets: Sequence[int]) -> dict[str, Any]:
    asked = IntentsAsked.model_construct(session=session, first_offsets=list(first_offsets))
    return asked.model_dump()


def encode_register(session: str, fragments: Sequence[FragmentInfo]) -> dict[str, Any]:
    said = [_Fragment.model_construct(**info._asdict()) for info in fragments]
    return RegisterAsked.model_construct(session=session, fragments=said).model_dump()


def encode_abandon(session: str, uids: Sequence[Uid]) -> dict[str, Any]:
    return AbandonAsked.model_construct(session=session, uids=list(uids)).model_dump()


def encode_opened(opened: Opened) -> dict[str, Any]:
    return opened._asdict()


@said_by("manifest")
def decode_opened(body: Any) -> Opened:
    return Opened(
        published_next=number(body["published_next"]),
        version=number(body["version"]),
        epoch=number(body["epoch"]),
        tenant=parse_tenant(body["tenant"]),
    )


def encode_uids(uids: Iterable[Uid]) -> dict[str, Any]:
    """The answer to intents: one uid for each of the offsets, in their order."""
    return {"uids": list(uids)}


@said_by("manifest")
def decode_uids(body: Any, first_offsets: Sequence[int]) -> list[Uid]:
    return [uid for uid, _ in zip(map(parse_uid, body["uids"]), first_offsets, strict=True)]


def encode_registered(registered: Registered) -> dict[str, Any]:
    return registered._asdict()


@said_by("manifest")
def decode_registered(body: Any) -> Registered:
    return Registered(
        published_next=number(body["published_next"]),
        version=number(body["version"]),
        applied=tuple(map(parse_uid, body["applied"])),
        waiting=tuple(map(parse_uid, body["waiting"])),
    )


def refusal_facts(uid: Uid, record: StreamRecord | None) -> dict[str, object]:
    """The facts that stand in the answer where a fragment is refused: which, and how it is now."""
    now = {} if record is None else {"published_next": record.published_next, "epoch": record.epoch}
    return {"uid": uid, **now}


def _info(fragment: _Fragment) -> FragmentInfo:
    info = FragmentInfo(**{**fragment.model_dump(), "uid": Uid(fragment.uid)})
    dense = info.next_offset - info.first_offset == info.record_count
    if not dense or info.first_timestamp > info.last_timestamp or info.size <= info.index_size:
        raise InvalidRequest("a fragment contradicts itself", code=Code.VALIDATION_FAILED)
    return info
