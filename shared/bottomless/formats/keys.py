"""Object keys: where each object of a stream lies. The only place that knows.

    {prefix}/{tenant}/{stream_id}/data/{first_offset:020d}.{uid}.fragment
    {prefix}/{tenant}/{stream_id}/data/{first_offset:020d}.{uid}.{copy:016x}.fragment
    {prefix}/{tenant}/{stream_id}/metadata/root.{generation:010d}.{epoch:020d}.{version:020d}.{uid}.manifest
    {prefix}/{tenant}/{stream_id}/metadata/{first_offset:020d}.{uid}.g{height}
    {prefix}/{tenant}/{stream_id}/stream.{registry_version:010d}.json
    {prefix}/{tenant}/{stream_id}/metadata/consumers.{version:020d}.{uid}.json
    {prefix}/{tenant}/{stream_id}/staged/{uid}.staged
    {prefix}/{tenant}/{stream_id}/staged/plans/{epoch:020d}.{sequence:010d}.{producer}.plan
    {prefix}/{tenant}/{super_id}/super.{registry_version:010d}.json
    {prefix}/_system/generation.json
    {prefix}/_system/generation.{generation:010d}.json
    {prefix}/_system/keys/{key_id}.{generation:010d}.{version:010d}.json
    {prefix}/_system/queue-homes/{tenant}.{term:010d}.json
    {prefix}/_system/queue-starts/{node_id}.{number:010d}.json
    {prefix}/_system/wal/{instance}/{sequence:012d}.wal

The second form is that of a fragment that was moved to another drive.

Each rebuild puts one more generation object, and the highest counts.

The prefix belongs to the drive, so the keys here start with the tenant. Numbers are
padded so that a sorted listing is in offset order. Byte tables: docs/formats.md, "Keys".
"""

import re
from typing import Final, NamedTuple

from bottomless.model.api_key import KeyId
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import OFFSET_MAX, WAL_SEQUENCE_MAX
from bottomless.model.names import NodeId, StreamId, SuperId, Uid

GENERATION_KEY: Final = "_system/generation.json"
GENERATION_PREFIX: Final = "_system/generation."
API_KEYS_PREFIX: Final = "_system/keys/"
"""Below it lie API keys, which are credentials and not keys of objects."""

SYSTEM_PREFIX: Final = "_system/"
"""Below it lies all that belongs to no stream."""

QUEUE_HOMES_PREFIX: Final = "_system/queue-homes/"
"""Below it lies, for each tenant that has queues, on which nodes they were, one after the other."""

QUEUE_STARTS_PREFIX: Final = "_system/queue-starts/"
"""Below it lies, for each node of queues, its newest start."""

WAL_PREFIX: Final = "_system/wal/"
"""Below it lie the WAL objects of all streams and tenants, by the instance that put them."""

_GENERATION = re.compile(r"_system/generation\.([0-9]{10})\.json", re.ASCII)
_FRAGMENT = re.compile(r"([0-9]{20})\.([0-9a-f]{32})\.fragment", re.ASCII)
_STORED_FRAGMENT = re.compile(
    r"[^/]+/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"/data/([0-9]{20})\.[0-9a-f]{32}(?:\.[0-9a-f]{16})?\.fragment",
    re.ASCII,
)

_ROOT = re.compile(
    r"root\.([0-9]{10})\.([0-9]{20})\.([0-9]{20})\.([0-9a-f]{32})\.manifest", re.ASCII
)
_REGISTRY = re.compile(r"stream\.([0-9]{10})\.json", re.ASCII)
_SUPER = re.compile(r"super\.([0-9]{10})\.json", re.ASCII)
_API_KEY = re.compile(r"_system/keys/([0-9a-f]{24})\.([0-9]{10})\.([0-9]{10})\.json", re.ASCII)
_QUEUE_HOME = re.compile(r"_system/queue-homes/(.+)\.([0-9]{10})\.json", re.ASCII)
_QUEUE_START = re.compile(r"_system/queue-starts/([0-9a-f]{32})\.([0-9]{10})\.json", re.ASCII)
_WAL = re.compile(r"_system/wal/([0-9a-f]{32})/([0-9]{12})\.wal", re.ASCII)
_STAGED = re.compile(r"staged/([0-9a-f]{32})\.staged", re.ASCII)
_STAGED_PLAN = re.compile(r"staged/plans/([0-9]{20})\.([0-9]{10})\.([0-9a-f]{32})\.plan", re.ASCII)
_CONSUMERS = re.compile(r"consumers\.([0-9]{20})\.[0-9a-f]{32}\.json", re.ASCII)


class FragmentKey(NamedTuple):
    """What the object key of a fragment says."""

    first_offset: int
    uid: Uid


class FragmentOfStream(NamedTuple):
    """The stream and the first offset that the object key of a fragment says."""

    stream_id: StreamId
    first_offset: int


class RootKey(NamedTuple):
    """What the object key of a root says."""

    generation: int
    epoch: int
    version: int
    uid: Uid


class ApiKeyKey(NamedTuple):
    """What the object key of an API key's object says."""

    key_id: KeyId
    generation: int
    version: int


class QueueHomeKey(NamedTuple):
    """What the object key of a home of queues says."""

    tenant: str
    term: int
    """Counts the homes of a tenant, from 1."""


class QueueStartKey(NamedTuple):
    """What the object key of a start of a node of queues says."""

    node_id: NodeId
    number: int
    """Counts the starts of the node, from 1."""


class StagedPlanKey(NamedTuple):
    """What the object key of the plan of a commit says."""

    epoch: int
    """The epoch of the owner that put it."""
    sequence: int
    """Counts the plans that were put under this epoch, from 0."""
    producer: str
    """The first 16 bytes of the SHA-256 of the producer's name, in hex."""


class WalKey(NamedTuple):
    """What the object key of a WAL object says."""

    instance: Uid
    sequence: int


def generation_key(generation: int) -> str:
    """Make the key of the object in which a rebuild notes the generation that it made."""
    return f"{GENERATION_PREFIX}{generation:010d}.json"


def parse_generation_key(object_key: str) -> int | None:
    """Read the generation from the key of a generation object; None for any other key."""
    match = _GENERATION.fullmatch(object_key)
    return None if match is None else int(match[1])


def api_key_prefix(key_id: KeyId) -> str:
    """Make the prefix with which the keys of all objects of an API key begin."""
    return f"{API_KEYS_PREFIX}{key_id}."


def api_key_key(key_id: KeyId, generation: int, version: int) -> str:
    """Make the key of the object that holds one version of an API key."""
    return f"{api_key_prefix(key_id)}{generation:010d}.{version:010d}.json"


def parse_api_key_key(object_key: str) -> ApiKeyKey | None:
    """Read the key of an API key's object; None for any other key."""
    match = _API_KEY.fullmatch(object_key)
    if match is None:
        return None
    return ApiKeyKey(KeyId(match[1]), int(match[2]), int(match[3]))


def queue_home_prefix(tenant: str) -> str:
    """Make the prefix with which the keys of all homes of a tenant's queues begin.

    Homes of other tenants may begin with it too, since names of tenants may hold dots.
    """
    return f"{QUEUE_HOMES_PREFIX}{tenant}."


def queue_home_key(tenant: str, term: int) -> str:
    """Make the key of the object that says on which node a tenant's queues are in a term."""
    return f"{queue_home_prefix(tenant)}{term:010d}.json"


def parse_queue_home_key(object_key: str) -> QueueHomeKey | None:
    """Read tenant and term from the key of a home of queues; None for any other key."""
    match = _QUEUE_HOME.fullmatch(object_key)
    return None if match is None else QueueHomeKey(match[1], int(match[2]))


def queue_start_prefix(node_id: NodeId) -> str:
    """Make the prefix with which the keys of all starts of a node of queues begin."""
    return f"{QUEUE_STARTS_PREFIX}{node_id}."


def queue_start_key(node_id: NodeId, number: int) -> str:
    """Make the key of the object of a start of a node of queues."""
    return f"{queue_start_prefix(node_id)}{number:010d}.json"


def parse_queue_start_key(object_key: str) -> QueueStartKey | None:
    """Read node and number from the key of a start of a node of queues; None for any other key."""
    match = _QUEUE_START.fullmatch(object_key)
    return None if match is None else QueueStartKey(NodeId(match[1]), int(match[2]))


def wal_key(instance: Uid, sequence: int) -> str:
    """Make the key of a WAL object; those of an instance sort by `sequence`."""
    return f"{WAL_PREFIX}{instance}/{sequence:012d}.wal"


def parse_wal_key(object_key: str) -> WalKey | None:
    """Read instance and sequence from the key of a WAL object; None for any other key."""
    match = _WAL.fullmatch(object_key)
    if match is None or int(match[2]) > WAL_SEQUENCE_MAX:
        return None
    return WalKey(Uid(match[1]), int(match[2]))


def stream_prefix(stream_id: StreamId, tenant: str) -> str:
    """Make the prefix with which the keys of all objects of a stream begin."""
    return f"{tenant}/{stream_id}/"


def fragment_key(
    stream_id: StreamId, first_offset: int, uid: Uid, tenant: str, copy: int = 0
) -> str:
    """Make the key of a fragment; `copy` is what its entry says, 0 for one that was never moved."""
    moved = f".{copy:016x}" if copy else ""
    return f"{stream_prefix(stream_id, tenant)}data/{first_offset:020d}.{uid}{moved}.fragment"


class FragmentPlace(NamedTuple):
    """Where the object of a fragment lies."""

    drive: int
    """The number of its drive."""
    object_key: str
    """Its key, below the prefix of that drive."""


def fragment_place(stream_id: StreamId, info: FragmentInfo, tenant: str) -> FragmentPlace:
    """Tell where the object of a fragment lies, by what the manifest says of it."""
    key = fragment_key(stream_id, info.first_offset, info.uid, tenant, info.copy)
    return FragmentPlace(info.drive, key)


def parse_fragment_key(object_key: str) -> FragmentKey | None:
    """Read first offset and uid from the key of a fragment; None for any other key."""
    match = _FRAGMENT.fullmatch(object_key.rpartition("/")[2])
    if match is None or int(match[1]) > OFFSET_MAX:
        return None
    return FragmentKey(int(match[1]), Uid(match[2]))


def fragment_of_key(object_key: str) -> FragmentOfStream | None:
    """Read stream and first offset from the key of a fragment, moved or not; None for any other key."""
    match = _STORED_FRAGMENT.fullmatch(object_key)
    if match is None or int(match[2]) > OFFSET_MAX:
        return None
    return FragmentOfStream(StreamId(match[1]), int(match[2]))


def root_key(
    stream_id: StreamId,
    generation: int,
    epoch: int,
    version: int,
    uid: Uid,
    tenant: str,
) -> str:
    """Make the key of a root."""
    name = f"root.{generation:010d}.{epoch:020d}.{version:020d}.{uid}.manifest"
    return f"{stream_prefix(stream_id, tenant)}metadata/{name}"


def parse_root_key(object_key: str) -> RootKey | None:
    """Read the key of a root; None for any other key."""
    match = _ROOT.fullmatch(object_key.rpartition("/")[2])
    if match is None:
        return None
    return RootKey(int(match[1]), int(match[2]), int(match[3]), Uid(match[4]))


def root_prefix(stream_id: StreamId, tenant: str) -> str:
    """Make the prefix with which the keys of all roots of a stream begin."""
    return f"{stream_prefix(stream_id, tenant)}metadata/root."


def group_key(stream_id: StreamId, first_offset: int, uid: Uid, height: int, tenant: str) -> str:
    """Make the key of a group; `height` is 1 for a group of fragments."""
    return f"{stream_prefix(stream_id, tenant)}metadata/{first_offset:020d}.{uid}.g{height}"


def registry_key(stream_id: StreamId, registry_version: int, tenant: str) -> str:
    """Make the key of one version of a stream's registry object."""
    return f"{stream_prefix(stream_id, tenant)}stream.{registry_version:010d}.json"


def parse_registry_key(object_key: str) -> int | None:
    """Read the version from the key of a registry object; None for any other key."""
    match = _REGISTRY.fullmatch(object_key.rpartition("/")[2])
    return None if match is None else int(match[1])


def super_prefix(super_id: SuperId, tenant: str) -> str:
    """Make the prefix with which the keys of all objects of a super stream begin."""
    return f"{tenant}/{super_id}/"


def super_key(super_id: SuperId, registry_version: int, tenant: str) -> str:
    """Make the key of one version of the object that says what a super stream is."""
    return f"{super_prefix(super_id, tenant)}super.{registry_version:010d}.json"


def parse_super_key(object_key: str) -> int | None:
    """Read the version from the key of a super stream's object; None for any other key."""
    match = _SUPER.fullmatch(object_key.rpartition("/")[2])
    return None if match is None else int(match[1])


def consumers_key(stream_id: StreamId, version: int, uid: Uid, tenant: str) -> str:
    """Make the key of one version of a stream's consumers snapshot."""
    return f"{stream_prefix(stream_id, tenant)}metadata/consumers.{version:020d}.{uid}.json"


def parse_consumers_key(object_key: str) -> int | None:
    """Read the version from the key of a consumers snapshot; None for any other key."""
    match = _CONSUMERS.fullmatch(object_key.rpartition("/")[2])
    return None if match is None else int(match[1])


def staged_key(stream_id: StreamId, uid: Uid, tenant: str) -> str:
    """Make the key of a staged batch of a stream that is leaderless or has replicas; the uid is in
    the batch's id."""
    return f"{stream_prefix(stream_id, tenant)}staged/{uid}.staged"


def parse_staged_key(object_key: str) -> Uid | None:
    """Read the uid from the key of a staged batch; None for any other key."""
    match = _STAGED.fullmatch("/".join(object_key.rsplit("/", 2)[1:]))
    return None if match is None else Uid(match[1])


def staged_plans_prefix(stream_id: StreamId, tenant: str) -> str:
    """Make the prefix with which the keys of all plans of commits to a stream begin."""
    return f"{stream_prefix(stream_id, tenant)}staged/plans/"


def staged_plan_key(stream_id: StreamId, key: StagedPlanKey, tenant: str) -> str:
    """Make the key of the plan of a commit; of one producer the plan that counts sorts last."""
    name = f"{key.epoch:020d}.{key.sequence:010d}.{key.producer}.plan"
    return f"{staged_plans_prefix(stream_id, tenant)}{name}"


def parse_staged_plan_key(object_key: str) -> StagedPlanKey | None:
    """Read the key of the plan of a commit; None for any other key."""
    match = _STAGED_PLAN.fullmatch("/".join(object_key.rsplit("/", 3)[1:]))
    return None if match is None else StagedPlanKey(int(match[1]), int(match[2]), match[3])
