"""`AsyncClient`: every call, on the event loop of the program that makes it."""

import ssl
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bottomless.client.address import parse_url
from bottomless.client.consumer import (
    COMMIT_SECONDS_DEFAULT,
    AsyncConsumer,
    Consuming,
    ignored,
)
from bottomless.client.credential import Credential
from bottomless.client.discovery import DiscoveryCalls
from bottomless.client.encoding import Compression
from bottomless.client.exchange import Exchange
from bottomless.client.fragments import FragmentCalls
from bottomless.client.group import LEASE_SECONDS_DEFAULT, AsyncGroup, member_name
from bottomless.client.keys import KeyCalls
from bottomless.client.membership import GroupMemberCalls, Sharing
from bottomless.client.message import Message
from bottomless.client.place import Place
from bottomless.client.producer import AsyncProducer, Wanted
from bottomless.client.producer_settings import (
    BATCH_BYTES_DEFAULT,
    BLOCK_SECONDS_DEFAULT,
    BUFFER_BYTES_DEFAULT,
    DELIVERY_SECONDS_DEFAULT,
    IN_FLIGHT_DEFAULT,
    LINGER_SECONDS_DEFAULT,
    Batching,
    Sending,
)
from bottomless.client.publishing import PublishCalls
from bottomless.client.queues import QueueCalls
from bottomless.client.receiving import ReceiveCalls
from bottomless.client.retry import RETRY_SECONDS
from bottomless.client.super_appends import SuperAppendCalls
from bottomless.client.super_consumer import AsyncSuperConsumer, SuperConsuming
from bottomless.client.super_producer import AsyncSuperProducer
from bottomless.client.super_reads import Places, SuperReadCalls
from bottomless.client.tiers import TierCalls
from bottomless.client.transport import (
    OnFirstUse,
    OpenTransport,
    Target,
    Timeouts,
    Transport,
)
from bottomless.client.upkeep import UpkeepCalls
from bottomless.client.worker import AsyncWorker
from bottomless.client.working import (
    VISIBILITY_MS_DEFAULT,
    WAIT_MS_MAX,
    Loss,
    Working,
    tell_lost,
)
from bottomless.errors import InvalidRequest, StoreError
from bottomless.model.limits import PAGE_SIZE_DEFAULT

if TYPE_CHECKING:
    import httpx

    from bottomless.client.bulk import MakeConnector


class AsyncClient(
    GroupMemberCalls,
    SuperReadCalls,
    SuperAppendCalls,
    UpkeepCalls,
    TierCalls,
    QueueCalls,
    PublishCalls,
    ReceiveCalls,
    KeyCalls,
    FragmentCalls,
    DiscoveryCalls,
):
    """Talks to one server, or to the proxy in front of several.

    A client belongs to one event loop and to one process: after a fork the child makes its own. Any
    number of tasks may use it at once.

    `token` is sent as `Authorization: Bearer` with each request; without it the environment's
    `BOTTOMLESS_TOKEN` is sent. It travels as the url says: use https where others may listen.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeouts: Timeouts | None = None,
        retry_seconds: float = RETRY_SECONDS,
        ca_file: str | Path | None = None,
        on_retry: Callable[[StoreError], None] | None = None,
        control_transport: "httpx.AsyncBaseTransport | None" = None,
        bulk_connector: "MakeConnector | None" = None,
    ) -> None:
        """`retry_seconds` is how long a call is tried where that cannot do anything twice;
        `ca_file` names who signs for the server, beside those whom the system trusts; `on_retry` hears
        of each failure after which a call is tried again.

        Raises:
            InvalidRequest: that is no url of a server, or no token.
        """
        target = Target(
            parse_url(url), Credential(token), timeouts or Timeouts(), _tls(url, ca_file)
        )
        super().__init__(
            _control(target, control_transport),
            OnFirstUse(partial(_bulk, target, bulk_connector)),
            # Connections of their own: whoever waits for a stream to grow holds one for long.
            Exchange(target) if bulk_connector is None else None,
            retry_seconds=retry_seconds,
            on_retry=on_retry,
        )
        self._url = target.url
        self._answer_ms = int(target.timeouts.answer * 1000)

    def producer(
        self,
        stream: str,
        *,
        producer_id: str | None = None,
        epoch: int | None = None,
        next_sequence: int | None = None,
        batch_bytes: int = BATCH_BYTES_DEFAULT,
        linger_seconds: float = LINGER_SECONDS_DEFAULT,
        buffer_bytes: int = BUFFER_BYTES_DEFAULT,
        in_flight: int = IN_FLIGHT_DEFAULT,
        compression: Compression | None = None,
        delivery_seconds: float = DELIVERY_SECONDS_DEFAULT,
        block_seconds: float = BLOCK_SECONDS_DEFAULT,
    ) -> AsyncProducer:
        """Make a producer for one stream, for use with `async with`.

        With a `producer_id` its epoch is raised at the start, which fences older instances; `epoch`
        and `next_sequence` pass in what another program has found out instead. Records wait until
        there are `batch_bytes` of them, or for `linger_seconds`. At most `buffer_bytes` are held in
        all, and `send` waits up to `block_seconds` for room. A batch is tried for
        `delivery_seconds`, and `in_flight` batches are on their way at once.

        Raises:
            InvalidRequest: a number is out of its range, or `bad-name`.
        """
        batching = Batching(batch_bytes, linger_seconds, buffer_bytes)
        sending = Sending(batching, in_flight, compression, delivery_seconds, block_seconds)
        return AsyncProducer(self, Wanted(stream, producer_id, epoch, next_sequence), sending)

    def consumer(
        self,
        stream: str,
        name: str | None = None,
        *,
        start: Place = "first",
        auto_commit: bool = True,
        commit_seconds: float = COMMIT_SECONDS_DEFAULT,
        commit_records: int | None = None,
        max_bytes: int = PAGE_SIZE_DEFAULT,
        expect_stream_id: str | None = None,
        filter: str | Sequence[str] | None = None,  # noqa: A002  # as the API calls it
        match_unfiltered: bool = False,
        key: str | bytes | Sequence[str | bytes] | None = None,
        on_outage: Callable[[StoreError], None] = ignored,
    ) -> AsyncConsumer:
        """Make a consumer of one stream, for `async with` and `async for`.

        With a `name` it continues at the offset that is stored under it, and stores its progress
        there every `commit_seconds`, and earlier once `commit_records` are processed; `start` is for
        the first time, or for a consumer without a name. `on_outage` is called with the reason each
        time reading is interrupted; it resumes by itself. A batch has about `max_bytes` bytes of values.
        With `filter` or `key` only records of those filter values or keys come, with
        `match_unfiltered` also those without a filter value; what lies between them is passed over,
        and counts as processed.

        Raises:
            InvalidRequest: a list is empty, a number is out of its range, `start` is no place, or `bad-name`.
        """
        given = {"filter": filter, "match_unfiltered": match_unfiltered or None, "key": key}
        consuming = Consuming(
            stream,
            name,
            start,
            auto_commit,
            commit_seconds,
            max_bytes,
            expect_stream_id,
            on_outage,
            commit_records=commit_records,
            wanted={name: value for name, value in given.items() if value is not None},
        )
        return AsyncConsumer(self, consuming)

    def super_producer(
        self,
        name: str,
        *,
        producer_id: str | None = None,
        batch_bytes: int = BATCH_BYTES_DEFAULT,
        linger_seconds: float = LINGER_SECONDS_DEFAULT,
        buffer_bytes: int = BUFFER_BYTES_DEFAULT,
        compression: Compression | None = None,
        delivery_seconds: float = DELIVERY_SECONDS_DEFAULT,
        block_seconds: float = BLOCK_SECONDS_DEFAULT,
    ) -> AsyncSuperProducer:
        """Make a producer for a super stream, for use with `async with`; each record has a key.

        Its options are those of `producer`. One request is under way at a time, and is sent again as
        it was until all partitions have their parts. With a `producer_id` its epoch is raised at the
        start, in all partitions, which fences older runs; what an older run could not finish stays
        stored in part.

        Raises:
            InvalidRequest: a number is out of its range, or `bad-name`.
        """
        batching = Batching(batch_bytes, linger_seconds, buffer_bytes)
        sending = Sending(batching, 1, compression, delivery_seconds, block_seconds)
        return AsyncSuperProducer(self, Wanted(name, producer_id), sending)

    def super_consumer(
        self,
        name: str,
        consumer: str | None = None,
        *,
        start: Places = "first",
        auto_commit: bool = True,
        commit_seconds: float = COMMIT_SECONDS_DEFAULT,
        filter: str | Sequence[str] | None = None,  # noqa: A002  # as the API calls it
        match_unfiltered: bool = False,
        key: str | bytes | Sequence[str | bytes] | None = None,
        on_outage: Callable[[StoreError], None] = ignored,
    ) -> AsyncSuperConsumer:
        """Make a consumer of all partitions of a super stream, for `async with` and `async for`.

        Its batches have records of several partitions. Up to the end that the super stream has when
        it begins they come in the order of their timestamps, and later as they are read; records of
        one partition, and so of one key, always in their order. With a `consumer` it continues in
        each partition at the offset that is stored there under this name. The other options are those
        of `consumer`; `start` may be a map of places by the names of the partitions' streams.

        Raises:
            InvalidRequest: a list is empty, a number is out of its range, `start` is no place or one
                offset for all partitions, or `bad-name`.
        """
        given = {"filter": filter, "match_unfiltered": match_unfiltered or None, "key": key}
        consuming = SuperConsuming(
            name,
            consumer,
            start,
            auto_commit,
            commit_seconds,
            on_outage,
            wanted={name: value for name, value in given.items() if value is not None},
        )
        return AsyncSuperConsumer(self, consuming)

    def group(
        self,
        stream: str,
        group: str,
        *,
        member: str | None = None,
        lease_seconds: float = LEASE_SECONDS_DEFAULT,
        strategy: str | None = None,
        start: Place = "first",
        auto_commit: bool = True,
        commit_seconds: float = COMMIT_SECONDS_DEFAULT,
        commit_records: int | None = None,
        max_bytes: int = PAGE_SIZE_DEFAULT,
        on_outage: Callable[[StoreError], None] = ignored,
    ) -> AsyncGroup:
        """Make a member of a consumer group, for `async with` and `async for`.

        `stream` is a stream, or a super stream whose partitions the members divide. One member reads
        the stream, or a partition, the others wait; when it leaves, or has not been heard for
        `lease_seconds`, the next one goes on after what it has committed. `start` is where a group
        begins that has stored nothing. `member` is a name that no other program of the group has;
        who comes again under its name takes its place.

        Raises:
            InvalidRequest: a number is out of its range, `start` is no place, or `bad-name`.
        """
        consuming = Consuming(
            stream,
            group,
            start,
            auto_commit,
            commit_seconds,
            max_bytes,
            None,
            on_outage,
            commit_records=commit_records,
        )
        sharing = Sharing(
            stream, group, member or member_name(), lease_seconds, strategy, consuming, start
        )
        return AsyncGroup(self, sharing)

    def worker(
        self,
        queue: str,
        *,
        visibility_ms: int = VISIBILITY_MS_DEFAULT,
        limit: int = 1,
        nack_delay_ms: int = 0,
        on_lost: Callable[[Message, Loss], None] = tell_lost,
        on_outage: Callable[[StoreError], None] = ignored,
    ) -> AsyncWorker:
        """Make a worker on a queue, for `async with` and `async for`; each message is for a block.

        Leaving a message's block acknowledges it, an exception gives it back, after `nack_delay_ms`.
        Until then it is extended at half of `visibility_ms`, so that only a program that died or stood
        still loses it. `limit` is how many messages are in hand at once: more save requests where
        each takes little time, and are delivered once more if the program ends before their turn.
        `on_lost` is called with a message that somebody else got meanwhile (`stale`), or that left the
        queue (`gone`), and by default writes a warning to the log; `on_outage` with the reason each time the server did not answer.

        Raises:
            InvalidRequest: a number is out of its range, or `bad-name`.
        """
        # The other half is for the way there and back.
        wait_ms = min(WAIT_MS_MAX, self._answer_ms // 2)
        working = Working(queue, visibility_ms, limit, nack_delay_ms, on_lost, on_outage, wait_ms)
        return AsyncWorker(self, working)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"


def _control(target: Target, transport: "httpx.AsyncBaseTransport | None") -> Transport:
    if transport is None:
        return Exchange(target)
    from bottomless.client.control import Control  # noqa: PLC0415

    return Control(target, transport)


def _bulk(target: Target, connector: "MakeConnector | None") -> OpenTransport:
    from bottomless.client.bulk import Bulk  # noqa: PLC0415

    return Bulk(target, connector)


def _tls(url: str, ca_file: str | Path | None) -> ssl.SSLContext | None:
    """Whom the system trusts, for every call alike: the libraries each have a list of their own."""
    # Schemes have no case; whatever is not plain is verified.
    if urlsplit(url).scheme == "http":
        return None
    context = ssl.create_default_context()
    if ca_file is None:
        return context
    try:
        context.load_verify_locations(ca_file)
    except (ssl.SSLError, OSError) as error:
        raise InvalidRequest("ca_file must be a readable file of certificates") from error
    return context
