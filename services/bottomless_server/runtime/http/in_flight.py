"""Reads that wait are told when a process stops, instead of holding it up.

A long poll may wait half a minute for a record; a process that drains has no such time.
What the services themselves do not end in their drain is ended here, with an answer.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bottomless.errors import Code, Unavailable
from bottomless_server.runtime.http.app import request_id_of, send_problem


class InFlight:
    """The reads of one listener that have no answer yet."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[object]] = set()
        self._cut: set[asyncio.Task[object]] = set()

    def cut(self) -> None:
        """Answer 503 `draining` to all of them."""
        for task in self._waiting:
            self._cut.add(task)
            task.cancel()

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, its reads noted."""

        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            task = asyncio.current_task()
            if task is None or scope["method"] not in ("GET", "HEAD"):
                await app(scope, receive, send)
                return

            async def send_noted(message: Message) -> None:
                # From its first byte on an answer is worth its end.
                self._waiting.discard(task)
                await send(message)

            self._waiting.add(task)
            try:
                await app(scope, receive, send_noted)
            except asyncio.CancelledError:
                if task not in self._cut:
                    raise
                task.uncancel()
                error = Unavailable(
                    "the server is about to stop", code=Code.DRAINING, retry_after_seconds=1
                )
                await send_problem(send, error, request_id_of(scope))
            finally:
                self._waiting.discard(task)
                self._cut.discard(task)

        return noted
