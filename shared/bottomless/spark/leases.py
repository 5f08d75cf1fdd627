"""Protect what a job is going to read from retention and trim, for as long as its tasks start.

A lease is taken when a job is planned and renewed by its tasks when they start; nobody has to give
it back, since it expires. It keeps objects from being deleted; it does not keep a stream from being
trimmed, so only a job that reads objects by itself gains by it.

After a crash at any step a lease is left, which expires by itself.
"""

import logging
import time
from typing import Final, NamedTuple

from bottomless.client.address import check_id
from bottomless.errors import Code, Denied, NotFound, OffsetGone, Overloaded, StoreError
from bottomless.model.offset_spec import parse_timestamp
from bottomless.spark.service import Source, send_json

_log: Final = logging.getLogger(__name__)

HOLDER: Final = "spark"
RENEWALS: Final = 4
"""Renewals within the time of a lease: one that is late and one that is lost still leave it
alive."""

_renewed: Final[dict[str, float]] = {}
"""When this process renewed a lease last."""
_RENEWED_COUNT_MAX: Final = 256


class Lease(NamedTuple):
    """A lease that a job has taken."""

    lease_id: str
    seconds: int
    """The time that was asked for; the service may have given less."""
    renewal_seconds: float
    """The time after which it should be renewed, or replaced by a newer one."""


def take_lease(source: Source, first_offset: int, seconds: int) -> Lease | None:
    """Protect everything from `first_offset` on for `seconds`; None where that cannot be done.

    A job continues without a lease, relying on the grace before anything is deleted, if this
    principal may not take one, the stream has as many as it may have, nothing is in object storage
    yet, or the service at the url has no leases.

    Raises:
        OffsetGone: some of it may be deleted already.
        StoreError: the service cannot be asked.
    """
    if seconds == 0:
        return None
    wanted = {
        "first_offset": first_offset,
        "ttl_seconds": seconds,
        "holder": HOLDER,
        "expect_stream_id": source.stream_id,
    }
    try:
        granted = send_json(source, "POST", "leases", wanted)
    except OffsetGone:
        raise
    except (Denied, Overloaded) as error:
        _log.warning("reading without a lease: %s", error)
        return None
    except StoreError as error:
        # Beyond what is in the object store: nothing there to hold. No such path: a url
        # that leads to the reader alone.
        if error.code is Code.OFFSET_BEYOND_END or _unserved(error):
            return None
        raise
    return Lease(granted["lease_id"], seconds, _left(granted["expires_at"], seconds) / RENEWALS)


def renew_lease(source: Source, lease: Lease | None) -> None:
    """Let a lease expire later.

    It never fails: a job that loses its lease may still read all it needs.
    """
    now = time.monotonic()
    if lease is None or now - _renewed.get(lease.lease_id, -1e9) < lease.renewal_seconds:
        return
    if len(_renewed) >= _RENEWED_COUNT_MAX:
        _renewed.clear()
    _renewed[lease.lease_id] = now
    try:
        path = f"leases/{check_id(lease.lease_id)}"
        send_json(source, "PUT", path, {"ttl_seconds": lease.seconds})
    except StoreError as error:
        _log.warning("a lease was not renewed: %s", error)


def return_lease(source: Source, lease: Lease | None) -> None:
    """End a lease; one that cannot be returned expires."""
    if lease is None:
        return
    try:
        send_json(source, "DELETE", f"leases/{check_id(lease.lease_id)}")
    except StoreError as error:
        _log.info("a lease was not returned: %s", error)


def _left(expires_at: str, seconds: int) -> float:
    # By this machine's clock, which may be wrong: then it is renewed too often, or as if the
    # service had given what it was asked for.
    left = parse_timestamp(expires_at) / 1000 - time.time()
    return min(max(left, 1), seconds)


def _unserved(error: StoreError) -> bool:
    return (isinstance(error, NotFound) and error.code is Code.NOT_FOUND) or (
        error.code is Code.METHOD_NOT_ALLOWED
    )
