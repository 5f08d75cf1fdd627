"""Streams by name: their ids and owners as the manifest service says, remembered until it says else.

An answer is good for seconds. After that one question for all names together tells whether any was
freed meanwhile; if none was, all are good for as long again (`runtime/base/known_names.py`). Owners
change without that, but never without a later epoch, which the pointer to the root tells: whoever
reads a stream looks at that first, and it is asked for with almost every read anyway.

What is not there is never remembered: a stream can be read as soon as it was created.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from bottomless.errors import NotFound, StoreError
from bottomless.model.config import Profile
from bottomless.model.names import FullName, StreamId
from bottomless.model.stream import StreamState
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.protocol.registry import (
    NAMES,
    ByNameAsked,
    by_name,
    decode_names_shown,
    decode_stream,
)
from bottomless_server.reader.manifest_calls import ManifestAway
from bottomless_server.runtime.base.known_names import Known, KnownNames, Question
from bottomless_server.runtime.base.single_flight import SingleFlight

_STREAM_COUNT_MAX = 10_000
"""Names remembered; some hundred bytes each."""
_ERA_MS_MAX = 600_000
"""How long it is believed that no name was freed without asking for each of them. Whether a stream is
being deleted is told with its root too, so it is not for that."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    stream_id: StreamId
    name: FullName
    epoch: int
    owner_url: str | None
    profile: Profile = "local"

    @property
    def tenant(self) -> str:
        """Under whose prefix its objects are."""
        return self.name.tenant


class Found(NamedTuple):
    stream: StreamFacts
    remembered: bool
    """It may be out of date: an answer that does not fit it is a reason to ask again."""


class _Answer(NamedTuple):
    """What a name meant when it was asked for."""

    stream: StreamFacts
    question: Question


class WaitedOn:
    """The stream on which a request waits: it stays with it, whatever has its name by then."""

    def __init__(self) -> None:
        self._stream_id: StreamId | None = None

    def begin(self, stream: StreamFacts) -> None:
        """Its owner has said that the stream is there."""
        self._stream_id = stream.stream_id

    def check(self, stream: StreamFacts) -> None:
        """Look whether a request may go on with this stream.

        Raises:
            NotFound: its name is another stream's by now, of which nobody asked.
        """
        if self._stream_id not in (None, stream.stream_id):
            raise stream_not_found()


class Streams:
    def __init__(self, manifest: PeerPort, keep_ms: int, elapsed: Callable[[], int]) -> None:
        """An answer is good for `keep_ms`; `elapsed` is the time of a clock that never goes back and
        that goes on while the machine is suspended, in ms."""
        self._manifest = manifest
        self._keep_ms = keep_ms
        self._elapsed = elapsed
        self._known: KnownNames[StreamFacts] = KnownNames(_STREAM_COUNT_MAX, _ERA_MS_MAX)
        self._asking: SingleFlight[FullName, _Answer] = SingleFlight(linger_seconds=0)
        self._hearing: SingleFlight[None, None] = SingleFlight(linger_seconds=0)

    async def find(self, name: FullName) -> Found:
        """The stream that has a name.

        Raises:
            NotFound: there is none.
        """
        known = self._known.get(name, self._elapsed())
        if known is not None and self._is_old(known) and self._known.is_of_this_era(known):
            await self._hearing.join(None, self._hear)
            known = self._known.get(name, self._elapsed())
        if known is not None and not self._is_old(known):
            return Found(known.meaning, remembered=True)
        return await self._ask(name)

    async def under(self, stream: StreamFacts, epoch: int) -> StreamFacts:
        """What is known of a stream whose epoch is at least this one: it may have another owner.

        Raises:
            NotFound: its name is another stream's by now, or no stream's.
        """
        found = stream
        # The second time where the answer was one that others waited for already.
        for _ in range(2):
            if found.epoch >= epoch:
                break
            known = self._known.get(stream.name, self._elapsed())
            if known is not None and known.meaning.epoch < epoch:
                self.forget(stream.name)
            found = (await self.find(stream.name)).stream
            if found.stream_id != stream.stream_id:
                raise stream_not_found()
        return found

    def forget(self, name: FullName) -> None:
        """Have the next caller ask again what a name means."""
        self._known.forget(name)

    async def _ask(self, name: FullName) -> Found:
        """Ask what a name means. Where others wait for that already their answer will do, unless
        it is too old for a request that begins now.

        Raises:
            NotFound
        """
        begun, joined = self._elapsed(), name in self._asking
        try:
            answer = await self._asking.join(name, lambda: self._load(name))
            if not joined or begun - answer.question.true_at < self._keep_ms:
                return Found(answer.stream, remembered=joined)
        except NotFound:
            if not joined:
                raise
        # That question may be older than the stream, and this request is not.
        answer = await self._asking.join(name, lambda: self._load(name))
        return Found(answer.stream, remembered=False)

    def _is_old(self, known: Known[StreamFacts]) -> bool:
        return self._elapsed() - known.true_at >= self._keep_ms

    async def _hear(self) -> None:
        """Ask whether any name was freed.

        Raises:
            ManifestAway
        """
        asked_at = self._elapsed()
        mark: Hashable | None
        try:
            mark = decode_names_shown((await self._manifest.call("GET", NAMES)).body)
        except ManifestAway:
            raise
        except StoreError:
            # A release before this one does not know the question: each name is asked for.
            mark = None
        self._known.hear(mark, asked_at)

    async def _load(self, name: FullName) -> _Answer:
        question = self._known.ask(self._elapsed())
        params = ByNameAsked(name.tenant).params()
        said = decode_stream((await self._manifest.call("GET", by_name(name), params=params)).body)
        if said.state is not StreamState.ACTIVE:
            raise stream_not_found()
        stream = StreamFacts(said.stream_id, name, said.epoch, said.owner_url, said.profile)
        self._known.keep(name, stream, question)
        return _Answer(stream, question)
