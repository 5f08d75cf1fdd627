"""What manifest knows of streams, as the other services ask for it.

Streams by name and by id, the root of a stream, where a consumer continues, the object in the
bucket that says where a stream's home is, and the ingest nodes that are alive.

Contract: openapi/internal.yaml, tag `manifest`.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from bottomless.model.config import Profile, encode_config
from bottomless.model.consumer import StoredOffset
from bottomless.model.limits import LONG_POLL_MS_MAX, NAMES_TOGETHER_COUNT_MAX
from bottomless.model.names import (
    TENANT_DEFAULT,
    FullName,
    Reference,
    StreamId,
    parse_reference,
    parse_stream_id,
    parse_stream_name,
    parse_tenant,
    parse_uid,
)
from bottomless.model.stream import RootPointer, StreamRecord, StreamState
from bottomless_server.protocol.closed_body import ClosedBody
from bottomless_server.protocol.parameters import Parser, integer
from bottomless_server.protocol.paths import INTERNAL, STREAM, of_stream
from bottomless_server.protocol.peer import Params, number, said_by, string

NAMES: Final = f"{INTERNAL}/names"
NODES: Final = f"{INTERNAL}/nodes"
_NAME: Final = "name"
BY_NAME: Final = f"{INTERNAL}/streams/by-name/{{{_NAME}}}"
REGISTRY: Final = f"{STREAM}/registry"
ROOT: Final = f"{STREAM}/root"
_CONSUMER: Final = "consumer"
STORED_OFFSET: Final = f"{STREAM}/consumers/{{{_CONSUMER}}}/offset"


class NodeSaid(NamedTuple):
    """An ingest node that is alive."""

    node_id: str
    url: str
    """The url of its internal listener."""


class StreamSaid(NamedTuple):
    """What callers use of a stream's description."""

    stream_id: StreamId
    state: StreamState
    epoch: int
    owner_url: str | None
    profile: Profile = "local"


@dataclass(frozen=True, slots=True)
class RootState:
    """What the last EXEC of the manifest says of a stream."""

    version: int
    epoch: int
    published_next: int
    first_offset: int
    """The floor: nothing below is readable."""
    root: RootPointer | None
    last_timestamp: int
    """The time of the newest published chunk, in ms since 1970; 0 where nothing was published."""


class _Name(ClosedBody):
    tenant: str
    name: str


class NamesAsked(ClosedBody):
    names: Annotated[list[_Name], Field(min_length=1, max_length=NAMES_TOGETHER_COUNT_MAX)]

    def full_names(self) -> list[FullName]:
        """The names, each of which has to be one.

        Raises:
            InvalidRequest
        """
        return [
            FullName(parse_tenant(one.tenant), parse_stream_name(one.name)) for one in self.names
        ]


class ByNameAsked(NamedTuple):
    tenant: str = TENANT_DEFAULT

    def params(self) -> Params:
        return self._asdict()


class RootAsked(NamedTuple):
    wait_ms: int = 0


BY_NAME_QUERY: Final[Mapping[str, Parser]] = {"tenant": parse_tenant}
ROOT_QUERY: Final[Mapping[str, Parser]] = {"wait_ms": integer(0, LONG_POLL_MS_MAX)}


def by_name(name: FullName) -> str:
    """The path of the stream that has a name."""
    return BY_NAME.replace(f"{{{_NAME}}}", name.name)


def name_in(path_params: Mapping[str, str], tenant: str) -> FullName:
    """The name that a path asks for, by what its route found in it.

    Raises:
        InvalidRequest: it is not the name of a stream.
    """
    return FullName(tenant, parse_stream_name(path_params[_NAME]))


def stored_offset(stream_id: StreamId, consumer: Reference) -> str:
    """The path of what a consumer has committed."""
    return of_stream(STORED_OFFSET, stream_id).replace(f"{{{_CONSUMER}}}", consumer)


def consumer_in(path_params: Mapping[str, str]) -> Reference:
    """The consumer that a path asks for, by what its route found in it.

    Raises:
        InvalidRequest: it is not the name of a consumer.
    """
    return parse_reference(path_params[_CONSUMER])


def encode_stream(record: StreamRecord) -> dict[str, Any]:
    """What other services ask of a stream."""
    return {
        "stream_id": record.stream_id,
        "name": record.name,
        "state": record.state.value,
        "created_at": record.created_at,
        "config": encode_config(record.config),
        "config_version": record.config_version,
        "epoch": record.epoch,
        "home": record.home,
        "owner_url": record.owner_url,
        "version": record.version,
        "published_next": record.published_next,
    }


@said_by("manifest")
def decode_stream(body: Any) -> StreamSaid:
    owner_url = body["owner_url"]
    return StreamSaid(
        stream_id=parse_stream_id(body["stream_id"]),
        state=StreamState(body["state"]),
        epoch=number(body["epoch"]),
        owner_url=None if owner_url is None else string(owner_url),
        profile=_profile(body["config"]),
    )


class ToMake(ClosedBody):
    """What a stream is to be that is made because somebody appends to it."""

    profile: Profile


def encode_to_make(profile: Profile) -> dict[str, Any]:
    """What a stream is to be; all else is as it is where nothing is said."""
    return ToMake(profile=profile).model_dump()


def encode_made(*, created: bool) -> dict[str, Any]:
    """Whether the stream was made by this."""
    return {"created": created}


@said_by("manifest")
def decode_made(body: Any) -> bool:
    created = body["created"]
    if not isinstance(created, bool):
        raise TypeError
    return created


def encode_names_asked(names: Sequence[FullName]) -> dict[str, Any]:
    asked = [_Name.model_construct(tenant=name.tenant, name=name.name) for name in names]
    return NamesAsked.model_construct(names=asked).model_dump()


def encode_streams(found: Mapping[FullName, StreamId]) -> dict[str, Any]:
    """The streams of many names; names that no stream has are left out."""
    return {
        "streams": [
            {"tenant": name.tenant, "name": name.name, "stream_id": stream_id}
            for name, stream_id in found.items()
        ]
    }


def encode_names_shown(generation: int | None, mark: str | None) -> dict[str, Any]:
    """What coordination shows of names: nothing was freed while it is the same."""
    return {"generation": generation, "mark": mark}


@said_by("manifest")
def decode_names_shown(body: Any) -> Hashable | None:
    """Something that is the same as long as no name was freed; None where that cannot be told."""
    generation, mark = body["generation"], body["mark"]
    if generation is None:
        return None
    return number(generation), None if mark is None else string(mark)


@said_by("manifest")
def decode_streams(body: Any) -> dict[FullName, StreamId]:
    return {
        FullName(parse_tenant(one["tenant"]), parse_stream_name(one["name"])): parse_stream_id(
            one["stream_id"]
        )
        for one in body["streams"]
    }


def encode_root(state: RootState) -> dict[str, Any]:
    return asdict(state)


@said_by("manifest")
def decode_root(body: Any) -> RootState:
    root = body["root"]
    return RootState(
        version=number(body["version"]),
        epoch=number(body["epoch"]),
        published_next=number(body["published_next"]),
        first_offset=number(body["first_offset"]),
        root=None if root is None else _pointer(root),
        last_timestamp=number(body["last_timestamp"] or 0),
    )


def encode_nodes(nodes: Iterable[NodeSaid]) -> dict[str, Any]:
    return {"nodes": [node._asdict() for node in nodes]}


@said_by("manifest")
def decode_nodes(body: Any) -> list[NodeSaid]:
    return [NodeSaid(string(node["node_id"]), string(node["url"])) for node in body["nodes"]]


def encode_registered(registry_version: int) -> dict[str, Any]:
    """The answer to a node that wanted its stream's home in the bucket: the object says it."""
    return {"registry_version": registry_version}


def encode_stored_offset(stored: StoredOffset) -> dict[str, Any]:
    return {
        "consumer": stored.consumer,
        "next_offset": stored.next_offset,
        "committed_at": stored.committed_at,
    }


@said_by("manifest")
def decode_stored_offset(body: Any) -> int:
    """The next offset that the consumer wants."""
    return number(body["next_offset"])


def _profile(config: Any) -> Profile:
    """The profile that a configuration names; one that names none is local."""
    if not isinstance(config, dict):
        raise TypeError
    match config.get("profile", "local"):
        case "local":
            return "local"
        case "leaderless":
            return "leaderless"
        case _:
            raise ValueError("the profile is not known")


def _pointer(members: Any) -> RootPointer:
    return RootPointer(
        uid=parse_uid(members["uid"]),
        generation=number(members["generation"]),
        epoch=number(members["epoch"]),
        version=number(members["version"]),
        size=number(members["size"]),
        crc=number(members["crc"]),
    )
