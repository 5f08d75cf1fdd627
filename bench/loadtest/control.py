"""How a command talks to the keeper of a stack: one line of JSON each way, over a socket.

Orders are done one after the other, by the thread that started everything.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bench.loadtest.place import LoadTestError

LINE_BYTES_MAX: Final = 1 << 20
ORDER_SECONDS: Final = 30.0
"""For the line of an order to arrive."""
ANSWER_SECONDS: Final = 300.0
"""A busy machine takes long to end a process."""

Order = Callable[..., Any]


class ControlServer:
    """Takes orders at a socket."""

    def __init__(self, path: Path, orders: Mapping[str, Order]) -> None:
        self._orders = orders
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()

    def serve(self) -> None:
        """Do what is asked for, until something ends this program."""
        while True:
            connection, _ = self._listening.accept()
            connection.settimeout(ORDER_SECONDS)
            with connection, suppress(OSError), connection.makefile("rwb") as way:
                way.write(self.answer(way.readline(LINE_BYTES_MAX)))

    def close(self) -> None:
        self._listening.close()

    def answer(self, line: bytes) -> bytes:
        """What one order is answered with."""
        try:
            order = json.loads(line)
            said = self._orders[order.pop("order")](**order)
        except (AssertionError, KeyError, TypeError, ValueError, OSError) as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        return json.dumps(said).encode() + b"\n"


class Control:
    """Gives orders to a keeper."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def ask(self, order: str, **more: Any) -> Any:
        """Do something, and tell what was answered.

        Raises:
            LoadTestError: nobody is there, or it cannot be done.
        """
        line = json.dumps({"order": order, **more}).encode() + b"\n"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reader, writer = await asyncio.open_unix_connection(
                    self._path, limit=LINE_BYTES_MAX
                )
                try:
                    writer.write(line)
                    said = json.loads(await reader.readline())
                finally:
                    writer.close()
        except (OSError, ValueError) as error:
            raise LoadTestError(f"the stack does not answer: {error}") from None
        if isinstance(said, dict) and "error" in said:
            raise LoadTestError(f"the stack could not do {order}: {said['error']}")
        return said
