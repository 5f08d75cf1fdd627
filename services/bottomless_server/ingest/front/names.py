"""The stream that a name means: asked of manifest, and remembered until a name is freed.

After a deletion a name may be given to another stream, so nobody may go by what a name meant
for longer than the old owner's lease would last. Each renewal of the lease reads the mark that changes
with every name that is freed. While it stands, all that is known is as true as at that renewal, and
nobody is asked (`runtime/base/known_names.py`). When it has changed, the coordination store is asked
what names in use mean now, a thousand in one question: a deletion frees the name in the EXEC
that makes it true, and all others still mean what they did. Until then what was known at the last
renewal before it is good for as long as the belief in the lease that this renewal brought.

Where no renewal succeeds, names in use are asked of manifest again before they are too old,
many in one question; and where manifest does not answer, the coordination store is asked whether
they still mean the same. So appends to streams in use go on without manifest, and a deleted
stream takes none. Nothing else is learned from there: what is not known, or is another stream's
by now, waits for manifest.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

import structlog

from bottomless.errors import Code, NotFound, StoreError, Unavailable
from bottomless.model.config import Profile
from bottomless.model.limits import NAMES_TOGETHER_COUNT_MAX
from bottomless.model.names import FullName, StreamId
from bottomless.model.stream import StreamState
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.node.core.belief import Moment
from bottomless_server.node.lease import Clocks
from bottomless_server.protocol.paths import STREAM, of_stream
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.protocol.registry import (
    NAMES,
    REGISTRY,
    ByNameAsked,
    by_name,
    decode_made,
    decode_stream,
    decode_streams,
    encode_names_asked,
    encode_to_make,
)
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.known_names import KnownNames, Question
from bottomless_server.runtime.base.single_flight import SingleFlight
from bottomless_server.stores.freed_names import NamesShown
from bottomless_server.stores.streams import Streams

log = structlog.get_logger(__name__)

NAME_COUNT_MAX: Final = 100_000
MANIFEST_SECONDS: Final = 2.0
"""How long manifest is waited for before the coordination store is asked for a known name."""
STRANGER_SECONDS: Final = 6.0
"""How long manifest is waited for about an unknown name: only it can help, and it may be busy."""
CONFIRM_SECONDS: Final = 2.0
"""How long the coordination store is waited for then: somebody waits for an answer, also if that is a
refusal."""
ERA_MS_MAX: Final = 60_000
"""How long a mark is believed without a look at the names: one who frees names without it, such as a
manifest of the release before, goes unnoticed for no longer."""
_USED_MS: Final = 180_000
"""Names that nobody asked for in this time are not looked up when a name was freed: they are
asked for alone when they are used again."""
_GATHER_SECONDS: Final = 0.1
"""How long a name waits for others that are due; what is known of it is good for much longer."""
_ASK_COUNT: Final = 3
"""How often one request asks for a name: the first answer may be of before the request, and the
second too old when it comes."""


class NamedStream(NamedTuple):
    """The stream that a name means."""

    stream_id: StreamId
    profile: Profile
    """It is the same for as long as there is a stream with this id. So it is learned when a name
    is asked for alone, and the answers about many names need not tell it."""


class _Answer(NamedTuple):
    """The stream that a name meant when it was asked for."""

    stream: NamedStream
    question: Question


class StreamNames:
    """Asks manifest which stream a name means, and remembers the answers.

    At any time there is one question at most for each name, and one for all that are due.
    """

    def __init__(self, manifest: PeerPort, streams: Streams, clocks: Clocks, keep_ms: int) -> None:
        self._manifest = manifest
        self._streams = streams
        self._clocks = clocks
        self._keep_ms = keep_ms
        self._known: KnownNames[NamedStream] = KnownNames(NAME_COUNT_MAX, ERA_MS_MAX)
        self._asking: SingleFlight[FullName, _Answer] = SingleFlight()
        self._due: dict[FullName, None] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    async def find(self, name: FullName) -> NamedStream:
        """The stream that has a name.

        Raises:
            NotFound: there is none, or it is being deleted.
            Unavailable: manifest does not answer, and did not lately; outcome none.
        """
        known = self.at_once(name)
        return await self._ask(name) if known is None else known

    def at_once(self, name: FullName) -> NamedStream | None:
        """The stream that has a name; None if somebody has to be asked first."""
        now = self._clocks.since_boot()
        known = self._known.get(name, now)
        if known is None:
            return None
        age = now - known.true_at
        if age >= self._keep_ms:
            return None
        if age >= self._keep_ms // 2:
            # Asked again while the old answer is good, so that no append waits for it.
            self._refresh(name)
        return known.meaning

    async def find_other(self, name: FullName, stale: NamedStream) -> NamedStream:
        """The stream that now has a name which once meant `stale`, which is no more.

        Raises:
            NotFound: it means no other stream now.
            Unavailable: manifest does not answer; outcome none.
        """
        if self._known.means(name, stale):
            self._known.forget(name)
        found = await self.find(name)
        if found == stale:
            # Perhaps by a question that was sent before this one; a new one says how it is now.
            found = await self._ask(name)
        if found == stale:
            raise stream_not_found()
        return found

    def hear(self, shown: NamesShown, connected_count: int, since: Moment) -> None:
        """Take up what the renewal of the lease that began at `since` has read of names.

        A store to which this process had to connect anew may lack its last changes, and the stream
        of a name with them: then the mark is that of before, and names are looked up all the same.
        """
        mark = None if shown.generation is None else (shown, connected_count)
        if not self._known.hear(mark, int(since.boot * 1000)):
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_up_all())
            self._looking.add_done_callback(self._ended)

    async def make(self, name: FullName) -> bool:
        """Make the stream that a name is to have, without an owner; returns whether it was not there.

        Raises:
            Exists: there is one, and it is another one.
            StoreError: nobody can say whether there is one now; the same again is right.
        """
        params = ByNameAsked(name.tenant).params()
        body = encode_to_make("leaderless")
        answer = await self._manifest.call("PUT", by_name(name), params=params, body=body)
        return decode_made(answer.body)

    async def note_home(self, stream_id: StreamId) -> None:
        """Have the bucket say that this node is the stream's home.

        Raises:
            NotFound: the stream is gone.
            Unavailable: it does not say so yet; outcome none.
        """
        try:
            await self._manifest.call("PUT", of_stream(REGISTRY, stream_id))
        except Unavailable as error:
            raise Unavailable(error.message, code=error.code, retry_after_seconds=1) from error

    async def state_of(self, stream_id: StreamId) -> StreamState | None:
        """The state of a stream, told by manifest; None if there is no stream with this id.

        Raises:
            Unavailable: that cannot be told, also where coordination shows less than it did.
        """
        try:
            answer = await self._manifest.call("GET", of_stream(STREAM, stream_id))
        except NotFound as error:
            if error.code is not Code.STREAM_NOT_FOUND:
                raise Unavailable("manifest does not know this question") from error
            return None
        said = decode_stream(answer.body)
        if said.stream_id != stream_id:
            raise Unavailable("manifest gave an answer to another question")
        return said.state

    def _refresh(self, name: FullName) -> None:
        self._due[name] = None
        # One that has just ended does not look at what is due any more.
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._ask_together())
            self._refreshing.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("names could not be asked for", exc_info=error)

    async def _ask_together(self) -> None:
        while self._due:
            await asyncio.sleep(_GATHER_SECONDS)
            names = list(islice(self._due, NAMES_TOGETHER_COUNT_MAX))
            for name in names:
                del self._due[name]
            question = self._question()
            try:
                async with asyncio.timeout(MANIFEST_SECONDS):
                    await self._load_together(names)
            except TimeoutError:
                await self._confirm(names, question)
            except StoreError as error:
                if error.code is Code.PEER_UNAVAILABLE:
                    await self._confirm(names, question)
                    continue
                # The old answers are good for a while; then each is asked for by itself.
                log.info("names were not asked for ahead of time", error=str(error))

    async def _look_up_all(self) -> None:
        """Look up what names in use mean now, since one of them may have been freed."""
        era: object = None
        while era is not self._known.era:
            era = self._known.era
            names = self._known.of_other_eras(self._clocks.since_boot() - _USED_MS)
            for start in range(0, len(names), NAMES_TOGETHER_COUNT_MAX):
                page = names[start : start + NAMES_TOGETHER_COUNT_MAX]
                try:
                    await self._look_up(page)
                except StoreError as error:
                    # They grow old; those in use are asked of manifest before they are too old.
                    log.info("names were not looked up", error=str(error))
                    return

    async def _look_up(self, names: Sequence[FullName]) -> None:
        question = self._question()
        found = await self._streams.find_many(names)
        self._take_up(names, found, question)

    async def _load_together(self, names: list[FullName]) -> None:
        question = self._question()
        answer = await self._manifest.call("POST", NAMES, body=encode_names_asked(names))
        self._take_up(names, decode_streams(answer.body), question)

    def _take_up(
        self, names: Sequence[FullName], found: Mapping[FullName, StreamId], question: Question
    ) -> None:
        """Keep what still has the name that it had. What became of another is told to the next
        caller who asks for it; a name that was asked for alone meanwhile has the newer answer, and
        keeps it."""
        for name in names:
            same = self._same(name, found.get(name))
            if same is None:
                self._known.forget(name, question)
            else:
                self._known.keep(name, same, question)

    def _same(self, name: FullName, stream_id: StreamId | None) -> NamedStream | None:
        """What is remembered of a name, if it is this stream."""
        known = self._known.remembered(name)
        return None if known is None or known.stream_id != stream_id else known

    def _question(self) -> Question:
        return self._known.ask(self._clocks.since_boot())

    async def _ask(self, name: FullName) -> NamedStream:
        """Ask until there is an answer to go by.

        Raises:
            NotFound, Unavailable
        """
        for attempt in range(_ASK_COUNT):
            # Then the question may be older than this request, and so than a stream that the
            # request is about. One that is joined later is not.
            joined = attempt == 0 and name in self._asking
            try:
                answer = await self._asking.join(name, lambda: self._load(name))
            except NotFound:
                if not joined:
                    raise
                continue
            if self._clocks.since_boot() - answer.question.true_at < self._keep_ms:
                return answer.stream
        raise Unavailable(
            "the manifest service answers too late",
            code=Code.PEER_UNAVAILABLE,
            retry_after_seconds=1,
        )

    async def _confirm(self, names: Sequence[FullName], question: Question) -> None:
        """Keep those names that mean the same streams as before, by the coordination store."""
        try:
            found = await self._streams.find_many(names)
            records = (await self._streams.load_many([*found.values()])).records
        except StoreError as error:
            # The old answers are good for a while; then each is asked for by itself.
            log.info("names could not be confirmed without manifest", error=str(error))
            return
        active = {one.stream_id for one in records if one.state is StreamState.ACTIVE}
        for name in names:
            same = self._same(name, found.get(name))
            if same is not None and same.stream_id in active:
                self._known.keep(name, same, question)

    async def _confirmed(self, name: FullName, question: Question) -> _Answer:
        """The stream that has a known name, without asking manifest.

        Raises:
            Unavailable: nothing was known of it, or it means another stream; outcome none.
        """
        if name in self._known:
            with suppress(TimeoutError):
                async with asyncio.timeout(CONFIRM_SECONDS):
                    await self._confirm([name], question)
        known = self._known.get(name, question.sent_at)
        if known is None or known.true_at < question.sent_at:
            raise Unavailable(
                "the manifest service does not answer",
                code=Code.PEER_UNAVAILABLE,
                retry_after_seconds=1,
            )
        return _Answer(known.meaning, known.question)

    async def _load(self, name: FullName) -> _Answer:
        question = self._question()
        seconds = MANIFEST_SECONDS if name in self._known else STRANGER_SECONDS
        try:
            async with asyncio.timeout(seconds):
                params = ByNameAsked(name.tenant).params()
                answer = await self._manifest.call("GET", by_name(name), params=params)
        except TimeoutError:
            return await self._confirmed(name, question)
        except Unavailable as error:
            if error.code is not Code.PEER_UNAVAILABLE:
                raise Unavailable(error.message, code=error.code, retry_after_seconds=1) from error
            return await self._confirmed(name, question)
        except Exception:
            self._known.forget(name)
            raise
        said = decode_stream(answer.body)
        if said.state is not StreamState.ACTIVE:
            self._known.forget(name)
            raise stream_not_found()
        stream = NamedStream(said.stream_id, said.profile)
        self._known.keep(name, stream, question)
        return _Answer(stream, question)

    async def aclose(self) -> None:
        await end_tasks(*(task for task in (self._refreshing, self._looking) if task is not None))
        await self._asking.aclose()
        await self._manifest.aclose()
