"""S3, or a store that speaks it, as a drive.

One object is one S3 object; its key is its S3 key below the prefix. S3 itself makes an
object appear whole or not at all, durably, before it answers; `If-None-Match: *` makes
it put only if absent, and our own CRC-32C goes along, which the store checks before it
stores. So after a crash at any step of a put there is the object or there is none, and
nothing else to see; objects in parts have their own list, in `s3_multipart.py`. Deleting
is one step for each key, in any order.

Not all that speaks S3 keeps this: `drives/probe.py` finds out before a start.
"""

import asyncio
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import Any, Final

from botocore.exceptions import ClientError

from bottomless.drives.base import (
    Body,
    DriveRefused,
    DriveUnavailable,
    Location,
    ObjectMissing,
)
from bottomless.drives.s3_answers import of_answer, status_of
from bottomless.errors import StoreError
from bottomless.formats.checks import crc32c
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.drives.checked_parts import checked_parts, size_of
from bottomless_server.drives.object_key import check_object_key
from bottomless_server.drives.s3_errors import lost, translated
from bottomless_server.drives.s3_in_place import GetsInPlace
from bottomless_server.drives.s3_listing import list_by_directory, list_by_key
from bottomless_server.drives.s3_multipart import put_in_parts, shown_crc
from bottomless_server.drives.s3_options import MIB, S3Options
from bottomless_server.drives.s3_requests import OpenClient, open_client
from bottomless_server.drives.s3_sent_source import SentSource

DELETE_COUNT: Final = 1000
"""What S3 allows in one call."""
CHECK_BYTES: Final = 8 * MIB
"""Bytes read at once where a store does not know a checksum."""
PRESIGNED_SECONDS_MAX: Final = 7 * 24 * 3600
"""What S3 allows."""
_CLOCK_KEY: Final = "_system/clock"
"""Need not exist: an answer that it does not has a date too."""


class S3Drive:
    """Objects below one prefix of one bucket. Connects at its first use."""

    def __init__(self, options: S3Options) -> None:
        self._options = options
        self._prefix = f"{options.prefix}/" if options.prefix else ""
        self._opening = asyncio.Lock()
        self._held = AsyncExitStack()
        self._open: OpenClient | None = None
        self.requests: Final[Counter[str]] = Counter()
        """Requests that were sent so far, by what a bill calls them."""
        self._in_place = GetsInPlace(options, self.requests)
        self._part_room = asyncio.Semaphore(options.part_count_max)
        self._closed = False

    @property
    def location(self) -> Location:
        options = self._options
        root = f"{options.bucket}/{options.prefix}" if options.prefix else options.bucket
        return Location("s3", root, options.endpoint, options.region, options.in_path)

    async def start(self) -> None:
        """Open the client now; otherwise the first call does.

        Raises:
            DriveRefused: it cannot be opened as it is set up.
        """
        await self._opened()

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        """Store an object. Parts are copied once where it is not put in parts of S3's."""
        check_object_key(object_key)
        place, size = self._place(object_key), size_of(body)
        checked = checked_parts(body, crc) if isinstance(body, Sequence) else body
        if size > self._options.multipart_bytes:
            client = (await self._opened()).client
            await put_in_parts(client, place, checked, crc, self._options, self._part_room)
        elif isinstance(checked, Sequence):
            await self._put_object(place, b"".join(checked), size, crc)
        else:
            sent = SentSource(checked, crc)
            with sent.judged():
                await self._put_object(place, sent, size, crc)

    async def _put_object(
        self, place: Mapping[str, str], body: "bytes | SentSource", size: int, crc: int
    ) -> None:
        async with self._attempt(size, puts=True) as client:
            await client.put_object(
                **place,
                Body=body,
                ContentLength=size,
                IfNoneMatch="*",
                ChecksumCRC32C=shown_crc(crc),
                **self._options.of_class,
            )

    async def get(
        self, object_key: str, start: int = 0, size: int | None = None
    ) -> bytes | memoryview:
        check_object_key(object_key)
        assert start >= 0
        assert size is None or size >= 0
        if size == 0:
            await self.head(object_key)
            return b""
        client, session = await self._opened()
        with translated():
            async with asyncio.timeout(self._options.seconds_for(size or 0)):
                found = await self._in_place.get(
                    session, client, self._prefix + object_key, start, size
                )
        return await self._get_by_library(object_key, start, size) if found is None else found

    async def _get_by_library(self, object_key: str, start: int, size: int | None) -> bytes:
        ranged = start > 0 or size is not None
        last = "" if size is None else start + size - 1
        wanted = {"Range": f"bytes={start}-{last}"} if ranged else {}
        async with self._attempt(size or 0) as client:
            try:
                reply = await client.get_object(**self._place(object_key), **wanted)
            except ClientError as error:
                if status_of(error) == 416:
                    return b""
                raise
            async with reply["Body"] as body:
                async with asyncio.timeout(self._options.seconds_for(reply["ContentLength"])):
                    data: bytes = await body.read()
        if len(data) != reply["ContentLength"]:
            raise lost(puts=False)
        if not ranged:
            return data
        return _part_of(data, reply.get("ContentRange"), start, size)

    async def head(self, object_key: str, *, checksum: bool = False) -> ObjectFacts:
        check_object_key(object_key)
        asked = {"ChecksumMode": "ENABLED"} if checksum else {}
        try:
            async with self._attempt() as client:
                reply = await client.head_object(**self._place(object_key), **asked)
        except ObjectMissing:
            # A HEAD has no body: an absent bucket looks like an absent object.
            await self.get(object_key, 0, 1)
            raise
        crc = None
        if checksum:
            crc = _crc_of(reply)
            if crc is None:
                crc = await self._read_crc(object_key, reply["ContentLength"])
        modified = int(reply["LastModified"].timestamp() * 1000)
        return ObjectFacts(object_key, reply["ContentLength"], modified, crc)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:
        """List objects; a key that is not ours is left out."""
        by_key = self._options.listed_by_key
        if by_key is None:
            by_key = self._options.endpoint is None
        listed = list_by_key if by_key else list_by_directory
        async for facts in listed(self._list_page, self._prefix, prefix, after):
            yield facts

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        for object_key in object_keys:
            check_object_key(object_key)
        failures: dict[str, StoreError] = {}
        for first in range(0, len(object_keys), DELETE_COUNT):
            batch = object_keys[first : first + DELETE_COUNT]
            try:
                failures.update(await self._delete_batch(batch))
            except StoreError as error:
                failures.update(dict.fromkeys(batch, error))
        return failures

    async def tidy(self, prefix: str) -> None:
        """There are no directories."""

    @property
    def has_own_clock(self) -> bool:
        return True

    async def clock(self) -> int:
        """Ask the store for its time: the date of an answer, whatever it answers."""
        async with self._attempt() as client:
            try:
                reply = await client.head_object(**self._place(_CLOCK_KEY))
            except ClientError as error:
                reply = error.response
            shown = reply["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
        try:
            return int(parsedate_to_datetime(shown).timestamp() * 1000)
        except (TypeError, ValueError) as error:
            raise DriveUnavailable("the object store does not date its answers") from error

    async def presigned_get(self, object_key: str, *, valid_seconds: int) -> str:
        """A URL with which anybody may read one object for a while, without credentials.

        Raises:
            DriveRefused, DriveUnavailable: there are no credentials to sign it with.
        """
        check_object_key(object_key)
        assert 0 < valid_seconds <= PRESIGNED_SECONDS_MAX
        async with self._attempt() as client:
            url: str = await client.generate_presigned_url(
                "get_object", Params=self._place(object_key), ExpiresIn=valid_seconds
            )
            return url

    async def aclose(self) -> None:
        """Close all connections; calls that are under way fail."""
        async with self._opening:
            self._closed = True
            self._open = None
            self._in_place.close()
            await self._held.aclose()

    async def _opened(self) -> OpenClient:
        # The lock: calls at the same time must not open two.
        async with self._opening:
            assert not self._closed, "the drive is closed"
            if self._open is None:
                with translated():
                    self._open = await self._held.enter_async_context(
                        open_client(self._options, self.requests)
                    )
            return self._open

    @asynccontextmanager
    async def _attempt(self, size: int = 0, *, puts: bool = False) -> AsyncIterator[Any]:
        """The client for one call that moves `size` bytes, in time and with our errors."""
        client = (await self._opened()).client
        with translated(puts=puts):
            async with asyncio.timeout(self._options.seconds_for(size)):
                yield client

    def _place(self, object_key: str) -> dict[str, str]:
        return {"Bucket": self._options.bucket, "Key": self._prefix + object_key}

    async def _list_page(self, **wanted: str) -> Mapping[str, Any]:
        async with self._attempt() as client:
            page: Mapping[str, Any] = await client.list_objects_v2(
                Bucket=self._options.bucket, MaxKeys=self._options.list_count, **wanted
            )
            return page

    async def _read_crc(self, object_key: str, size: int) -> int:
        crc = 0
        for start in range(0, size, CHECK_BYTES):
            piece = await self.get(object_key, start, min(CHECK_BYTES, size - start))
            if len(piece) != min(CHECK_BYTES, size - start):
                raise lost(puts=False)
            crc = crc32c(piece, crc)
        return crc

    async def _delete_batch(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        named = [{"Key": self._prefix + object_key} for object_key in object_keys]
        async with self._attempt() as client:
            reply = await client.delete_objects(
                Bucket=self._options.bucket, Delete={"Objects": named, "Quiet": True}
            )
        failures: dict[str, StoreError] = {}
        for item in reply.get("Errors", ()):
            # An error of one key has no status; only these two codes are the store's own fault.
            code = item.get("Code", "")
            own = code in ("InternalError", "ServiceUnavailable")
            error = of_answer(code, 500 if own else 400, puts=False)
            if not isinstance(error, ObjectMissing):
                failures[item["Key"].removeprefix(self._prefix)] = error
        return failures


def _part_of(data: bytes, content_range: str | None, start: int, size: int | None) -> bytes:
    """The range that was asked for, also from a store that sends the whole object for it."""
    if content_range is None:
        return data[start:] if size is None else data[start : start + size]
    if not content_range.startswith(f"bytes {start}-") or (size is not None and len(data) > size):
        raise DriveRefused("the object store sends other ranges than it is asked for")
    return data


def _crc_of(reply: dict[str, Any]) -> int | None:
    """The checksum of the whole object, if the store knows it: that of its parts is another."""
    shown = reply.get("ChecksumCRC32C")
    if not shown or "-" in shown or reply.get("ChecksumType") == "COMPOSITE":
        return None
    return int.from_bytes(b64decode(shown), "big")
