"""Fenced reads: what a member of a consumer group reads ends when another one holds the stream.

    Group-Member, Group-Generation ──► Fence ──► asked of manifest, remembered for a second

Manifest is asked for all members together that are to be looked at at that moment, so who reads
costs no question of its own. Only that somebody may read is remembered, and from the moment at which
it was asked: so nobody reads more than a second after it was deposed, and who has just become the
holder is never refused for what was true before. An answer that is a second old when it comes counts for
nothing either: manifest may have stood still after it had looked. Pages are the same for all who read, so the
question comes before and after what they share, and is no part of it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from starlette.types import Scope

from bottomless.errors import (
    Code,
    Fault,
    InvalidRequest,
    StoreError,
    Unavailable,
    WrongOffset,
)
from bottomless.guards import guard
from bottomless.model.names import FullName, StreamId
from bottomless_server.protocol.group_members import (
    ASKED_COUNT_MAX,
    HELD,
    MemberOf,
    decode_held,
    encode_held_asked,
)
from bottomless_server.protocol.parameters import integer
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.reader.pages import Page
from bottomless_server.reader.streams import Streams
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.single_flight import SingleFlight
from bottomless_server.runtime.http.app import header

KEEP_MS: Final = 1_000
"""How long a member may read that was found to hold its stream."""
MEMBER_HEADER: Final = "group-member"
GENERATION_HEADER: Final = "group-generation"
_MEMBER_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_GENERATION = integer(1, 2**53 - 1)
_TRIES: Final = 5
"""Questions of one read whose answers come too late."""
_KNOWN_COUNT_MAX: Final = 20_000
"""Members remembered; what does not fit is asked again sooner."""

Pause = Callable[[float], Awaitable[None]]


class Claim(NamedTuple):
    """The member of a consumer group as which somebody reads, and its generation."""

    member_id: str
    generation: int


class _Said(NamedTuple):
    """One answer of manifest."""

    held: dict[MemberOf, int | None]
    """The generation with which each member holds its stream; None of one that does not."""
    asked_at: int


class Fences:
    """What is known of members of consumer groups, for all reads of this process."""

    def __init__(
        self,
        manifest: PeerPort,
        streams: Streams,
        elapsed: Callable[[], int],
        pause: Pause = asyncio.sleep,
    ) -> None:
        """`elapsed` is the time of a clock that never goes back, in ms."""
        self._manifest = manifest
        self._streams = streams
        self._elapsed = elapsed
        self.pause = pause
        self.refused_count = 0
        """Reads that were refused, or ended, since another member holds the stream."""
        self._active: dict[tuple[MemberOf, int], int] = {}
        """When those were asked for, by member and generation, who may read."""
        self._wanted: dict[MemberOf, None] = {}
        """The next question is about these."""
        self._asking: SingleFlight[None, _Said] = SingleFlight()

    def of(self, scope: Scope) -> "Fence | None":
        """The fence of a request; None if it is of no member.

        Raises:
            InvalidRequest: `bad-header`.
        """
        claim = read_claim(
            header(scope, MEMBER_HEADER.encode()), header(scope, GENERATION_HEADER.encode())
        )
        return None if claim is None else Fence(self, self._streams, claim)

    async def check(self, stream_id: StreamId, claim: Claim) -> None:
        """Let a member go on that holds its stream, or did a moment ago.

        Raises:
            WrongOffset: `not-active`.
            Unavailable: nobody can tell now.
        """
        member = MemberOf(stream_id, claim.member_id)
        if self.known_for(stream_id, claim) > 0:
            return
        for _ in range(_TRIES):
            said = await self._ask(member, claim.generation)
            try:
                require_active(said.held.get(member), claim)
            except WrongOffset:
                self.refused_count += 1
                raise
            if is_of_now(self._elapsed() - said.asked_at):
                return
        raise Unavailable("what says who holds the stream comes too late", retry_after_seconds=1)

    def known_for(self, stream_id: StreamId, claim: Claim) -> int:
        """Tell for how many ms more it is known that a member may read; 0 where it has to be asked for."""
        asked_at = self._active.get((MemberOf(stream_id, claim.member_id), claim.generation))
        return 0 if asked_at is None else max(0, asked_at + KEEP_MS - self._elapsed())

    async def aclose(self) -> None:
        """Ask nothing any more."""
        await self._asking.aclose()

    async def _ask(self, member: MemberOf, generation: int) -> _Said:
        """Ask with which generation a member holds its stream; anything but `generation` is what
        manifest says after this was called."""
        was_asked = None in self._asking
        while True:
            self._wanted[member] = None
            answered = await self._asking.join(None, self._ask_all)
            held = answered.held
            if member in held and not (was_asked and held[member] != generation):
                return answered
            # A question that was on its way before; the next one has this member.
            was_asked = False

    async def _ask_all(self) -> _Said:
        members = list(self._wanted)[:ASKED_COUNT_MAX]
        for member in members:
            del self._wanted[member]
        asked_at = self._elapsed()
        answer = await self._manifest.call("POST", HELD, body=encode_held_asked(members))
        found = dict(zip(members, decode_held(answer.body), strict=True))
        self._forget_old()
        for member, generation in found.items():
            if generation is not None:
                self._active[member, generation] = asked_at
        return _Said(found, asked_at)

    def _forget_old(self) -> None:
        if len(self._active) < _KNOWN_COUNT_MAX:
            return
        now = self._elapsed()
        self._active = {one: at for one, at in self._active.items() if now - at < KEEP_MS}
        if len(self._active) >= _KNOWN_COUNT_MAX:
            self._active = {}


class Fence:
    """The fence of one read."""

    def __init__(self, fences: Fences, streams: Streams, claim: Claim) -> None:
        self._fences = fences
        self._streams = streams
        self._claim = claim

    async def check(self, stream_id: StreamId) -> None:
        """Let the member go on, or raise what `Fences.check` raises."""
        await self._fences.check(stream_id, self._claim)

    async def page(self, name: FullName, read: Callable[[], Awaitable[Page]]) -> Page:
        """Read a page, which may wait for long: it ends within a second of the member's time.

        Raises:
            WrongOffset: `not-active`; and whatever `read` raises.
        """
        stream_id = (await self._streams.find(name)).stream.stream_id
        await self.check(stream_id)
        reading = asyncio.ensure_future(read())
        losing = asyncio.create_task(self.lost(stream_id))
        try:
            await asyncio.wait({reading, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise losing.result()
            page = reading.result()
        finally:
            await end_tasks(reading, losing)
        await self.check(page.stream.stream_id)
        return page

    async def lost(self, stream_id: StreamId) -> StoreError:
        """Return why the member may not read any more, when it is so.

        It looks when what is known of the member is over, and not a second after it looked last: another
        read may have asked for the same member in between. While manifest does not answer it is not so: nothing is given meanwhile, since whoever gives
        something asks before.
        """
        while True:
            known_ms = self._fences.known_for(stream_id, self._claim)
            await self._fences.pause((known_ms or KEEP_MS) / 1000)
            try:
                await self.check(stream_id)
            except StoreError as error:
                if not error.retryable:
                    return error


@guard("the age of what is said of a member of a group")
def is_of_now(age_ms: int) -> bool:
    """Whether an answer counts that has come just now, by how long ago it was asked for."""
    return age_ms < KEEP_MS


@guard("the generation in a fenced read")
def require_active(held: int | None, claim: Claim) -> None:
    """Let only who holds the stream with this generation read it; `held` is with which it does.

    Raises:
        WrongOffset: `not-active`.
    """
    if held == claim.generation:
        return
    raise WrongOffset(
        "this member does not hold the stream any more, or never did: stop, and ask for what it holds",
        code=Code.NOT_ACTIVE,
    )


def read_claim(member_id: str | None, generation: str | None) -> Claim | None:
    """Read as whom a request reads, by its two headers; None if it has neither.

    Raises:
        InvalidRequest: `bad-header`.
    """
    if member_id is None and generation is None:
        return None
    if member_id is None or not _MEMBER_ID.fullmatch(member_id):
        raise _bad_header(MEMBER_HEADER, "must be the id of a member, and come with its generation")
    try:
        return Claim(member_id, int(_GENERATION(generation or "")))
    except InvalidRequest:
        raise _bad_header(GENERATION_HEADER, "must be the member's generation") from None


def _bad_header(name: str, sentence: str) -> InvalidRequest:
    fault = Fault(Code.BAD_HEADER, sentence, header=name)
    return InvalidRequest(f"{name}: {sentence}", code=Code.BAD_HEADER, faults=[fault])
