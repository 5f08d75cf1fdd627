"""The ways of a worker to what is in object storage, and when it changes to the next one.

    direct      the store itself, with the worker's own credentials
    presigned   the store itself, with URLs that the reader signs
    reader      pages of records from the reader, which is always available

Modes direct, presigned and reader are one way, and its errors are the job's. Mode auto takes them
in this order as far as the store knows them. A store that refuses or does not answer this worker
will do so for the next thousand fragments too, so the process avoids that way for a while; that one
object is gone says nothing about others, and the reader knows best what became of it.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bottomless.errors import InvalidRequest
from bottomless.spark.options import Mode
from bottomless.spark.service import Source
from bottomless.spark.store import Counts, LocalObjects, Objects, StorePlace
from bottomless.spark.url_objects import UrlObjects

LEFT_SECONDS: Final = 60
"""How long a failed way is avoided: long beside the attempts that it costs, short beside a job."""
_AUTO: Final = {"file": (Mode.DIRECT,), "s3": (Mode.DIRECT, Mode.PRESIGNED)}
"""By kind of store: what is tried before the reader."""

LEFT: Final[dict[tuple[str, Mode, StorePlace | None], float]] = {}
"""Until when this process leaves a way to a stream's store; bounded by the ways that jobs name."""


class Way(NamedTuple):
    """One way to the objects of a store, open."""

    mode: Mode
    objects: Objects


class Ways:
    """The ways of one task, best first."""

    def __init__(
        self,
        mode: Mode,
        source: Source,
        next_offset: int,
        place: StorePlace | None,
        ca: str | None,
        counts: Counts,
    ) -> None:
        self._mode = mode
        self._source = source
        self._next_offset = next_offset
        self.place = place
        self._ca = ca
        self._counts = counts
        self._opened: dict[Mode, Way] = {}

    def open(self) -> Iterator[Way]:
        """Give the ways that are worth trying now; none where only the reader remains."""
        for mode in self._modes():
            # A mode that is one way has nothing else to take: what auto left, it tries.
            if self._mode is Mode.AUTO and LEFT.get(self._name(mode), 0) > time.monotonic():
                continue
            if mode not in self._opened:
                self._opened[mode] = Way(mode, self._objects(mode))
            yield self._opened[mode]

    def leave(self, way: Way) -> None:
        """Take another way for a while, in all tasks of this process."""
        LEFT[self._name(way.mode)] = time.monotonic() + LEFT_SECONDS

    def _modes(self) -> tuple[Mode, ...]:
        if self._mode is Mode.AUTO:
            return _AUTO.get(self.place.kind, ()) if self.place else ()
        return () if self._mode is Mode.READER else (self._mode,)

    def _name(self, mode: Mode) -> tuple[str, Mode, StorePlace | None]:
        return self._source.url, mode, self.place

    def _objects(self, mode: Mode) -> Objects:
        if mode is Mode.PRESIGNED:
            return UrlObjects(self._source, self._next_offset, self._ca, self._counts)
        assert self.place is not None
        return open_objects(self.place, self._counts)


def open_objects(place: StorePlace, counts: Counts) -> Objects:
    """Open a store for workers that may read it by themselves.

    Raises:
        InvalidRequest: they cannot read stores of this kind.
    """
    if place.kind == "file":
        return LocalObjects(Path(place.root), counts)
    if place.kind == "s3":
        # Half of what a worker would load, and of no use beside a directory.
        from bottomless.spark.s3_objects import S3Objects  # noqa: PLC0415

        return S3Objects(place, counts)
    raise InvalidRequest(f"workers cannot read a store of kind {place.kind}; use mode=reader")
