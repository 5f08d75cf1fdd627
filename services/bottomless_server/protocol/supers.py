"""What manifest knows of super streams, as ingest and the reader ask for it.

Contract: openapi/internal.yaml, tag `manifest`.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bottomless.model.names import (
    FullName,
    SuperId,
    parse_stream_id,
    parse_stream_name,
    parse_super_id,
)
from bottomless.model.routing import Strategy
from bottomless.model.super_stream import Layout, Partition, SuperRecord, SuperState
from bottomless_server.protocol.paths import INTERNAL
from bottomless_server.protocol.peer import number, said_by, string

_NAME: Final = "name"
_SUPER_ID: Final = "super_id"
SUPER_BY_NAME: Final = f"{INTERNAL}/super-streams/by-name/{{{_NAME}}}"
SUPER_BY_ID: Final = f"{INTERNAL}/super-streams/{{{_SUPER_ID}}}"


class SuperSaid(NamedTuple):
    """A super stream: its partitions, and how records are divided among them."""

    super_id: SuperId
    name: FullName
    state: SuperState
    """Active or growing: one that is being deleted has no name any more."""
    strategy: Strategy
    seed: int
    layouts: tuple[Layout, ...]
    """Oldest first; the last one is that of new records."""
    partitions: tuple[Partition, ...]
    """In the order of their indexes, without a hole."""

    @property
    def initial_count(self) -> int:
        """How many partitions it was created with: this never changes."""
        return self.layouts[0].count

    @property
    def layout(self) -> Layout:
        """The layout of new records."""
        return self.layouts[-1]


def super_by_name(name: FullName) -> str:
    """The path of the super stream that has a name; the tenant is asked as of a stream
    (`ByNameAsked`).
    """
    return SUPER_BY_NAME.replace(f"{{{_NAME}}}", name.name)


def super_by_id(super_id: SuperId) -> str:
    """The path of a super stream."""
    return SUPER_BY_ID.replace(f"{{{_SUPER_ID}}}", super_id)


def super_name_in(path_params: Mapping[str, str], tenant: str) -> FullName:
    """The name that a path asks for, by what its route found in it.

    Raises:
        InvalidRequest: it is not the name of a super stream.
    """
    return FullName(tenant, parse_stream_name(path_params[_NAME]))


def super_id_in(path_params: Mapping[str, str]) -> SuperId:
    """The super stream that a path is about, by what its route found in it.

    Raises:
        InvalidRequest: it is not the id of a super stream.
    """
    return parse_super_id(path_params[_SUPER_ID])


def encode_super_stream(record: SuperRecord) -> dict[str, Any]:
    """What other services ask of a super stream."""
    return {
        "super_id": record.super_id,
        "tenant": record.tenant,
        "name": record.name,
        "state": record.state.value,
        "strategy": record.strategy.value,
        "seed": record.seed,
        "layouts": [
            {"version": one.version, "count": one.count, "created_at": one.created_at}
            for one in record.layouts
        ],
        "partitions": [
            {
                "index": one.index,
                "stream_id": one.stream_id,
                "name": one.name,
                "binding_key": one.binding_key,
            }
            for one in record.partitions
        ],
    }


@said_by("manifest")
def decode_super_stream(body: Any) -> SuperSaid:
    said = SuperSaid(
        super_id=parse_super_id(body["super_id"]),
        name=FullName(string(body["tenant"]), parse_stream_name(body["name"])),
        state=SuperState(body["state"]),
        strategy=Strategy(body["strategy"]),
        seed=number(body["seed"]),
        layouts=tuple(
            Layout(number(one["version"]), number(one["count"]), number(one["created_at"]))
            for one in body["layouts"]
        ),
        partitions=tuple(_partition(one) for one in body["partitions"]),
    )
    if not said.layouts or said.layout.count != len(said.partitions):
        raise ValueError("the newest layout is not that of the partitions")
    if [one.index for one in said.partitions] != list(range(len(said.partitions))):
        raise ValueError("the partitions are not in their order")
    return said


def _partition(members: Any) -> Partition:
    binding_key = members["binding_key"]
    return Partition(
        number(members["index"]),
        parse_stream_id(members["stream_id"]),
        parse_stream_name(members["name"]),
        None if binding_key is None else string(binding_key),
    )
