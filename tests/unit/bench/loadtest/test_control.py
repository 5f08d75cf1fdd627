"""Orders to the keeper of a stack, over a real socket."""

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.loadtest.control import Control, ControlServer
from bench.loadtest.place import LoadTestError


class _Over(BaseException):
    """Ends the server, as a signal does."""


@pytest.fixture
def control() -> Iterator[Control]:
    def end() -> None:
        raise _Over

    def serve(server: ControlServer) -> None:
        with pytest.raises(_Over):
            server.serve()

    # A path of pytest's own may be too long for a socket.
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "control"
        server = ControlServer(path, {"twice": lambda number: {"done": 2 * number}, "end": end})
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        yield Control(str(path))
        with pytest.raises(LoadTestError):
            asyncio.run(Control(str(path)).ask("end"))
        thread.join()
        server.close()


async def test_an_order_is_done_and_answered(control: Control) -> None:
    assert [await control.ask("twice", number=number) for number in (1, 2)] == [
        {"done": 2},
        {"done": 4},
    ]


@pytest.mark.parametrize("more", [{}, {"number": 1, "word": 2}])
async def test_what_cannot_be_done_is_said_and_the_next_order_is_done(
    control: Control, more: dict[str, int]
) -> None:
    with pytest.raises(LoadTestError, match="the stack could not do twice: TypeError"):
        await control.ask("twice", **more)
    with pytest.raises(LoadTestError, match="could not do dance"):
        await control.ask("dance")
    assert await control.ask("twice", number=4) == {"done": 8}


async def test_nobody_at_the_socket_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(LoadTestError, match="the stack does not answer"):
        await Control(str(tmp_path / "nobody")).ask("facts")
