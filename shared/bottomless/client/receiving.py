"""Calls that take messages from a queue, and say what became of their work."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import orjson

from bottomless.client.address import queue_path
from bottomless.client.encoding import JSON
from bottomless.client.message import Message
from bottomless.client.transport import QueryValue
from bottomless.client.wire import Wire, members, number_in, understood
from bottomless.errors import Outcome

Delivered: TypeAlias = str | Message
"""A message that was received, or its receipt."""


class Settled(NamedTuple):
    """What became of the receipts of a request."""

    done: int
    """So many were good."""
    gone: list[str]
    """Receipts of messages that are no longer in the queue: what a repeated `ack` hears."""
    stale: list[str]
    """Receipts of messages that were delivered again since, and are somebody else's."""


class Peeked(NamedTuple):
    """Messages that were looked at."""

    messages: list[Message]
    after: int | None
    """What the next ones are asked for with; None where there are none."""


class ReceiveCalls(Wire):
    """The calls of `openapi/queues.yaml` of consumers.

    Each of them is sent again after an answer that was lost. Messages of a lost answer come again
    when their visibility is over.
    """

    async def receive(
        self,
        queue: str,
        *,
        limit: int = 10,
        max_wait_ms: int = 0,
        visibility_ms: int | None = None,
        max_bytes: int | None = None,
        retry_seconds: float | None = None,
    ) -> list[Message]:
        """Receive up to `limit` messages: the first ready ones, by priority and then in their order.

        They are nobody else's for `visibility_ms`, by default for as long as the queue says; what is
        not acknowledged by then is delivered again. Where none is ready it waits for `max_wait_ms`,
        and returns none. `max_bytes` bounds the bytes of all of them, of which one comes always.

        Raises:
            NotFound: `queue-not-found`.
            StoreError: the server's answer says why.
        """
        given = {"visibility_ms": visibility_ms, "max_bytes": max_bytes}
        asked = {"limit": limit, "max_wait_ms": max_wait_ms}
        asked |= {name: number for name, number in given.items() if number is not None}
        answer = await self._send(
            "POST",
            f"{queue_path(queue)}/receive",
            content=orjson.dumps(asked),
            type_sent=JSON,
            waits=True,
            repeatable=True,
            retry_seconds=retry_seconds,
        )
        value = members(answer, changes=True)
        with understood(Outcome.UNKNOWN):
            return [Message(one) for one in value["messages"]]

    async def ack(
        self,
        queue: str,
        messages: Delivered | Iterable[Delivered],
        *,
        retry_seconds: float | None = None,
    ) -> Settled:
        """Acknowledge messages, by themselves or by their receipts: they are gone for good.

        Raises:
            StoreError: the server's answer says why; what was not done comes again.
        """
        return await self._settle(queue, "ack", "acked", messages, {}, retry_seconds)

    async def nack(
        self,
        queue: str,
        messages: Delivered | Iterable[Delivered],
        *,
        delay_ms: int = 0,
        dead_letter: bool = False,
        retry_seconds: float | None = None,
    ) -> Settled:
        """Give messages back: they are ready again after `delay_ms`, or with `dead_letter` become
        dead letters at once, as they do when they were delivered as often as the queue allows.

        Raises:
            StoreError: the server's answer says why; they come again anyway when their visibility is over.
        """
        more = {"delay_ms": delay_ms, "dead_letter": dead_letter}
        return await self._settle(queue, "nack", "returned", messages, more, retry_seconds)

    async def extend(
        self,
        queue: str,
        messages: Delivered | Iterable[Delivered],
        *,
        visibility_ms: int | None = None,
        retry_seconds: float | None = None,
    ) -> Settled:
        """Keep messages for `visibility_ms` from now on, by default for as long as the queue says.

        Raises:
            StoreError: the server's answer says why.
        """
        more = {} if visibility_ms is None else {"visibility_ms": visibility_ms}
        return await self._settle(queue, "extend", "extended", messages, more, retry_seconds)

    async def peek(
        self,
        queue: str,
        *,
        after: int | None = None,
        limit: int = 10,
        state: str | None = None,
    ) -> Peeked:
        """Look at messages in the order of their sequences; nothing is taken.

        `after` is the sequence of the last message that was seen; `state` is `ready`, `in-flight`,
        `delayed` or `damaged`.
        """
        query: dict[str, QueryValue] = {"limit": limit}
        if after is not None:
            query["after"] = after
        if state is not None:
            query["state"] = state
        value = members(await self._send("GET", f"{queue_path(queue)}/messages", query))
        with understood():
            next_after = None if value["after"] is None else number_in(value, "after")
            return Peeked([Message(one) for one in value["messages"]], next_after)

    async def _settle(
        self,
        queue: str,
        what: str,
        member: str,
        messages: Delivered | Iterable[Delivered],
        more: Mapping[str, Any],
        retry_seconds: float | None,
    ) -> Settled:
        answer = await self._send(
            "POST",
            f"{queue_path(queue)}/{what}",
            content=orjson.dumps({"receipts": _receipts(messages), **more}),
            type_sent=JSON,
            repeatable=True,
            retry_seconds=retry_seconds,
        )
        value = members(answer, changes=True)
        with understood(Outcome.UNKNOWN):
            return Settled(number_in(value, member), list(value["gone"]), list(value["stale"]))


def _receipts(messages: Delivered | Iterable[Delivered]) -> list[str]:
    several = [messages] if isinstance(messages, str | Message) else messages
    return [one.receipt if isinstance(one, Message) else one for one in several]
