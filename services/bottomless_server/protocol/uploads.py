"""Uploads, as the uploader tells manifest of them: sessions, intents, fragments.

Bodies are checked as strictly as public ones, since a peer of another version is the usual
reason for a wrong one.

Contract: openapi/internal.yaml, tag `manifest`.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from bottomless.errors import Code, InvalidRequest
from bottomless.formats.filter import BLOCK_SIZE, is_block_count
from bottomless.model.config import FilterConfig
from bottomless.model.drive import DEFAULT_NUMBER, NUMBER_MAX
from bottomless.model.fragment import FragmentInfo, Presence
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.manifest import filters_of
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
_Blocks = Annotated[str, Field(pattern=r"^([0-9a-f]{64}){0,32}$")]
"""Blocks of a filter in hexadecimal."""
_Drive = Annotated[int, Field(ge=DEFAULT_NUMBER + 1, le=NUMBER_MAX)]
_Timestamp = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class BeginAsked(ClosedBody):
    session: _Session


class IntentsAsked(ClosedBody):
    session: _Session
    first_offsets: Annotated[list[_Offset], Field(min_length=1, max_length=INTENT_COUNT_MAX)]
    drives: Annotated[list[_Drive], Field(max_length=NUMBER_MAX)] = Field(default_factory=list)
    """The drives beside drive 0 on which it can put fragments; left out where there are none."""


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
    filter_presence: Annotated[int, Field(ge=0, le=7)] = 0
    """What is known of its filter values; left out where nothing is, as it is of version 1."""
    filter_blocks: _Blocks = ""
    filters_size: _U32 = 0


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


def encode_intents_asked(
    session: str, first_offsets: Sequence[int], drives: Sequence[int] = ()
) -> dict[str, Any]:
    """Ask for uids. `drives` are those beside drive 0 on which the fragments can be put; without any
    the body is what it was before there were some."""
    more = {"drives": list(drives)} if drives else {}
    return {"session": session, "first_offsets": list(first_offsets), **more}


def encode_register(session: str, fragments: Sequence[FragmentInfo]) -> dict[str, Any]:
    return {"session": session, "fragments": [encode_fragment(info) for info in fragments]}


def encode_fragment(info: FragmentInfo) -> dict[str, Any]:
    """One fragment, as it is told of; without a filter as it was before there were any.

    On which drive it lies says its intent, and never who has put it.
    """
    members: dict[str, Any] = info._asdict()
    del members["filter_presence"], members["filter_blocks"], members["filters_size"]
    del members["drive"], members["copy"]
    if info.filter_presence:
        members["filter_presence"] = int(info.filter_presence)
        members["filter_blocks"] = info.filter_blocks.hex()
        members["filters_size"] = info.filters_size
    return members


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


class Intended(NamedTuple):
    """The answer to intents."""

    uids: list[Uid]
    """One for each of the offsets, in their order."""
    filter: FilterConfig = FilterConfig()
    """The filters that these fragments are to have: it counts for what is cut after a change."""
    drive: int = DEFAULT_NUMBER
    """The number of the drive on which all of them are to be put."""


def encode_intended(
    uids: Iterable[Uid], filter_: FilterConfig, drive: int = DEFAULT_NUMBER
) -> dict[str, Any]:
    asked = {} if filter_.index is None else {"filter": filter_.model_dump(mode="json")}
    elsewhere = {} if drive == DEFAULT_NUMBER else {"drive": drive}
    return {"uids": list(uids), **asked, **elsewhere}


@said_by("manifest")
def decode_intended(body: Any, first_offsets: Sequence[int]) -> Intended:
    uids = [uid for uid, _ in zip(map(parse_uid, body["uids"]), first_offsets, strict=True)]
    filter_ = FilterConfig.model_validate(body.get("filter", {}))
    drive = number(body.get("drive", DEFAULT_NUMBER))
    if drive > NUMBER_MAX:
        raise ValueError("there is no such drive")
    return Intended(uids, filter_, drive)


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
    presence, blocks = Presence(fragment.filter_presence), bytes.fromhex(fragment.filter_blocks)
    said = {"uid": Uid(fragment.uid), "filter_presence": presence, "filter_blocks": blocks}
    info = FragmentInfo(**{**fragment.model_dump(), **said})
    dense = info.next_offset - info.first_offset == info.record_count
    count = len(filters_of(info))
    known = Presence.KNOWN in presence or not presence
    filtered = known and (not count or (is_block_count(count) and Presence.SOME in presence))
    size = info.filters_size
    sized = not size or (presence and size % BLOCK_SIZE == 0 and size + info.index_size < info.size)
    ordered = info.first_timestamp <= info.last_timestamp and info.size > info.index_size
    if not (dense and ordered and filtered and sized):
        raise InvalidRequest("a fragment contradicts itself", code=Code.VALIDATION_FAILED)
    return info
