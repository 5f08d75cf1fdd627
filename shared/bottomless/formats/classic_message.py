"""Messages of classic queues: terms of Erlang as RabbitMQ 3.10 to 3.13 stored them. Only read.

    {basic_message, {resource, vhost, exchange, name}, [key ...], content, id, persistent}
    {mc, mc_amqpl, content, #{x => name, rk => [key ...], ...}}                          3.13 has these too
    content: {content, 60, properties, their bytes, rabbit_framing_amqp_0_9_1, [fragment ...]}

Of the properties and their bytes one may be `none`, with the bytes perhaps the protocol too (a dead
letter is so); the fragments of the body stand with the last one
first. Whatever has another shape is `Corrupt` and says which: nobody guesses what it means. What
becomes of a message is in the table of docs/how-to/leave-rabbitmq-queues.md.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple

import orjson

from bottomless.formats import amqp
from bottomless.formats.amqp_properties import PROPERTIES, Field, Table, decode_properties
from bottomless.formats.amqp_record import raw_of
from bottomless.formats.checks import check, corrupt
from bottomless.formats.erlang_term import Atom, Pairs, Term, decode_term
from bottomless.model.limits import PRIORITY_MAX
from bottomless.model.queue import QueueMessage, QueuePlace
from bottomless.model.record import Content

PREFIX: Final = "amqp-"
"""What begins the names of headers that are made of a message's properties."""
UNNAMED: Final = "amqp-unnamed"
"""The header that is made of one without a name."""
_WHAT: Final = "message of RabbitMQ"
_FRAMING: Final = Atom("rabbit_framing_amqp_0_9_1")
_NONE: Final = Atom("none")
_UNDEFINED: Final = Atom("undefined")
_INTEGER_MIN: Final = -(2**63)
_INTEGER_MAX: Final = 2**64 - 1
_SECONDS: Final = 1000


class ClassicMessage(NamedTuple):
    """A message as its broker would deliver it."""

    exchange: str
    routing_key: str
    """The first one."""
    properties: dict[str, Field]
    headers: Table
    value: bytes


def decode_classic_message(term: bytes | memoryview) -> ClassicMessage:
    """Read the term of a message.

    Raises:
        Corrupt: it is no term, or none of a message of AMQP 0-9-1.
    """
    # A broker that measures a term before it writes it may leave zeros after it.
    match decode_term(term, padded=True):
        case (Atom("basic_message"), exchange, keys, content, bytes(), Atom("true" | "false")):
            return _message(_exchange(exchange), keys, content, {})
        case (Atom("mc"), Atom("mc_amqpl"), content, Pairs(items)):
            known = dict(_hashable(items))
            name = known.get(Atom("x"), b"")
            check(_WHAT, isinstance(name, bytes), "its exchange is no name")
            return _message(name, known.get(Atom("rk"), []), content, _annotations(items))
        case (Atom("mc"), Atom(protocol), *_):
            raise corrupt(_WHAT, f"it is a container of {protocol[:40]}, not of AMQP 0-9-1")
        case (Atom(name), *_):
            raise corrupt(_WHAT, f"it is a {name[:40]} of another shape")
    raise corrupt(_WHAT, "it is a term of another kind")


def _hashable(items: Sequence[tuple[Term, Term]]) -> list[tuple[Atom, Term]]:
    return [(key, value) for key, value in items if isinstance(key, Atom)]


def _annotations(items: Sequence[tuple[Term, Term]]) -> Table:
    """Headers that a broker adds when it delivers a message: those with a name and one value."""
    found: Table = {}
    for key, value in items:
        if isinstance(key, bytes) and isinstance(value, bytes | int | Atom):
            raw = value.name if isinstance(value, Atom) else value
            found[_text(key)] = _string(raw) if isinstance(raw, bytes) else raw
    return found


def _exchange(term: Term) -> Term:
    match term:
        case (Atom("resource"), bytes(), Atom("exchange"), name):
            return name
    raise corrupt(_WHAT, "its exchange has another shape")


def _message(exchange: Term, keys: Term, content: Term, added: Table) -> ClassicMessage:
    check(_WHAT, isinstance(exchange, bytes), "its exchange is no name")
    check(_WHAT, isinstance(keys, list), "its routing keys are no list")
    assert isinstance(exchange, bytes)
    assert isinstance(keys, list)
    key = keys[0] if keys else b""
    check(_WHAT, isinstance(key, bytes), "its routing key is no name")
    assert isinstance(key, bytes)
    match content:
        case (Atom("content"), 60, properties, raw, framing, list(fragments)):
            # A broker that changed the properties keeps them decoded, and says nothing of a protocol.
            named = framing == _FRAMING or (framing == _NONE and raw == _NONE)
            check(_WHAT, named, "it is of another protocol")
        case _:
            raise corrupt(_WHAT, "its content has another shape")
    found = _properties(properties, raw)
    parts = [part for part in fragments if isinstance(part, bytes)]
    check(_WHAT, len(parts) == len(fragments), "a fragment of its body is not bytes")
    headers = found.pop("headers", None)
    table = headers if isinstance(headers, dict) else {}
    return ClassicMessage(
        _text(exchange), _text(key), found, {**added, **table}, b"".join(reversed(parts))
    )


def _properties(decoded: Term, raw: Term) -> dict[str, Field]:
    if isinstance(raw, bytes):
        return decode_properties(raw)
    check(_WHAT, raw == _NONE, "its properties have another shape")
    match decoded:
        case (Atom("P_basic"), *values) if len(values) == len(PROPERTIES):
            pairs = zip(PROPERTIES, values, strict=True)
            return {name: _property(name, value) for name, value in pairs if value != _UNDEFINED}
    raise corrupt(_WHAT, "its properties have another shape")


def _property(name: str, value: Term) -> Field:
    if name == "headers":
        return _table(value)
    if name == "timestamp":
        return _of_kind("timestamp", value)
    match value:
        case bytes():
            return _text(value)
        case int():
            return _integer(value)
    raise corrupt(_WHAT, f"its {name} has another shape")


def _table(term: Term) -> Table:
    check(_WHAT, isinstance(term, list), "a table has another shape")
    assert isinstance(term, list)
    found: Table = {}
    for item in term:
        match item:
            case (bytes(name), Atom(kind), value):
                found[_text(name)] = _of_kind(kind, value)
            case _:
                raise corrupt(_WHAT, "an entry of a table has another shape")
    return found


def _of_kind(kind: str, value: Term) -> Field:
    match kind, value:
        case "longstr", bytes():
            return _string(value)
        case "binary", bytes():
            return value
        case "bool", Atom("true" | "false"):
            return value == Atom("true")
        case "void", _:
            return None
        case "timestamp", int():
            return amqp.Timestamp(_integer(value) * _SECONDS)
        case "decimal", (int(scale), int(number)) if 0 <= scale < 256:
            return Decimal(_integer(number)).scaleb(-scale)
        case "float" | "double", float() | int():
            return float(value) if isinstance(value, float) else _integer(value)
        case "table", _:
            return _table(value)
        case "array", list():
            return [_item(one) for one in value]
        case _, int() if kind in _INTEGERS:
            return _integer(value)
    raise corrupt(_WHAT, f"a value of kind {kind[:40]} has another shape")


_INTEGERS: Final = frozenset(
    {"signedint", "long", "short", "byte", "unsignedbyte", "unsignedshort", "unsignedint"}
)


def _item(term: Term) -> Field:
    match term:
        case (Atom(kind), value):
            return _of_kind(kind, value)
    raise corrupt(_WHAT, "an item of an array has another shape")


def _integer(value: int) -> int:
    check(_WHAT, _INTEGER_MIN <= value <= _INTEGER_MAX, "an integer is too large")
    return value


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise corrupt(_WHAT, "a name is not UTF-8") from error


def _string(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def queue_message(
    message: ClassicMessage,
    queues: tuple[QueuePlace, ...],
    *,
    published_at: int,
    expires_at: int | None,
    priority: int,
) -> QueueMessage:
    """Make the message of work queues that becomes of one of a broker."""
    return QueueMessage(
        content=_content(message),
        priority=min(priority, PRIORITY_MAX),
        published_at=published_at,
        expires_at=expires_at,
        queues=queues,
        headers=tuple(_headers(message).items()),
        value=message.value,
    )


def _headers(message: ClassicMessage) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    # A property counts where a header of the application has its name.
    for name, value in message.headers.items():
        _put(found, name or UNNAMED, value)
    for name, value in message.properties.items():
        _put(found, PREFIX + name, value)
    found[PREFIX + "exchange"] = message.exchange.encode()
    found[PREFIX + "routing-key"] = message.routing_key.encode()
    return found


def _put(headers: dict[str, bytes], name: str, value: Field) -> None:
    raw = raw_of(_value(value))
    if raw is not None:
        headers[name] = raw


def _value(field: Field) -> amqp.Value:
    match field:
        case dict():
            return amqp.Pairs([(name, _value(one)) for name, one in field.items()])
        case list():
            return [_value(one) for one in field]
        case Decimal():
            return str(field)
    return field


def _content(message: ClassicMessage) -> Content:
    """What its content type says, if that is true."""
    said = message.properties.get("content-type")
    if not isinstance(said, str):
        return Content.BYTES
    kind = said.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return Content.JSON if _is_json(message.value) else Content.BYTES
    return Content.TEXT if kind.startswith("text/") and _is_text(message.value) else Content.BYTES


def _is_json(value: bytes) -> bool:
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
