"""Condemn a range before anything of it is deleted, and grant leases that hold one.

Both change the stream's record, so that under its WATCH one of them comes first: a lease
that was granted is seen by whoever condemns, and a range that is condemned cannot be
leased any more. After a crash between condemning and deleting the range is condemned and
still there, which harms nobody: the delete queue still holds its objects.

A lease that was granted while a clock was years ahead ends later than any lease may. Whoever
condemns, by a time that is believed, cuts it in the same EXEC to what a new one would have at
most; after a crash before that it is cut the next time.

A lease holds everything at or above its first offset: who reads from there on is not to
be overtaken, and one bound is all that has to be compared.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from bottomless.errors import Code, InvalidRequest, NotFound, OffsetGone, Overloaded
from bottomless.model.names import StreamId
from bottomless.model.stream import LEASE_COUNT_MAX, Lease, StreamRecord, held_from, live_leases
from bottomless_server.coordination.base import Due
from bottomless_server.manifest.common.core.clock_trust import SKEW_MS_MAX
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.manifest.tree.publish_attempts import check_active
from bottomless_server.stores.streams import Streams

_HELD_PASS_COUNT: Final = 10
"""After so many intervals of the deleter what a lease holds is looked at again."""


def latest_end(settings: ManifestSettings, now: int) -> int:
    """No lease that was granted at `now`, by any clock that agrees with it, ends later."""
    return now + settings.manifest_lease_seconds_max * 1000 + 2 * SKEW_MS_MAX


def cut_leases(record: StreamRecord, latest: int) -> tuple[Lease, ...]:
    """The leases of a stream, none of which ends after `latest`."""
    return tuple(replace(one, expires_at=min(one.expires_at, latest)) for one in record.leases)


def condemnable(record: StreamRecord, next_offset: int, now: int) -> int:
    """How far below `next_offset` nobody holds anything."""
    held = held_from(record, now)
    return next_offset if held is None else min(held, next_offset)


def held_until(record: StreamRecord, next_offset: int, now: int) -> int:
    """When the last lease that holds something below `next_offset` runs out, unless renewed."""
    holding = [lease for lease in live_leases(record, now) if lease.first_offset < next_offset]
    return max((lease.expires_at for lease in holding), default=now)


def put_off(
    settings: ManifestSettings, record: StreamRecord, held: Mapping[Due, int], now: int
) -> list[Due]:
    """Members of a delete queue with the time at which they are looked at again, given the ends of
    what leases hold of them. A lease may be given back before it runs out, so that is earlier."""
    latest = now + _HELD_PASS_COUNT * settings.manifest_delete_interval_ms
    return [
        due._replace(due_at=min(held_until(record, end, now), latest)) for due, end in held.items()
    ]


async def condemn(
    streams: Streams, stream_id: StreamId, next_offset: int, now: int, latest: int
) -> StreamRecord:
    """Raise `condemned_next` as far as leases allow; the record says how far that is.

    `next_offset` must not be above the floor of a root that is published, and `now` must be a
    time that is believed (`TrustedTime.require`): leases end by it, at `latest` if not earlier.

    Raises:
        NotFound, Unavailable
    """

    def decide(record: StreamRecord) -> StreamRecord:
        record = replace(record, leases=cut_leases(record, latest))
        allowed = condemnable(record, next_offset, now)
        return replace(record, condemned_next=max(record.condemned_next, allowed))

    return await streams.update(stream_id, decide)


async def grant(streams: Streams, stream_id: StreamId, lease: Lease, over: int) -> StreamRecord:
    """Enter a lease. Those that ended at or before `over` are dropped, which has to be a time that
    is believed (`TrustedTime.over`): a clock that is ahead would end what others hold.

    Raises:
        OffsetGone: `range-condemned`: some of it may be deleted at any moment.
        InvalidRequest: `offset-beyond-end`: it begins where nothing is published yet.
        Overloaded: the stream has as many as it may have.
        NotFound, Unavailable
    """

    def decide(record: StreamRecord) -> StreamRecord:
        check_active(record)
        _check_start(record, lease)
        live = live_leases(record, over)
        if len(live) >= LEASE_COUNT_MAX:
            raise Overloaded(
                "the stream has as many leases as it may; return one, or wait until one runs out",
                code=Code.QUOTA_EXCEEDED,
                facts={"limit": LEASE_COUNT_MAX},
                retry_after_seconds=10,
            )
        return replace(record, leases=(*live, lease))

    return await streams.update(stream_id, decide)


def _check_start(record: StreamRecord, lease: Lease) -> None:
    if lease.first_offset < record.condemned_next:
        raise OffsetGone(
            "the range begins with records that may be deleted at any moment",
            code=Code.RANGE_CONDEMNED,
            facts={"first_offset": record.condemned_next},
        )
    if lease.first_offset > record.published_next:
        raise InvalidRequest(
            "the range begins beyond what is in the object store",
            code=Code.OFFSET_BEYOND_END,
            facts={"published_next": record.published_next},
        )


async def renew(
    streams: Streams, stream_id: StreamId, lease_id: str, expires_at: int, over: int
) -> Lease:
    """Let a live lease run out later; one that ran out, at or before `over`, holds nothing any more.
    Where nobody knows how late it is (`over` is 0) it counts as long as nothing of it is condemned.

    Raises:
        NotFound: `lease-not-found`, or there is no such stream.
        Unavailable
    """

    def decide(record: StreamRecord) -> StreamRecord:
        check_active(record)
        live = live_leases(record, over)
        mine = [lease for lease in live if lease.lease_id == lease_id]
        if not mine or mine[0].first_offset < record.condemned_next:
            raise NotFound("there is no such lease, or it has expired", code=Code.LEASE_NOT_FOUND)
        return replace(record, leases=tuple(_renewed(one, lease_id, expires_at) for one in live))

    record = await streams.update(stream_id, decide)
    return next(lease for lease in record.leases if lease.lease_id == lease_id)


def _renewed(lease: Lease, lease_id: str, expires_at: int) -> Lease:
    return replace(lease, expires_at=expires_at) if lease.lease_id == lease_id else lease


async def give_back(streams: Streams, stream_id: StreamId, lease_id: str, over: int) -> None:
    """End a lease, and drop those that ended at or before `over`. One that is not there is as good
    as ended.

    Raises:
        NotFound: there is no such stream.
        Unavailable
    """

    def decide(record: StreamRecord) -> StreamRecord:
        live = live_leases(record, over)
        return replace(record, leases=tuple(one for one in live if one.lease_id != lease_id))

    await streams.update(stream_id, decide)
