"""Requests that wait are told when a process stops, instead of holding it up.

A long poll may wait half a minute for a record; a process that drains has no such time.
What the services themselves do not end in their drain is ended here, with an answer. A request that
may change something has until the listener ends what is left; then nobody knows what becomes of it.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bottomless.errors import Code, Outcome, Unavailable
from bottomless_server.runtime.http.app import request_id_of, send_problem


class InFlight:
    """The requests of one listener that have no answer yet."""

    def __init__(self, code: Code = Code.DRAINING) -> None:
        """`code` is what they are told at the end."""
        self._code = code
        self._waiting: set[asyncio.Task[object]] = set()

    def cut(self) -> None:
        """Answer 503 to all that only read."""
        for task in self._waiting:
            task.cancel()

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, its requests noted."""

        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            task = asyncio.current_task()
            assert task is not None, "the listener makes a task for each request"
            reads = scope["method"] in ("GET", "HEAD")
            begun = False

            async def send_noted(message: Message) -> None:
                nonlocal begun
                # From its first byte on an answer is worth its end.
                begun = True
                self._waiting.discard(task)
                await send(message)

            if reads:
                self._waiting.add(task)
            try:
                await app(scope, receive, send_noted)
            except asyncio.CancelledError:
                if begun:
                    raise
                task.uncancel()
                error = Unavailable(
                    "the server is about to stop",
                    code=self._code,
                    outcome=Outcome.NONE if reads else Outcome.UNKNOWN,
                    retry_after_seconds=1,
                )
                await send_problem(send, error, request_id_of(scope))
            finally:
                self._waiting.discard(task)

        return noted
