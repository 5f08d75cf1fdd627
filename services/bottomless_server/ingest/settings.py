"""What an operator may set of ingest."""

from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator

from bottomless.model.config import Profile
from bottomless.model.limits import GIB, KIB, MIB
from bottomless_server.leaderless.groups import GROUP_STREAM_COUNT_MAX
from bottomless_server.runtime.base.settings import CommonSettings


def profiles_in(text: str) -> frozenset[Profile]:
    """The profiles that a list with commas names.

    Raises:
        ValueError: it names none, or one that is not known.
    """
    words = {word.strip().lower() for word in text.split(",") if word.strip()}
    known: tuple[Profile, ...] = get_args(Profile)
    if not words or not words <= set(known):
        raise ValueError(f"it names some of {', '.join(known)}, with commas between them")
    return frozenset(one for one in known if one in words)


_Positive = Annotated[int, Field(ge=1)]


class IngestSettings(CommonSettings):
    """Each bound with its reason; all of them can be set as `BOTTOMLESS_INGEST_…`."""

    ingest_profiles: str = "local,leaderless"
    """Streams of which profiles this node appends to. `leaderless` alone needs no data directory, and
    `local` alone no object store."""

    ingest_chunk_size_max: Annotated[int, Field(ge=4 * KIB, le=32 * MIB)] = 8 * MIB
    """Bytes of a chunk: what a reader must fetch and verify at once for one record. A larger
    append becomes a group of chunks."""

    ingest_segment_size_max: Annotated[int, Field(ge=64 * KIB)] = 512 * MIB
    """Bytes of a local segment: what is freed at once."""
    ingest_segment_age_ms_max: _Positive = 3_600_000
    """A segment is not freed while it is active, so slow streams begin a new one in time."""
    ingest_segment_chunk_count_max: _Positive = 262_144
    """Bounds the index of a segment in memory: 48 bytes a chunk."""

    ingest_local_keep_ms: Annotated[int, Field(ge=0)] = 60_000
    """How long a segment stays after all of it is published: longer than readers cache a root."""
    ingest_local_bytes_keep: Annotated[int, Field(ge=0)] = 0
    """Bytes of published segments of a stream to keep beyond that, for readers of the tail."""
    ingest_disk_bytes_max: _Positive = 64 * GIB
    """Bytes of all local segments, those that follow other nodes' included; beyond, appends wait for
    uploads (429 `disk-bound`), and with an eighth more nothing more is followed."""

    ingest_in_flight_bytes_max: _Positive = 256 * MIB
    """Bytes of appends in the whole process that are being received, waiting or written."""
    ingest_stream_in_flight_bytes_max: _Positive = 64 * MIB
    """Bytes of appends of one stream that are being received, waiting or written, so that one
    stream cannot starve all others."""
    ingest_in_flight_wait_ms: Annotated[int, Field(ge=0)] = 2_000
    """How long an append waits for room before 503 `overloaded`."""

    ingest_producer_append_count_max: Annotated[int, Field(ge=5, le=8)] = 5
    """Appends of each whose repeat is answered with the original's offsets."""
    ingest_key_count_max: Annotated[int, Field(ge=1, le=500_000)] = 50_000
    """Idempotency keys that a stream remembers; beyond, keyed appends get 429 `quota-exceeded`."""
    ingest_key_keep_ms: _Positive = 3_600_000
    """How long a key is bound to its request, and a silent producer safe from being forgotten."""

    ingest_producer_keep_ms: _Positive = 604_800_000
    """How long a producer of a leaderless stream is known after it was heard last: longer than
    programs that write on some days only pause."""

    ingest_tracking_bytes_max: Annotated[int, Field(ge=64 * KIB)] = 256 * MIB
    """Bytes of memory of producers and keys of all streams, half a KiB for a key and some 2.5 KiB
    for a producer; beyond, new ones get 429 `quota-exceeded` unless others have been silent for
    long."""

    ingest_group_bytes_max: Annotated[
        int, Field(ge=4 * KIB, le=256 * MIB, validate_default=False)
    ] = 32 * MIB
    """Bytes of staged batches that become one append; what is more becomes further parts, each
    in one piece in memory, in one segment and in one fragment. At most half of the room of a
    stream, so that others append meanwhile; where it is not set, less if that room is smaller."""
    ingest_staged_stream_bytes_max: _Positive = 4 * GIB
    """Bytes of staged batches of one stream that wait for their commit; beyond, staging gets 429
    `quota-exceeded`."""
    ingest_staged_bytes_max: _Positive = 16 * GIB
    """Bytes of staged batches of all streams that wait for their commit; they take room on the
    disk beside the segments."""
    ingest_staged_stream_count_max: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    """Staged batches of one stream: what a commit can name, and what is remembered of each in
    memory."""
    ingest_staged_count_max: _Positive = 100_000
    """Staged batches of all streams."""
    ingest_staged_keep_ms: _Positive = 3_600_000
    """How long a staged batch waits for its commit: longer than any job stages for one."""
    ingest_staged_plan_keep_ms: _Positive = 604_800_000
    """How long the rest of a commit that was cut off between its parts waits for its repeat."""

    ingest_thread_count: Annotated[int, Field(ge=1, le=256)] = 16
    """Threads for file calls: so many syncs run at once. Appends to many streams that come while all
    are busy are dealt out among them, so that a hop into a thread serves many."""
    ingest_sync_all: Literal["auto", "always", "never"] = "auto"
    """Whether one sync of the whole file system stands for those of many files: `auto` where the
    data directory is where a file system of its own is mounted, xfs under Linux 5.17 or newer;
    `always` also where others write, and wait for what they have written."""
    ingest_read_thread_count: Annotated[int, Field(ge=1, le=256)] = 8
    """Threads for reads of the tail, apart from those that write: a replay holds up no append."""
    ingest_open_log_count_max: Annotated[int, Field(ge=1)] = 4_096
    """Streams whose two files stay open when they are not written, as far as the limit of
    descriptors allows (a sixteenth of it); of others they are opened for each round."""
    ingest_open_count: Annotated[int, Field(ge=1)] = 256
    """Streams that are recovered and claimed at once at the start."""

    ingest_lease_ms: Annotated[int, Field(ge=100)] = 10_000
    """After so long without a word from the owner, others may claim a clean stream."""
    ingest_lease_margin_ms: Annotated[int, Field(ge=10)] = 2_000
    """The owner stops that much earlier, coordination waits that much longer."""
    ingest_renew_ms: Annotated[int, Field(ge=10)] = 3_000
    """Twice within what the owner believes in, so that one lost call costs nothing."""

    ingest_forward_ms: Annotated[int, Field(ge=100)] = 15_000
    """How long the owner of a stream may be silent about a request that was passed on to it: longer
    than its lease, after which it acknowledges nothing."""

    ingest_parts_in_flight: Annotated[int, Field(ge=1, le=1_000)] = 16
    """Parts of one request to a super stream that are on their way to owners of partitions at once."""

    ingest_clock_jump_ms_max: _Positive = 60_000
    """A wall clock that gains more than this on elapsed time stops appends (`clock-skew`)."""

    ingest_zone: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,63}$")] | None = None
    """Where this node fails together with others, as a rack or a data centre does: replicas are put
    into different zones first."""
    ingest_replica_wait_ms: Annotated[int, Field(ge=10, le=60_000)] = 1_000
    """How long a round waits for a node that is in sync and says nothing, before it is evicted."""
    ingest_replica_commit_ms: Annotated[int, Field(ge=10, le=600_000)] = 10_000
    """How long a caller waits for a round that too few nodes have, and after a claim for the first of
    them."""
    ingest_replica_join_ms: Annotated[int, Field(ge=10, le=60_000)] = 3_000
    """How long a node that was evicted has everything before it counts again."""
    ingest_replica_step_down_ms: Annotated[int, Field(ge=100, le=600_000)] = 5_000
    """How long a round waits for too few nodes before its stream is given to another one that lives."""
    ingest_replica_replace_ms: Annotated[int, Field(ge=1_000, le=86_400_000)] = 600_000
    """How long a node that holds a stream has no lease before another one takes its place."""
    ingest_replica_bytes_in_flight: Annotated[int, Field(ge=MIB)] = 64 * MIB
    """Bytes that wait in memory for other nodes, all together; what is more is read from the log."""

    ingest_wal_linger_ms: Annotated[int, Field(ge=0, le=10_000)] = 250
    """How long appends to leaderless streams gather before they are put: longer means fewer objects,
    and each append waits for it."""
    ingest_wal_bytes: Annotated[int, Field(ge=64 * KIB, le=256 * MIB)] = 8 * MIB
    """Bytes at which what gathered is put at once."""
    ingest_wal_streams: Annotated[int, Field(ge=1, le=65_535)] = 65_535
    """Streams that share an object; 1 makes an object for each stream."""
    ingest_wal_puts_in_flight: Annotated[int, Field(ge=1, le=64)] = 4
    """Objects that are put at once."""
    ingest_wal_put_seconds: Annotated[float, Field(gt=0)] = 30.0
    """How long a put is tried, and how long an append waits for one; then it is refused."""
    ingest_wal_commit_seconds: Annotated[float, Field(gt=0)] = 15.0
    """How long an append waits for its commit after its object is durable."""
    ingest_wal_commit_streams: Annotated[int, Field(ge=1, le=GROUP_STREAM_COUNT_MAX)] = (
        GROUP_STREAM_COUNT_MAX
    )
    """Streams of one commit, during which Redis serves nobody else; what was put with more of them
    takes several."""
    ingest_wal_notes: Literal["async", "sync"] = "async"
    """Whether an append is answered only once the note of its commit is durable: then not even a
    loss of coordination costs it, and each append takes a second put."""
    ingest_wal_note_ms: _Positive = 1_000
    """How long notes wait for a flush to take them along before they get an object of their own."""
    ingest_wal_cache_bytes: Annotated[int, Field(ge=0)] = 128 * MIB
    """Bytes of its newest objects that a node keeps in memory for readers."""
    ingest_wal_stream_bytes_max: _Positive = 8 * GIB
    """Bytes of a leaderless stream that wait to be made fragments of; beyond, its appends get 429
    `tail-bound`."""
    ingest_wal_stream_entries_max: _Positive = 20_000
    """Entries of a leaderless stream that wait, some 200 bytes of coordination each."""
    ingest_wal_held_max: _Positive = 200_000
    """What may hold objects of this node in coordination, some 100 bytes each; beyond, appends get
    429 `tail-bound`."""
    ingest_wal_fullness_max: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """The share of the memory of coordination at which appends get 429 `tail-bound`: a full store
    refuses every write, also those that make room."""
    ingest_clock_difference_ms_max: _Positive = 10_000
    """A clock that differs by more than this from that of coordination stops appends to leaderless
    streams (`clock-skew`)."""

    ingest_checkpoint_bytes: _Positive = 64 * MIB
    """A checkpoint is written after so many bytes: what recovery walks at most."""
    ingest_checkpoint_ms: _Positive = 30_000
    """A checkpoint is written after so long, too, if anything was appended; after eight times as long
    where that was less than 1/256 of `checkpoint_bytes`."""

    @property
    def profiles(self) -> frozenset[Profile]:
        """The profiles that this node serves."""
        return profiles_in(self.ingest_profiles)

    @field_validator("ingest_profiles")
    @classmethod
    def _check_profiles(cls, value: str) -> str:
        profiles_in(value)
        return value

    @property
    def group_bytes_max(self) -> int:
        """Bytes of staged batches that become one append."""
        room = min(self.ingest_stream_in_flight_bytes_max, self.ingest_in_flight_bytes_max)
        return min(self.ingest_group_bytes_max, room // 2)

    @field_validator("ingest_group_bytes_max")
    @classmethod
    def _check_group(cls, value: int, others: ValidationInfo) -> int:
        for name in ("ingest_stream_in_flight_bytes_max", "ingest_in_flight_bytes_max"):
            if value > others.data.get(name, value * 2) // 2:
                raise ValueError(f"it is more than half of BOTTOMLESS_{name.upper()}")
        return value
