"""Calls that publish messages to queues: one request is stored whole or not at all.

Each request carries a key of its own, or what its messages bring: so it is sent again where its answer
was lost, and is stored once.
"""

import secrets
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from bottomless.client.address import check_queue, queue_path
from bottomless.client.encoding import JSON, OCTETS, messages_body
from bottomless.client.wire import Wire, members, number_in, understood
from bottomless.errors import Outcome

NewMessage: TypeAlias = Mapping[str, Any] | str | bytes
"""A message in its JSON form, or text or bytes that are its body."""

_KEY_SIZE: Final = 16
"""Random bytes of a key that is made up."""


class Published(NamedTuple):
    """What became of one message of a publish."""

    message_id: str
    sequence: int
    """The number of the message in its queue."""
    duplicate: bool
    """It was stored before, and is perhaps gone."""


class PublishCalls(Wire):
    """The calls of `openapi/queues.yaml` that publish."""

    async def publish(
        self, queue: str, messages: Iterable[NewMessage], *, idempotency_key: str | None = None
    ) -> list[Published]:
        """Publish messages to a queue, all of them or none; they are synced to disk then.

        A message is text, bytes, or a dict with the members that the API has: one of `value`, `json`
        and `value_base64`, and `headers`, `priority`, `delay_ms`, `ttl_ms`, `dedup_id`. A `value` and
        headers may be bytes there, as `value` and `headers` of a message that was received are.

        Without an `idempotency_key` one is made up, so that the request is stored once however often
        it had to be sent, for as long as the queue remembers (`dedup_ms`). Messages that have a
        `dedup_id` go without: where not all of them do, the request is sent again only if nothing
        was stored for certain.

        Raises:
            Overloaded: `queue-full`, or another bound refuses them: nothing was stored.
            InvalidRequest: a message has no JSON form, or is not accepted; `idempotency-mismatch`;
                `record-too-large` or `batch-too-large`: the queue has no room for them when it is empty.
            TypeError: a message is none of these, or `messages` is one and no list of them.
            StoreError: the server's answer says why; `outcome` says whether it may be stored.
        """
        shaped = _shaped(messages)
        value = await self._publish(
            f"{queue_path(queue)}/messages",
            messages_body(shaped, {}),
            JSON,
            *_told_apart(shaped, idempotency_key),
        )
        with understood(Outcome.UNKNOWN):
            return _published(value)

    async def publish_to(
        self,
        queues: Sequence[str],
        messages: Iterable[NewMessage],
        *,
        idempotency_key: str | None = None,
    ) -> dict[str, list[Published]]:
        """Publish messages to several queues, all of them in all of the queues or none in any.

        Their bytes are kept once. Messages and key are as for `publish`; returns what became of them
        by the name of the queue.

        Raises:
            Overloaded: `queue-full`, and which queue: nothing was stored in any.
            NotFound: `queue-not-found`, and which.
            StoreError: the server's answer says why; `outcome` says whether it may be stored.
        """
        shaped = _shaped(messages)
        value = await self._publish(
            "/v1/publish",
            messages_body(shaped, {"queues": _checked(queues)}),
            JSON,
            *_told_apart(shaped, idempotency_key),
        )
        with understood(Outcome.UNKNOWN):
            return {one["queue"]: _published(one) for one in value["queues"]}

    async def publish_raw(
        self,
        queue: str,
        value: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
        idempotency_key: str | None = None,
    ) -> Published:
        """Publish one message whose body is these bytes, as they are.

        `headers` are those of the message; their names and texts must be ASCII here.

        Raises:
            StoreError: the server's answer says why; `outcome` says whether it may be stored.
        """
        given = {"Priority": priority, "Delay-Ms": delay_ms, "Ttl-Ms": ttl_ms}
        named = {f"Message-{name}": str(n) for name, n in given.items() if n is not None}
        named |= {f"Message-Header-{name}": text for name, text in (headers or {}).items()}
        key = _made_up() if idempotency_key is None else idempotency_key
        path = f"{queue_path(queue)}/messages"
        told = await self._publish(path, value, OCTETS, key, True, named)
        with understood(Outcome.UNKNOWN):
            return _published(told)[0]

    async def _publish(
        self,
        path: str,
        body: bytes,
        media_type: str,
        key: str | None,
        repeatable: bool,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        named = dict(headers or {})
        if key is not None:
            named["Idempotency-Key"] = key
        answer = await self._send(
            "POST",
            path,
            content=body,
            type_sent=media_type,
            headers=named,
            bulk=True,
            repeatable=repeatable,
        )
        return members(answer, changes=True)


def _shaped(messages: Iterable[NewMessage]) -> list[Mapping[str, Any]]:
    if isinstance(messages, str | bytes | Mapping):
        # Its letters, or the names of its members, would become messages.
        raise TypeError("messages must be a list of them, not one")
    return [_message(one) for one in messages]


def _message(given: NewMessage) -> Mapping[str, Any]:
    match given:
        case str():
            return {"value": given}
        case bytes():
            return {"value_base64": _base64(given)}
        case Mapping():
            return _with_base64(given)
    raise TypeError(f"a message must be a str, bytes or a dict, not {type(given).__name__}")


def _with_base64(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Put base64 where JSON has no bytes."""
    shaped = dict(given)
    if isinstance(value := shaped.get("value"), bytes):
        del shaped["value"]
        shaped["value_base64"] = _base64(value)
    if isinstance(headers := shaped.get("headers"), Mapping):
        shaped["headers"] = {
            name: {"base64": _base64(header)} if isinstance(header, bytes) else header
            for name, header in headers.items()
        }
    return shaped


def _base64(value: bytes) -> str:
    return b64encode(value).decode("ascii")


def _checked(queues: Sequence[str]) -> list[str]:
    if isinstance(queues, str):
        raise TypeError("queues must be a list of names, not one")
    return [check_queue(queue) for queue in queues]


def _told_apart(messages: Sequence[Mapping[str, Any]], key: str | None) -> tuple[str | None, bool]:
    """The key of a request, and whether its repeat is the same."""
    own = sum("dedup_id" in one for one in messages)
    if key is None and own:
        return None, own == len(messages)
    return _made_up() if key is None else key, True


def _made_up() -> str:
    return secrets.token_hex(_KEY_SIZE)


def _published(value: Mapping[str, Any]) -> list[Published]:
    """Read what became of the messages for one queue, inside of `understood`."""
    return [
        Published(one["message_id"], number_in(one, "sequence"), one["duplicate"])
        for one in value["messages"]
    ]
