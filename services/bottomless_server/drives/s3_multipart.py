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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from bottomless.errors import StoreError
from bottomless.formats.checks import crc32c
from bottomless_server.drives.s3_errors import translated
from bottomless_server.drives.s3_options import S3Options

ABORT_SECONDS: Final = 10.0


def shown_crc(crc: int) -> str:
    """A CRC-32C as S3 writes it: base64 of its four bytes, the highest first."""
    return b64encode(crc.to_bytes(4, "big")).decode("ascii")


async def put_in_parts(
    client: Any,
    place: Mapping[str, str],
    views: Sequence[memoryview],
    crc: int,
    options: S3Options,
) -> None:
    """Put an object of more than one part, whose bytes are known to have this `crc`.

    Raises:
        As `Drive.put`.
    """
    with translated():
        async with asyncio.timeout(options.seconds_for(0)):
            upload = await client.create_multipart_upload(
                **place, ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT"
            )
    target = {**place, "UploadId": upload["UploadId"]}
    try:
        parts = await _send_parts(client, target, views, options)
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
    client: Any, target: Mapping[str, str], views: Sequence[memoryview], options: S3Options
) -> list[dict[str, object]]:
    async def send(number: int, piece: bytes) -> dict[str, object]:
        shown = shown_crc(crc32c(piece))
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
        for number, piece in enumerate(_pieces(views, options.part_bytes), 1):
            tasks.append(asyncio.create_task(send(number, piece)))
            running = await _left(running | {tasks[-1]}, options.part_count_max - 1)
        await _left(running, 0)
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _left(tasks: "set[asyncio.Task[Any]]", count: int) -> "set[asyncio.Task[Any]]":
    """Wait until at most so many go on; raises what one of the others has raised."""
    while len(tasks) > count:
        ended, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    return tasks


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
