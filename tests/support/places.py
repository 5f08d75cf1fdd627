"""The same scenario in each place that a record is read from, on one server per module.

A module that names its streams as `FILLS` gets each of them twice: in the tail alone, and in
object storage alone, with nothing left of it on the ingest node. Both are read at once; then
everything is restarted, with a reader that keeps nothing, and both are read again: every read
after the restart is a cold one.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import pytest

from support.contract import QUICK, Stream, new_stream
from support.served import Served
from support.waiting import until

SEGMENT_CHUNKS: Final = 10
FREEING: Final = {
    "BOTTOMLESS_MANIFEST_FANOUT": "4",
    "BOTTOMLESS_INGEST_SEGMENT_CHUNK_COUNT_MAX": str(SEGMENT_CHUNKS),
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "1",
}
"""Segments that are soon full, and go as soon as they are uploaded."""
COLD: Final = {
    "BOTTOMLESS_READER_CACHE_BYTES": "0",
    "BOTTOMLESS_READER_ROOT_TTL_MS": "0",
    "BOTTOMLESS_READER_NAME_TTL_MS": "0",
}
LOCAL: Final = {"fragment": {"max_age_ms": 86_400_000}}

Fill = Callable[[Stream, bool], None]
"""Appends what a scenario reads; with True each append is to be a fragment of its own."""


class Place(NamedTuple):
    freed: bool
    """Object storage alone holds it."""
    cold: bool

    def __str__(self) -> str:
        tier = "object storage" if self.freed else "tail"
        return f"{tier}, restarted" if self.cold else tier


PLACES: Final = (Place(False, False), Place(True, False), Place(False, True), Place(True, True))


class Here(NamedTuple):
    """A place, the server, and the module's streams there by their names."""

    place: Place
    server: Served
    streams: Mapping[str, Stream]


def free_local(server: Served, stream: Stream) -> None:
    """Return when object storage alone holds what the stream has by now; with FREEING only.

    The newest segment is never freed. So epochs are raised, each of which is written down as a
    chunk without records, until a segment begins behind all of them.
    """
    stream.wait_uploaded()
    end = stream.next_offset()
    for _ in range(SEGMENT_CHUNKS):
        stream.client.post(f"{stream.path}/producers/freeing/epoch").raise_for_status()
    segments = server.ingest_dir / "streams" / str(stream.bounds()["stream_id"])

    def freed() -> bool:
        return all(int(path.name[:20]) >= end for path in segments.glob("*.segment"))

    until(freed, what=f"the local tier of {stream.name} freed")


@pytest.fixture(scope="module")
def both_tiers(request: pytest.FixtureRequest, running: Served) -> dict[bool, dict[str, str]]:
    """Names of streams by whether they were freed, filled once for all places."""
    fills: Mapping[str, Fill] = request.module.FILLS
    names: dict[bool, dict[str, str]] = {False: {}, True: {}}
    with running.client() as client:
        for freed, found in names.items():
            for name, fill in fills.items():
                stream = new_stream(client, QUICK if freed else LOCAL)
                fill(stream, freed)
                if freed:
                    free_local(running, stream)
                found[name] = stream.name
    return names


@pytest.fixture(scope="module", params=PLACES, ids=str)
def here(
    request: pytest.FixtureRequest, running: Served, both_tiers: dict[bool, dict[str, str]]
) -> Iterator[Here]:
    place: Place = request.param
    if place.cold and not running.holds(COLD):
        running.restart(COLD)
    with running.client() as client:
        names = both_tiers[place.freed]
        yield Here(place, running, {key: Stream(client, name) for key, name in names.items()})
