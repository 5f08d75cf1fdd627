"""Whoever was told that a connection ends may send again what it has no answer to.

No test had a stop, a request that waits, and one after it in the midst of its body at once.
"""

import pytest
from support.waiting import eventually
from unit.runtime.test_runtime_lane import DAY, WAIT, Echo, HandLane, post
from unit.runtime.test_runtime_protocol import as_served, connected

from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.listener.listeners import Listener, bind_tcp
from bottomless_server.runtime.listener.protocol import BoundedProtocol


@pytest.mark.parametrize("lane", [None, HandLane()])
@as_served
async def test_a_request_that_waits_when_the_end_of_its_connection_is_said_is_never_begun(
    lane: HandLane | None,
) -> None:
    app = Echo()
    listener = Listener(wrap(app), bind_tcp("127.0.0.1", 0), bounds=DAY, lane=lane)
    await listener.open()
    try:
        async with connected(listener) as client:
            await client.send(WAIT)
            await app.asked.wait()
            [connection] = listener.connections
            assert isinstance(connection, BoundedProtocol)
            connection.shutdown()
            early = post(b"1") + post(b"abc", size=6)
            await client.send(early.replace(b"POST", b"PUT"))
            await eventually(lambda: len(connection.pipeline) == 2)
            app.go.set()
            rest = await client.end()
            assert rest.count(b"HTTP/1.1") == rest.count(b"connection: close") == 1
            assert app.count == 1
    finally:
        await listener.close()
