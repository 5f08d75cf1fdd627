"""A store is tried before anything relies on it: all of ours pass, liars are refused by name."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from support.s3 import CREDENTIALS, S3Server

from bottomless.drives.base import Body, Drive, DriveRefused
from bottomless.errors import StoreError
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.drives.probe import probe
from bottomless_server.drives.s3 import S3Drive
from contracts.conftest import s3_options


async def test_every_store_of_ours_passes_and_keeps_nothing_of_it(drive: Drive) -> None:
    await probe(drive)
    await probe(drive)

    assert [facts async for facts in drive.list()] == []


@asynccontextmanager
async def ignoring_preconditions(server: S3Server) -> AsyncIterator[S3Server]:
    """The same server behind a proxy that takes `If-None-Match` out of every request."""
    host, port = server.endpoint.removeprefix("http://").split(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection(host, int(port))
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = [line for line in head.split(b"\r\n") if not _taken_out(line)]
            # One request for each connection, so that every one has a head to look at.
            lines.insert(1, b"Connection: close")
            behind_writer.write(b"\r\n".join(lines))
            size = next(
                (int(line[15:]) for line in lines if line.lower().startswith(b"content-length:")), 0
            )
            behind_writer.write(await reader.readexactly(size))
            writer.write(await behind_reader.read())
            await writer.drain()
        finally:
            behind_writer.close()
            writer.close()

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield S3Server(f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    finally:
        proxy.close()
        await proxy.wait_closed()


def _taken_out(line: bytes) -> bool:
    return line.lower().startswith((b"if-none-match:", b"connection:"))


async def test_a_server_that_ignores_preconditions_is_refused_by_name(
    moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    options = s3_options(moto)
    async with ignoring_preconditions(moto) as liar:
        drive = S3Drive(replace(options, endpoint=liar.endpoint))
        with pytest.raises(DriveRefused, match="ignores If-None-Match") as raised:
            await probe(drive)
        assert not raised.value.retryable
        assert [facts async for facts in drive.list()] == []
        await drive.aclose()


class Overwriting(MemoryDrive):
    async def put(self, object_key: str, body: Body, crc: int) -> None:
        await self.delete([object_key])
        await super().put(object_key, body, crc)


class WithoutRanges(MemoryDrive):
    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:  # noqa: ARG002
        return await super().get(object_key)


class Forgetful(MemoryDrive):
    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:  # noqa: ARG002
        async for facts in super().list("nothing"):
            yield facts


class Keeping(MemoryDrive):
    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:  # noqa: ARG002
        return {}


@pytest.mark.parametrize(
    ("liar", "said"),
    [
        (Overwriting(), "ignores If-None-Match"),
        (WithoutRanges(), "ranges"),
        (Forgetful(), "list"),
        (Keeping(), "deleted"),
    ],
)
async def test_a_store_that_breaks_a_promise_is_refused_by_name(
    liar: MemoryDrive, said: str
) -> None:
    with pytest.raises(DriveRefused, match=said):
        await probe(liar)
