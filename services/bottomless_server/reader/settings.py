"""What an operator may set of the reader."""

from typing import Annotated

from pydantic import Field

from bottomless.model.limits import KIB, MIB
from bottomless_server.runtime.base.settings import CommonSettings


class ReaderSettings(CommonSettings):
    """Each bound with its reason; all of them can be set as `BOTTOMLESS_…`."""

    reader_cache_bytes: Annotated[int, Field(ge=0)] = 256 * MIB
    """One budget for all that the process keeps of objects: blocks, indexes and manifest nodes."""
    reader_block_bytes: Annotated[int, Field(ge=4 * KIB, le=64 * MIB, multiple_of=8)] = 4 * MIB
    """Size of a ranged GET for who reads a little. Who reads on and on is served with GETs of four
    to six blocks, unless the cache is too small for them."""
    reader_fetch_count_max: Annotated[int, Field(ge=1)] = 16
    """Blocks that GETs in flight may bring in the whole process; a GET of four blocks counts as
    four. They are memory beyond the cache."""
    reader_read_ahead_bytes: Annotated[int, Field(ge=0)] = 16 * MIB
    """What one page or one download may have fetched and not yet used."""
    reader_store_retry_seconds: Annotated[float, Field(ge=0, le=60)] = 5.0
    """How long a read repeats calls of the object store that fail for a moment; then it is 503
    `object-store-unavailable`. 0: not at all."""
    reader_page_count_max: Annotated[int, Field(ge=1)] = 32
    """Pages that are put together at once; waiting at the tail is not among them."""
    reader_filter_scan_bytes: Annotated[int, Field(ge=1)] = 64 * MIB
    """Bytes of chunks that one page with a filter looks at; then it ends with what it has found, which
    may be nothing, and says where the next one goes on. At least one chunk is looked at."""
    reader_filter_scan_groups: Annotated[int, Field(ge=1)] = 64
    """Groups of the manifest that such a page looks into, beside those on its way to the first record."""
    reader_filter_scan_ms: Annotated[int, Field(ge=1, le=30_000)] = 2_000
    """How long such a page looks; waiting at the end of the stream is not counted."""
    reader_tail_bytes: Annotated[int, Field(ge=0)] = 16 * MIB
    """Chunks kept of the ends of streams that somebody waits at, for those who come a little later."""
    reader_waiting_stream_count_max: Annotated[int, Field(ge=1)] = 1_000
    """Streams whose end somebody waits at, however many wait there: one connection to ingest each."""
    reader_tail_poll_ms: Annotated[int, Field(ge=1, le=10_000)] = 50
    """How often coordination is asked, in one question, for all leaderless streams whose end somebody
    waits at; it is not asked while nobody waits."""
    reader_wal_node_ms: Annotated[int, Field(ge=0, le=10_000)] = 250
    """How long a read of a leaderless stream waits for the node that wrote the records, before it asks
    the object store; 0: it never asks a node. One that fails is left out for 5 s."""
    reader_followers: bool = True
    """Whether nodes that hold replicas of a stream answer for what lies more than 1 MiB below its end;
    its owner answers where they fail, and for all else."""
    reader_waiter_count_max: Annotated[int, Field(ge=1)] = 10_000
    """Long polls at once; more are refused with 503 `overloaded`."""
    reader_follower_count_max: Annotated[int, Field(ge=1)] = 2_000
    """Answers that stay open (events and `follow=true`) at once; more are refused."""
    reader_follower_bytes: Annotated[int, Field(ge=64 * KIB)] = 4 * MIB
    """What one of them may hold of answers that its client did not take yet; one record may exceed
    it, alone."""
    reader_followers_bytes: Annotated[int, Field(ge=64 * KIB)] = 256 * MIB
    """What all answers that stay open may hold together: the more there are, the less each
    sends at once."""
    reader_heartbeat_seconds: Annotated[float, Field(gt=0)] = 15.0
    """An answer that stays open says at least so often that it lives."""
    reader_rotate_seconds: Annotated[float, Field(gt=0)] = 600.0
    """After so long, give or take half of it, it ends and the client connects again."""
    reader_blocked_seconds: Annotated[float, Field(gt=0)] = 60.0
    """A client that takes nothing for so long is cut off."""
    reader_root_ttl_ms: Annotated[int, Field(ge=0)] = 250
    """How long a root pointer is used without asking: how late a trim may be seen. What was
    appended is never seen late, since bounds come from the owner on every read."""
    reader_name_ttl_ms: Annotated[int, Field(ge=0)] = 2_000
    """How long what a name means is used without asking whether any name was freed: one question for
    all names. Less than an owner's lease."""
    reader_url_seconds: Annotated[int, Field(ge=1, le=7 * 24 * 3600)] = 900
    """How long a presigned URL of a fragment opens it: whoever has the URL may read the object
    until then. S3 allows seven days at most."""
    reader_heat_interval_ms: Annotated[int, Field(ge=100)] = 60_000
    """How often manifest is told what was fetched of fragments, for promotion by reads: so late may
    anything be promoted. Where there is one drive nothing is counted."""
    page_token_secret: str | None = None
    """Seals page tokens, so that several readers behind one address understand each other's.
    Default: random, which ends tokens with the process."""
