"""Connections of this process to a server are counted until they are closed."""

import asyncio

from support.open_connections import all_closed, connection_count


async def test_a_connection_is_waited_for_that_is_closed_with_bytes_on_its_way() -> None:
    reads = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reads.wait()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        assert connection_count(port) == 0
        _, writer = await asyncio.open_connection(host, port)
        writer.write(bytes(32 << 20))
        writer.close()
        waiting = asyncio.create_task(all_closed(f"http://{host}:{port}"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert connection_count(port) == 1
        reads.set()
        await waiting
        assert connection_count(port) == 0
