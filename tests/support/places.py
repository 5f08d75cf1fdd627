"""The same scenario in each place that a record is read from, on one server per module.

A module that names its streams as `FILLS` gets each of them three times: in the tail alone, in
object storage alone, with nothing left of it on the ingest node, and in the tail of a leaderless
stream. The first two are read at once; then everything is restarted, with a reader that keeps
nothing, and all are read: every read after the restart is a cold one, and what is leaderless comes
from WAL objects alone.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pytest

from support.contract import QUICK, Stream, first_offset_once_taken, new_stream
from support.served import Served
from support.server import AllInOne
from support.waiting import until

SEGMENT_CHUNKS: Final = 10
FREEING: Final = {
    "BOTTOMLESS_MANIFEST_FANOUT": "4",
    "BOTTOMLESS_INGEST_SEGMENT_CHUNK_COUNT_MAX": str(SEGMENT_CHUNKS),
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "1",
    "BOTTOMLESS_INGEST_WAL_LINGER_MS": "1",
    "BOTTOMLESS_READER_FILTER_SCAN_MS": "30000",
}
"""Segments that are soon full, and go as soon as they are uploaded; leaderless appends wait for nobody,
and no page with a filter ends early because the machine stood still."""
COLD: Final = {
    "BOTTOMLESS_READER_CACHE_BYTES": "0",
    "BOTTOMLESS_READER_ROOT_TTL_MS": "0",
    "BOTTOMLESS_READER_NAME_TTL_MS": "0",
}
LOCAL: Final = {"fragment": {"max_age_ms": 86_400_000}}
LEADERLESS: Final = {"profile": "leaderless", "fragment": {"max_age_ms": 1_800_000}}

Fill = Callable[[Stream, bool], None]
"""Appends what a scenario reads; with True each append is to be a fragment of its own."""


class Place(NamedTuple):
    freed: bool
    """Object storage alone holds it."""
    cold: bool
    leaderless: bool = False

    def __str__(self) -> str:
        tier = "object storage" if self.freed else "tail"
        return f"{'leaderless ' * self.leaderless}{tier}{', restarted' * self.cold}"

    @property
    def kind(self) -> str:
        """What streams share that are read in several places."""
        return str(self._replace(cold=False))

    @property
    def config(self) -> Mapping[str, Any]:
        """Of streams whose records come to lie there."""
        if self.leaderless:
            return LEADERLESS
        return QUICK if self.freed else LOCAL


PLACES: Final = (
    Place(False, False),
    Place(True, False),
    Place(False, True),
    Place(True, True),
    Place(False, True, leaderless=True),
)


class Here(NamedTuple):
    """A place, the server, and the module's streams there by their names."""

    place: Place
    server: Served
    streams: Mapping[str, Stream]


def free_local(server: AllInOne, stream: Stream) -> None:
    """Return when object storage alone holds what the stream has by now; with FREEING only.

    The newest segment is never freed. So epochs are raised, each of which is written down as a
    chunk without records, until a segment begins behind all of them.
    """
    stream.wait_uploaded()
    end = stream.next_offset()

    def raised() -> bool:
        answer = stream.client.post(f"{stream.path}/producers/freeing/epoch")
        assert answer.is_success or answer.status_code == 503, answer.text
        return answer.is_success

    for _ in range(SEGMENT_CHUNKS):
        until(raised, what="another epoch")
    segments = server.ingest_dir / "streams" / str(stream.bounds()["stream_id"])

    def freed() -> bool:
        return all(int(path.name[:20]) >= end for path in segments.glob("*.segment"))

    until(freed, what=f"the local tier of {stream.name} freed")


@pytest.fixture(scope="module")
def filled(request: pytest.FixtureRequest, running: Served) -> dict[str, dict[str, str]]:
    """Names of streams by the kind of their place, filled once for all places."""
    fills: Mapping[str, Fill] = request.module.FILLS
    made: dict[str, dict[str, str]] = {}
    with running.client() as client:
        # A writer compares what it finds with the bucket first, and may be asked too early.
        first = new_stream(client, LEADERLESS)
        first_offset_once_taken(lambda: first.post({"value": "first"}))
        for place in PLACES:
            found = made.setdefault(place.kind, {})
            for name, fill in fills.items() if not found else ():
                stream = new_stream(client, place.config)
                fill(stream, place.freed)
                if place.freed:
                    free_local(running, stream)
                found[name] = stream.name
    return made


@pytest.fixture(scope="module", params=PLACES, ids=str)
def here(
    request: pytest.FixtureRequest, running: Served, filled: dict[str, dict[str, str]]
) -> Iterator[Here]:
    place: Place = request.param
    if place.cold and not running.holds(COLD):
        running.restart(COLD)
    with running.client() as client:
        names = filled[place.kind]
        yield Here(place, running, {key: Stream(client, name) for key, name in names.items()})
