"""The way from the name of a stream to what appends to it."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from starlette.types import Scope

from bottomless.errors import Code, NotFound, StoreError, Unavailable
from bottomless.guards import guard
from bottomless.model.config import Profile
from bottomless.model.names import FullName, StreamId
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.ingest.front.names import NamedStream, StreamNames
from bottomless_server.ingest.ports import Appender, Appenders
from bottomless_server.node.under_way import RequestsUnderWay

_BEGUN_WITH: Final = "bottomless.begun_with"


def note_begun_with(scope: Scope, stream_id: StreamId) -> None:
    """Remember for which stream a request was begun that goes the usual way from here on."""
    scope[_BEGUN_WITH] = stream_id


def begun_with(scope: Scope) -> StreamId | None:
    """The stream for which a request was begun, if somebody has looked at its name before."""
    found: StreamId | None = scope.get(_BEGUN_WITH)
    return found


class AppenderLookup:
    """Finds the appender of a stream by the stream's name.

    Each profile has its own `Appenders`; manifest tells the profile of a stream with its name.
    """

    def __init__(
        self,
        names: StreamNames,
        appenders: Mapping[Profile, Appenders],
        under_way: RequestsUnderWay,
    ) -> None:
        """`appenders` has the profiles that this node serves."""
        self._names = names
        self._appenders = appenders
        self._under_way = under_way

    async def find(self, name: FullName, at_head: StreamId | None = None) -> Appender:
        """The appender of a stream; `at_head` is the one that an earlier look at the name found.

        Raises:
            NotFound: no stream has this name, or another one than at first.
            OwnedElsewhere: another node has to be asked.
            StoreError: nobody can append to it here now; outcome none.
        """
        self._under_way.require_accepting()
        stream = await self._names.find(name)
        if at_head not in (None, stream.stream_id):
            raise stream_not_found()
        try:
            return await self._get(stream)
        except NotFound:
            if at_head is not None:
                raise
            # Deleted; the name may be another stream's by now.
            return await self._get(await self._names.find_other(name, stream))

    async def forget_owner(self, name: FullName) -> None:
        """Ask anew who owns a stream, since somebody takes another node for its owner than is remembered;
        where nobody says which stream has the name, nothing is forgotten."""
        with suppress(StoreError):
            stream = await self._names.find(name)
            if stream.profile in self._appenders:
                self._appenders[stream.profile].forget_elsewhere(stream.stream_id)

    async def _get(self, stream: NamedStream) -> Appender:
        appenders = self._appenders.get(stream.profile)
        if appenders is None:
            raise Unavailable(
                f"this node does not append to {stream.profile} streams",
                code=Code.NOT_OWNER,
                retry_after_seconds=1,
            )
        return await appenders.get(stream.stream_id)

    @guard("the name, looked at again when the body is there")
    async def require_same(self, name: FullName, appender: Appender) -> None:
        """Refuse what has come for a stream that lost its name since it was found.

        The body of a request may take a minute, and nobody may have told this node of the deletion.

        Raises:
            NotFound: the stream was deleted; nothing is stored, and who asks again finds the one
                that has its name now.
            Unavailable: manifest does not answer; outcome none.
        """
        if (await self._names.find(name)).stream_id != appender.stream_id:
            raise stream_not_found()

    def at_once(self, name: FullName) -> Appender | None:
        """The appender of a stream that takes appends here now, as far as that is known without a
        wait; None leaves it to `find`, also where that will refuse."""
        if not self._under_way.accepting:
            return None
        stream = self._names.at_once(name)
        if stream is None or stream.profile not in self._appenders:
            return None
        return self._appenders[stream.profile].at_once(stream.stream_id)

    @guard("the name, looked at again when the body is there, on the lane")
    def is_same_at_once(self, name: FullName, appender: Appender) -> bool:
        """Whether a stream still has its name, as far as that is known without a wait."""
        stream = self._names.at_once(name)
        return stream is not None and stream.stream_id == appender.stream_id
