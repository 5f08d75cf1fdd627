"""Queues as a service: every part of it is made and wired here, top to bottom."""

from typing import Final

from bottomless.model.limits import LONG_POLL_MS_MAX, MIB, RECEIVE_SIZE_MAX
from bottomless_server.coordination.base import Coordination
from bottomless_server.node.core.admission import Admission
from bottomless_server.node.data_directory import DataDirectory
from bottomless_server.node.file_calls import FileCalls, RealFileCalls
from bottomless_server.node.forwarded import ForwardedRequests
from bottomless_server.node.forwarding import Forwarding
from bottomless_server.node.lease import REAL_CLOCKS, Clocks, LeaseBounds, NodeLease
from bottomless_server.node.room import MemoryRoom
from bottomless_server.node.stream_nodes import StreamNodes
from bottomless_server.node.under_way import RequestsUnderWay
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.queues.core.queue_time import QueueTime
from bottomless_server.queues.front.counts import QueueCounts
from bottomless_server.queues.front.figures import QueueMeasures
from bottomless_server.queues.front.placing import Passing
from bottomless_server.queues.front.public import create_public_app
from bottomless_server.queues.front.requests import QueueRequests, QueueRoom
from bottomless_server.queues.homes import OWNED, TenantHomes
from bottomless_server.queues.operator_settings import QueuesSettings
from bottomless_server.queues.outgoing.stream_appends import StreamAppends
from bottomless_server.queues.service import EnginePlace, QueuesService
from bottomless_server.queues.starts import NodeStart
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.http.paging import Paging
from bottomless_server.runtime.peers.internal_secret import secret_to_send
from bottomless_server.runtime.peers.peers import Peer
from bottomless_server.stores.freed_names import NamesShown
from bottomless_server.stores.queue_homes import QueueHomes, queue_node_key
from bottomless_server.stores.streams import Streams

_QUEUE_SHARE: Final = 2
"""One queue may have this part of the room of all publishes, and of all answers to receives."""
_ANSWER_SIZE_MAX: Final = 6 * RECEIVE_SIZE_MAX + MIB
"""Bytes of another node's answer: one receive, each byte of it escaped, and what is said of it."""
CONNECTION_COUNT_MAX: Final = 4_096
"""To one home: receives that wait there have one each, beside as many for all other requests."""


def create_service(
    settings: QueuesSettings,
    coordination: Coordination,
    *,
    manifest: PeerPort | None = None,
    files: FileCalls | None = None,
    clocks: Clocks = REAL_CLOCKS,
    forwarding: Forwarding | None = None,
    to_streams: Forwarding | None = None,
) -> QueuesService:
    """Make the service; no file is opened and nobody is asked before its `start`.

    Raises:
        CannotStart: a setting that it cannot do without is missing.
    """
    files = files or RealFileCalls()
    secret = secret_to_send(settings)
    directory = DataDirectory(files, settings.data_dir, "queues")
    streams = Streams(coordination)
    peer = manifest or _manifest(settings, secret)
    url = _url(settings)
    start = NodeStart(files, directory, peer, coordination, url, clocks.wall)
    lease = NodeLease(
        coordination,
        directory,
        url,
        clocks,
        LeaseBounds(
            settings.queues_lease_ms, settings.queues_lease_margin_ms, settings.queues_renew_ms
        ),
        lambda shown, *_: _note_generation(streams, shown),
        lease_key=queue_node_key,
        lease_value=start.lease_value,
        make_room=start.make_room,
        announced=False,
        owned=OWNED,
    )
    homes = TenantHomes(peer, QueueHomes(coordination, streams), lease, start, clocks.monotonic)
    to_streams = to_streams or Forwarding(settings.queues_forward_ms / 1000, secret)
    under_way, counts, place = RequestsUnderWay(), QueueCounts(), EnginePlace()

    def passed_on(wait_ms: int) -> ForwardedRequests:
        way = forwarding or _way(settings.queues_forward_ms + wait_ms, secret)
        return ForwardedRequests(way, under_way, counts, homes.forget_owner)

    passing = Passing(receives=passed_on(LONG_POLL_MS_MAX), others=passed_on(0))
    size_max = settings.queues_waiting_bytes_max
    room = MemoryRoom(
        Admission(size_max // _QUEUE_SHARE, size_max),
        clocks.monotonic,
        settings.queues_wait_ms / 1000,
        "publishes",
    )
    answer_size_max = settings.queues_answer_bytes_max
    answers = MemoryRoom(
        Admission(answer_size_max // _QUEUE_SHARE, answer_size_max),
        clocks.monotonic,
        settings.queues_wait_ms / 1000,
        "receives",
    )
    requests = QueueRequests(
        place.there, homes, QueueRoom(room, answers), counts, settings.queues_message_bytes_max
    )
    time = QueueTime(settings.queues_clock_jump_ms_max)
    appends = StreamAppends(
        streams, StreamNodes(coordination, clocks.monotonic), to_streams, homes.require_to_send
    )
    return QueuesService(
        public=create_public_app(
            place.there,
            requests,
            homes,
            directory,
            under_way,
            passing,
            Paging(coordination),
            appends,
        ),
        directory=directory,
        settings=settings.engine(),
        clock=lambda: time.read(clocks.wall(), clocks.since_boot()),
        go_on_from=lambda ms: time.go_on_from(ms, clocks.since_boot()),
        files=files,
        streams=appends,
        place=place,
        lease=lease,
        node_start=start,
        homes=homes,
        under_way=under_way,
        passing=passing,
        to_streams=to_streams,
        counts=counts,
        measures=QueueMeasures(lambda: time.shown(clocks.wall(), clocks.since_boot())),
    )


def _note_generation(streams: Streams, shown: NamesShown) -> None:
    """Let a home that is missing where the generation is not told be no reason to say that there is none."""
    streams.generation = shown.generation


def _way(silent_ms: int, secret: str | None) -> Forwarding:
    return Forwarding(
        silent_ms / 1000,
        secret,
        service="queues",
        owned=OWNED,
        answer_size_max=_ANSWER_SIZE_MAX,
        connection_count_max=CONNECTION_COUNT_MAX,
    )


def _url(settings: QueuesSettings) -> str:
    url = settings.queues_url or settings.internal_listen
    if url is None:
        raise CannotStart("queues need BOTTOMLESS_QUEUES_URL: where others reach them")
    return url


def _manifest(settings: QueuesSettings, secret: str | None) -> PeerPort:
    if settings.manifest_url is None:
        raise CannotStart("queues need BOTTOMLESS_MANIFEST_URL")
    return Peer(settings.manifest_url, name="manifest", secret=secret)
