"""A large object in parts, put if absent.

What a crash leaves behind at each step:

    1. upload created           an upload without parts; no object
    2. parts sent               parts that no key shows; no object
    3. completed                the object, whole: the store checks at this moment that the
                                key is absent

An upload that failed is aborted. One whose process died stays, invisible and paid for,
until the bucket's rule for incomplete uploads ends it (docs/settings.md, "Store URL").
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np

from bottomless.drives.base import Source
from bottomless.errors import StoreError
from bottomless.formats.checks import crc32c
from bottomless.formats.crc32c import combine
from bottomless_server.drives.checked_parts import BLOCK_SIZE, require_sum
from bottomless_server.drives.s3_errors import translated
from bottomless_server.drives.s3_options import S3Options

ABORT_SECONDS: Final = 10.0


class _Part(NamedTuple):
    data: bytes
    crc: int


def shown_crc(crc: int) -> str:
    """A CRC-32C as S3 writes it: base64 of its four bytes, the highest first."""
    return b64encode(crc.to_bytes(4, "big")).decode("ascii")


async def put_in_parts(
    client: Any,
    place: Mapping[str, str],
    body: Sequence[memoryview] | Source,
    crc: int,
    options: S3Options,
    room: asyncio.Semaphore,
) -> None:
    """Put an object of more than one part. The bytes of views are known to have this `crc`; those of a
    source are looked at on their way, and the upload is completed only where they have it.

    Each part has a place in the `room` from before it is read until it is sent. All objects share
    it, so that memory has one bound, however many are put at a time.

    Raises:
        As `Drive.put`.
    """
    with translated():
        async with asyncio.timeout(options.seconds_for(0)):
            upload = await client.create_multipart_upload(
                **place,
                ChecksumAlgorithm="CRC32C",
                ChecksumType="FULL_OBJECT",
                **options.of_class,
            )
    target = {**place, "UploadId": upload["UploadId"]}
    try:
        pieces = _checked_pieces(body, crc, options)
        parts = await _send_parts(client, target, pieces, options, room)
        with translated(puts=True):
            async with asyncio.timeout(options.seconds_for(0)):
                await client.complete_multipart_upload(
                    **target,
                    MultipartUpload={"Parts": parts},
                    ChecksumCRC32C=shown_crc(crc),
                    ChecksumType="FULL_OBJECT",
                    IfNoneMatch="*",
                )
    except BaseException:
        # Also after a lost reply: an object that was made stays, and one that was not
        # cannot be made any more by a completion that comes late.
        await _abort(client, target)
        raise


async def _send_parts(
    client: Any,
    target: Mapping[str, str],
    pieces: "AsyncIterator[_Part]",
    options: S3Options,
    room: asyncio.Semaphore,
) -> list[dict[str, object]]:
    async def send(number: int, piece: bytes, crc: int) -> dict[str, object]:
        shown = shown_crc(crc)
        with translated():
            async with asyncio.timeout(options.seconds_for(len(piece))):
                sent = await client.upload_part(
                    **target, PartNumber=number, Body=piece, ChecksumCRC32C=shown
                )
        return {"PartNumber": number, "ETag": sent["ETag"], "ChecksumCRC32C": shown}

    # Not a TaskGroup: that of Python 3.11 leaves the mark of a cancellation on its own task when
    # a part fails, and tells of the part when it is cancelled at that moment. Either way the
    # deadline of whoever puts again would not be one any more.
    tasks: list[asyncio.Task[dict[str, object]]] = []
    running: set[asyncio.Task[dict[str, object]]] = set()
    try:
        while (part := await _next_part(pieces, room)) is not None:
            tasks.append(asyncio.create_task(send(len(tasks) + 1, *part)))
            # Not within the task: one that is cancelled before it begins never comes there.
            tasks[-1].add_done_callback(lambda _: room.release())
            del part
            running = await _left(running | {tasks[-1]}, options.part_count_max - 1)
        await _left(running, 0)
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next_part(pieces: "AsyncIterator[_Part]", room: asyncio.Semaphore) -> "_Part | None":
    """The next part, which has a place in the room, or None after the last."""
    await room.acquire()
    try:
        part = await anext(pieces, None)
    except BaseException:
        room.release()
        raise
    if part is None:
        room.release()
    return part


async def _left(tasks: "set[asyncio.Task[Any]]", count: int) -> "set[asyncio.Task[Any]]":
    """Wait until at most so many go on; raises what one of the others has raised."""
    while len(tasks) > count:
        ended, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    return tasks


async def _checked_pieces(
    body: Sequence[memoryview] | Source, crc: int, options: S3Options
) -> "AsyncIterator[_Part]":
    """The parts of an object, each in memory of its own; it ends where all together have this sum.

    Raises:
        Corrupt: they have not.
    """
    if isinstance(body, Sequence):
        for joined in _pieces(body, options.part_bytes):
            yield _Part(joined, crc32c(joined))
        return
    found = 0
    for start in range(0, body.size, options.part_bytes):
        blocks, end, part_crc = [], min(start + options.part_bytes, body.size), 0
        for position in range(start, end, BLOCK_SIZE):
            block = np.empty(min(BLOCK_SIZE, end - position), dtype=np.uint8).data
            await body.read_into(position, block)
            part_crc = crc32c(block, part_crc)
            blocks.append(block)
        found = combine(found, part_crc, end - start)
        joined = b"".join(blocks)
        # Else they would be there as often as parts are under way.
        del blocks, block
        yield _Part(joined, part_crc)
        del joined
    require_sum(found, crc)


def _pieces(views: Sequence[memoryview], size: int) -> Iterator[bytes]:
    """The views joined and cut anew, every piece but the last of `size`."""
    held: list[memoryview] = []
    held_size = 0
    for view in views:
        rest = view
        while held_size + rest.nbytes >= size:
            taken = size - held_size
            yield b"".join([*held, rest[:taken]])
            rest = rest[taken:]
            held, held_size = [], 0
        if rest.nbytes:
            held.append(rest)
            held_size += rest.nbytes
    if held:
        yield b"".join(held)


async def _abort(client: Any, target: Mapping[str, str]) -> None:
    with suppress(StoreError), translated():
        async with asyncio.timeout(ABORT_SECONDS):
            await client.abort_multipart_upload(**target)
