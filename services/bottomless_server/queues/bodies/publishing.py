"""What a publish brings: messages as JSON, or one message whose body is its value."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.limits import (
    DELAY_MS_MAX,
    FAN_OUT_MAX,
    HEADER_SIZE_MAX,
    MESSAGE_HEADER_COUNT_MAX,
    MESSAGE_TTL_MS_MAX,
    PRIORITY_MAX,
    PUBLISH_COUNT_MAX,
)
from bottomless.model.record import Content
from bottomless.model.unknown_member import unknown_member
from bottomless_server.core.faults import FAULT_COUNT_MAX, bad_header, invalid
from bottomless_server.core.idempotency_key import KEY_SIZE_MAX, check_idempotency_key, is_key
from bottomless_server.core.value_members import (
    VALUES,
    EncodeJson,
    Wrong,
    read_headers,
    read_text,
    read_value,
)
from bottomless_server.queues.bodies.members import Read, integer, queue_name
from bottomless_server.queues.calls import OutMessage
from bottomless_server.queues.core.origin import HEADERS as RESERVED

_MESSAGE: Final = "a message"
_WHAT: Final = "messages"
_HEADER_PREFIX: Final = "message-header-"
_RESERVED_SENTENCE: Final = (
    f"the names {', '.join(sorted(RESERVED))} are for what a message gets when it leaves a queue"
)
_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


class Published(NamedTuple):
    """What a body asks to be published."""

    queues: tuple[str, ...]
    """The queues that it names; none where the path names the one."""
    messages: tuple[OutMessage, ...]

    @property
    def has_dedup_ids(self) -> bool:
        return any(message.dedup_id is not None for message in self.messages)


def _dedup_id(value: Any, place: str) -> str:
    text = read_text(value, place)
    if not is_key(text):
        raise Wrong(place, f"must be 1 to {KEY_SIZE_MAX} printable ASCII characters")
    return text


_OPTIONAL: Final[Mapping[str, Read]] = {
    "priority": integer(0, PRIORITY_MAX),
    "delay_ms": integer(0, DELAY_MS_MAX),
    "ttl_ms": integer(1, MESSAGE_TTL_MS_MAX),
    "dedup_id": _dedup_id,
}
_KNOWN: Final = (*VALUES, "headers", *_OPTIONAL)
_MEMBERS: Final = frozenset(_KNOWN)


def read_messages(value: Any, encode_json: EncodeJson, size_max: int) -> Published:
    """Read the body of a publish to the queue that its path names.

    `value` is what strict parsing made of the body; `size_max` bounds the value of a message.

    Raises:
        InvalidRequest: `validation-failed` with a pointer to each fault, `number-out-of-range`,
            `record-too-large` or `batch-too-large`.
    """
    _require_members(value, ("messages",))
    return Published((), _messages(value, encode_json, size_max))


def read_fan_out(value: Any, encode_json: EncodeJson, size_max: int) -> Published:
    """Read the body of a publish to several queues, which it names.

    Raises:
        InvalidRequest: as `read_messages`.
    """
    _require_members(value, ("queues", "messages"))
    queues = read_queues(value)
    return Published(queues, _messages(value, encode_json, size_max))


def read_queues(value: Any) -> tuple[str, ...]:
    """The queues that the body of a fan-out names, each once.

    Raises:
        InvalidRequest: `validation-failed` with a pointer to each fault.
    """
    named = value.get("queues") if isinstance(value, dict) else None
    if not isinstance(named, list) or not 1 <= len(named) <= FAN_OUT_MAX:
        sentence = f"queues must be an array of 1 to {FAN_OUT_MAX} names"
        raise invalid([Fault(Code.VALIDATION_FAILED, sentence, "/queues")], "queues")
    faults: list[Fault] = []
    found: list[str] = []
    for number, text in enumerate(named):
        place = f"/queues/{number}"
        try:
            name = queue_name(text, place)
        except Wrong as wrong:
            faults.append(Fault(wrong.code, wrong.detail, wrong.place))
            continue
        if name in found:
            faults.append(Fault(Code.VALIDATION_FAILED, "the queue is named twice", place))
        found.append(name)
    if faults:
        raise invalid(faults, "queues")
    return tuple(found)


def read_raw(body: bytes, headers: Sequence[tuple[bytes, bytes]], size_max: int) -> Published:
    """One message whose value is the body; the rest comes in headers whose names are lowercase.

    Raises:
        InvalidRequest: `bad-header` or `record-too-large`.
    """
    if len(body) > size_max:
        raise message_too_large(size_max)
    asked = raw_headers(headers)
    return Published((), (OutMessage(body, Content.BYTES, **asked),))


def raw_headers(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, Any]:
    """What the headers of a raw publish say of its message.

    Raises:
        InvalidRequest: `bad-header`.
    """
    found: dict[str, Any] = {}
    own: list[tuple[str, bytes]] = []
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1")
        if not name.startswith("message-"):
            continue
        if name.startswith(_HEADER_PREFIX):
            own.append(_own_header(name, raw_value, [one for one, _ in own]))
            continue
        member = name.removeprefix("message-").replace("-", "_")
        if member not in ("priority", "delay_ms", "ttl_ms"):
            sentence = "is not known: Message-Priority, -Delay-Ms, -Ttl-Ms and -Header-… are"
            raise bad_header(name, sentence)
        if member in found:
            raise bad_header(name, "the header must not be given more than once")
        found[member] = _number(name, raw_value, _OPTIONAL[member])
    if len(own) > MESSAGE_HEADER_COUNT_MAX:
        sentence = f"a message must have at most {MESSAGE_HEADER_COUNT_MAX} headers"
        raise bad_header(_HEADER_PREFIX + "…", sentence)
    return {**found, "headers": tuple(own)} if own else found


def check_repeats(key: str | None, published: Published) -> None:
    """Refuse two ways at once to recognise a repeat, and a key that is none.

    Raises:
        InvalidRequest: `bad-header`.
    """
    if key is None:
        return
    check_idempotency_key(key)
    if published.has_dedup_ids:
        raise bad_header("idempotency-key", "must not stand beside a dedup_id of a message")


def message_too_large(size_max: int, pointer: str | None = None) -> InvalidRequest:
    """The answer to a message whose value is larger than this node takes."""
    sentence = "a message's value is larger than the limit"
    return InvalidRequest(
        sentence,
        code=Code.RECORD_TOO_LARGE,
        faults=[] if pointer is None else [Fault(Code.RECORD_TOO_LARGE, sentence, pointer)],
        facts={"limit_bytes": size_max},
    )


def _require_members(value: Any, known: tuple[str, ...]) -> None:
    if not isinstance(value, dict):
        raise _refused("the body must be an object", "")
    if unknown := [name for name in value if name not in known]:
        # The member's name is the sender's, so the pointer stops at its parent.
        raise invalid([Fault("unknown-member", unknown_member(unknown, known), "")], _WHAT)


def _messages(value: Any, encode_json: EncodeJson, size_max: int) -> tuple[OutMessage, ...]:
    given = value.get("messages")
    if not isinstance(given, list) or not given:
        raise _refused("messages must be an array of at least one message", "/messages")
    if len(given) > PUBLISH_COUNT_MAX:
        raise InvalidRequest(
            "the request holds more messages than one publish takes",
            code=Code.BATCH_TOO_LARGE,
            facts={"limit_messages": PUBLISH_COUNT_MAX},
        )
    messages: list[OutMessage] = []
    faults: list[Fault] = []
    for number, members in enumerate(given):
        try:
            messages.append(_message(number, members, encode_json, size_max))
        except Wrong as wrong:
            faults.append(Fault(wrong.code, wrong.detail, f"/messages/{number}{wrong.place}"))
            if len(faults) == FAULT_COUNT_MAX:
                break
    if faults:
        raise invalid(faults, _WHAT)
    return tuple(messages)


def _message(number: int, members: Any, encode_json: EncodeJson, size_max: int) -> OutMessage:
    if not isinstance(members, dict):
        raise Wrong("", "a message must be an object")
    if members.keys() - _MEMBERS:
        unknown = [name for name in members if name not in _MEMBERS]
        raise Wrong("", unknown_member(unknown, _KNOWN), "unknown-member")
    name, value, content = read_value(members, encode_json, "/messages", number, what=_MESSAGE)
    if len(value) > size_max:
        raise message_too_large(size_max, f"/messages/{number}/{name}")
    if len(members) == 1:
        return OutMessage(value, content)
    asked = {
        member: read(members[member], f"/{member}")
        for member, read in _OPTIONAL.items()
        if member in members
    }
    if "headers" in members:
        asked["headers"] = _headers(members["headers"])
    return OutMessage(value, content, **asked)


def _headers(value: Any) -> tuple[tuple[str, bytes], ...]:
    found = tuple(read_headers(value, what=_MESSAGE, count_max=MESSAGE_HEADER_COUNT_MAX))
    # Pointers stop at /headers: a header's name is the sender's.
    for name, _ in found:
        if not name:
            raise Wrong("/headers", "a header must have a name")
        if name in RESERVED:
            raise Wrong("/headers", _RESERVED_SENTENCE)
    return found


def _own_header(name: str, value: bytes, before: Sequence[str]) -> tuple[str, bytes]:
    own = name.removeprefix(_HEADER_PREFIX)
    if not own or own in before:
        raise bad_header(name, "must have a name after Message-Header-, and each name once")
    if own in RESERVED:
        raise bad_header(name, _RESERVED_SENTENCE)
    if not value.isascii():
        raise bad_header(name, "the header must be ASCII")
    if len(own) + len(value) > HEADER_SIZE_MAX:
        raise bad_header(name, f"must have at most {HEADER_SIZE_MAX} bytes with its name")
    return own, value


def _number(name: str, value: bytes, read: Read) -> Any:
    text = value.decode("latin-1")
    try:
        return read(int(text) if _INTEGER.fullmatch(text) else None, "")
    except Wrong as wrong:
        raise bad_header(name, wrong.detail) from None


def _refused(sentence: str, pointer: str) -> InvalidRequest:
    return invalid([Fault(Code.VALIDATION_FAILED, sentence, pointer)], _WHAT)
