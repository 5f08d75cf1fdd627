"""A drive at the far end of a wire. Where nothing befalls its calls it is the drive behind it:
it passes the same contract tests."""

from collections.abc import AsyncIterator, Sequence

from bottomless.drives.base import (
    Body,
    Drive,
    DriveAmbiguous,
    DriveUnavailable,
    Location,
)
from bottomless.errors import StoreError
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.drives.checked_parts import parts_in_memory
from bottomless_server.drives.object_key import check_object_key
from support.wire import Lost, Wire


class FaultDrive:
    """What is lost on the way is raised as a real drive does: unavailable where nothing can have
    happened, ambiguous where it can, also later."""

    def __init__(self, inner: Drive, wire: Wire) -> None:
        self._inner = inner
        self._wire = wire

    @property
    def location(self) -> Location:
        return self._inner.location

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        check_object_key(object_key)
        # As they are now: the caller may use its memory for something else while this is late.
        data = [bytes(part) for part in await parts_in_memory(body)]
        try:
            await self._wire.carry("drive.put", lambda: self._inner.put(object_key, data, crc))
        except Lost as lost:
            if lost.may_have_happened:
                raise DriveAmbiguous("the reply of the store was lost") from lost
            raise _away() from lost

    async def get(
        self, object_key: str, start: int = 0, size: int | None = None
    ) -> bytes | memoryview:
        check_object_key(object_key)
        try:
            return await self._wire.carry(
                "drive.get", lambda: self._inner.get(object_key, start, size)
            )
        except Lost as lost:
            raise _away() from lost

    async def head(self, object_key: str, *, checksum: bool = False) -> ObjectFacts:
        check_object_key(object_key)
        try:
            return await self._wire.carry(
                "drive.head", lambda: self._inner.head(object_key, checksum=checksum)
            )
        except Lost as lost:
            raise _away() from lost

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:
        found = self._inner.list(prefix, after)

        async def one() -> ObjectFacts | None:
            return await anext(found, None)

        while True:
            try:
                facts = await self._wire.carry("drive.list", one)
            except Lost as lost:
                raise _away() from lost
            if facts is None:
                return
            yield facts

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        for object_key in object_keys:
            check_object_key(object_key)
        keys = list(object_keys)
        try:
            return await self._wire.carry("drive.delete", lambda: self._inner.delete(keys))
        except Lost as lost:
            if lost.may_have_happened:
                return {key: DriveAmbiguous("the reply of the store was lost") for key in keys}
            return {key: _away() for key in keys}

    async def tidy(self, prefix: str) -> None:
        try:
            await self._wire.carry("drive.tidy", lambda: self._inner.tidy(prefix))
        except Lost as lost:
            raise _away() from lost

    @property
    def has_own_clock(self) -> bool:
        return self._inner.has_own_clock

    async def clock(self) -> int:
        try:
            return await self._wire.carry("drive.clock", self._inner.clock)
        except Lost as lost:
            raise _away() from lost

    async def aclose(self) -> None:
        await self._inner.aclose()


def _away() -> DriveUnavailable:
    return DriveUnavailable("the store does not answer")
