"""The forms that an append comes in: what its headers say, and how its body is read.

On the record's path: after append_requests.py, before records/intake.py.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from starlette.types import Scope

from bottomless.model.limits import (
    BINARY_BODY_SIZE_MAX,
    DECOMPRESSED_SIZE_MAX,
    JSON_BODY_SIZE_MAX,
    KIB,
)
from bottomless.model.record import Content
from bottomless_server.core.faults import bad_header
from bottomless_server.ingest.records.conditions import NO_CONDITIONS, Conditions, read_conditions
from bottomless_server.ingest.records.frames import is_plain
from bottomless_server.ingest.records.intake import (
    Append,
    check_headers,
    take_arrow,
    take_frames,
    take_items,
    take_json,
    take_lines,
    take_raw,
    take_value,
)
from bottomless_server.ingest.records.json_pointer import parse_pointer
from bottomless_server.ingest.records.json_values import Within, split_lines
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import (
    any_content_type,
    bad_parameter,
    boolean,
    choice,
    content_encoding,
    content_type,
    encode_json,
    header,
    negotiate,
    parse_json,
    parse_json_lines,
    parse_query,
)
from bottomless_server.runtime.http.encodings import ENCODINGS

JSON: Final = "application/json"
RAW: Final = "application/octet-stream"
ARROW: Final = "application/vnd.apache.arrow.stream"
FRAMES: Final = "application/vnd.bottomless.batches"
STAGED: Final = "application/vnd.bottomless.staged+json"
"""Not records but the ids of batches that were staged before."""
LINES: Final = "application/x-ndjson"
ACCEPTED: Final = (JSON, RAW, ARROW, FRAMES, STAGED, LINES)
ACCEPTED_BY_SUPERS: Final = (JSON, RAW, ARROW, FRAMES, LINES)
"""Staged batches lie at the owner of one stream."""
_RECORD_FORMS: Final = (ARROW, FRAMES, STAGED, LINES)
"""Forms that are records by themselves, and never one value."""
_JSON_FORMS: Final = (JSON, STAGED, LINES)
_JSON_SUFFIX: Final = "+json"
_TEXTS: Final = "text/"

_QUERY: Final = {
    "as": choice("value"),
    "key": parse_pointer,
    "key_optional": boolean,
    "event_time": parse_pointer,
    "event_time_optional": boolean,
}
_OPTIONAL: Final = (("key_optional", "key"), ("event_time_optional", "event_time"))

_INLINE_JSON_SIZE: Final = 64 * KIB
INLINE_SIZE: Final = 128 * KIB
"""Bodies above are read in a thread, since the loop serves everybody: some tenths of a
millisecond each. Below, to go there and back would cost more."""

_OF_RAW: Final = frozenset({b"stream-key", b"stream-filter-value"})
CONDITION_HEADERS: Final = frozenset(
    {
        b"producer-id",
        b"producer-epoch",
        b"producer-seq",
        b"producer-start",
        b"txn-number",
        b"idempotency-key",
        b"stream-expected-offset",
    }
)


class Form(NamedTuple):
    """What an append's headers say of it."""

    media_type: str
    encoding: str | None
    conditions: Conditions
    declared_size: int | None
    as_value: bool = False
    """Whether the whole body is one record's value, whatever its media type."""
    within: Within | None = None
    """What the query says of where a record's key and time are; None where it says nothing."""

    @property
    def is_json(self) -> bool:
        if self.media_type in _JSON_FORMS:
            return True
        return self.as_value and self.media_type.endswith(_JSON_SUFFIX)

    @property
    def body_size_max(self) -> int:
        """Bytes of the body as it is sent."""
        return JSON_BODY_SIZE_MAX if self.is_json else BINARY_BODY_SIZE_MAX

    @property
    def decoded_size_max(self) -> int:
        """Bytes of it once its encoding is undone. JSON grows tenfold when it is read."""
        return JSON_BODY_SIZE_MAX if self.is_json else DECOMPRESSED_SIZE_MAX

    @property
    def size_to_hold(self) -> int:
        """Bytes to hold for the body: what it says, or what it may have at most."""
        if self.declared_size is None:
            return self.body_size_max
        return min(self.declared_size, self.body_size_max)


def read_form(scope: Scope, accepted: Sequence[str] = ACCEPTED) -> Form:
    """What can be known, and refused, without the stream or the body; `accepted` are the media types
    that are taken there.

    Raises:
        InvalidRequest: 400, 406 or 415.
    """
    asked = parse_query(scope, _QUERY)
    negotiate(header(scope, b"accept"), [JSON])
    as_value = "as" in asked
    media_type = _type_of_value(scope) if as_value else content_type(scope, accepted)
    named = {name for name, _ in scope["headers"]}
    if media_type != RAW and not as_value:
        _refuse(_OF_RAW & named, f"goes with {RAW} alone; other records bring their own")
    conditions = NO_CONDITIONS if CONDITION_HEADERS.isdisjoint(named) else conditions_of(scope)
    declared = header(scope, b"content-length")
    form = Form(
        media_type=media_type,
        encoding=content_encoding(scope, ENCODINGS),
        conditions=conditions,
        declared_size=int(declared) if declared is not None and declared.isdigit() else None,
        as_value=as_value,
    )
    return form._replace(within=_within(form, asked, named)) if asked else form


def conditions_of(scope: Scope) -> Conditions:
    """The conditions that the headers of an append make.

    Raises:
        InvalidRequest: 400.
    """
    principal = principal_of(scope)
    sender = principal.actor if principal.authenticated else ""
    return read_conditions(lambda name: header(scope, name.encode()), sender)


def _type_of_value(scope: Scope) -> str:
    """The media type of a body that is one value; only JSON and text have a charset that counts."""
    media_type = any_content_type(scope)
    if media_type in _RECORD_FORMS:
        raise bad_parameter(
            "as", f"goes with a body that is one value, and {media_type} holds records"
        )
    if media_type == JSON or media_type.endswith(_JSON_SUFFIX) or media_type.startswith(_TEXTS):
        content_type(scope)
    return media_type


def _within(form: Form, asked: dict[str, Any], named: set[bytes]) -> Within:
    """Where keys and times stand, refused where nothing has such places."""
    for name, of in _OPTIONAL:
        if name in asked and of not in asked:
            raise bad_parameter(name, f"goes with the parameter {of}")
    if not form.is_json or form.media_type == STAGED:
        for name in asked.keys() - {"as"}:
            raise bad_parameter(name, f"goes with {JSON} and {LINES}; other bodies have no members")
    if "key" in asked and b"stream-key" in named:
        raise bad_parameter("key", "must not stand beside the header Stream-Key")
    return Within(
        key=asked.get("key"),
        key_optional=asked.get("key_optional", False),
        event_time=asked.get("event_time"),
        event_time_optional=asked.get("event_time_optional", False),
    )


def refuse_conditions(scope: Scope) -> None:
    """Refuse what only an append can be asked for, where nothing is appended.

    Raises:
        InvalidRequest: 400.
    """
    named = {name for name, _ in scope["headers"]}
    _refuse((CONDITION_HEADERS | _OF_RAW) & named, "means nothing here: it is for an append")


def _refuse(names: set[bytes] | frozenset[bytes], sentence: str) -> None:
    for name in sorted(names):
        raise bad_header(name.decode(), sentence)


class Reading(NamedTuple):
    """How the body of an append is read."""

    inline: bool
    """It takes so little time that it holds up nobody."""
    read: Callable[[], Append]
    """Read it.

    Raises:
        InvalidRequest: 400, 413 or 422.
    """


async def read_append(scope: Scope, form: Form, body: bytes, frame_size_max: int) -> Append:
    """The records of a whole body, its encoding undone.

    Raises:
        InvalidRequest: 400, 413 or 422.
    """
    inline, read = reading_of(scope, form, body, frame_size_max)
    return read() if inline else await asyncio.to_thread(read)


def reading_of(scope: Scope, form: Form, body: bytes, frame_size_max: int) -> Reading:
    """How a whole body is read, its encoding undone.

    Raises:
        InvalidRequest: 400.
    """
    if form.media_type == RAW or form.as_value:
        key, filter_value = header(scope, b"stream-key"), header(scope, b"stream-filter-value")
        if form.is_json:
            small = _is_small_json(body)
            return Reading(small, partial(_take_value, body, form, key, filter_value))
        text = form.media_type.startswith(_TEXTS)
        content = Content.TEXT if text else Content.BYTES
        return Reading(True, partial(take_raw, body, key, filter_value, form.conditions, content))
    if form.media_type == ARROW:
        inline = len(body) <= INLINE_SIZE
        return Reading(inline, partial(take_arrow, body, frame_size_max, form.conditions))
    if form.media_type == FRAMES:
        inline = len(body) <= INLINE_SIZE and is_plain(body)
        return Reading(inline, partial(take_frames, body, frame_size_max, form.conditions))
    take = _take_lines if form.media_type == LINES else _take_json
    return Reading(_is_small_json(body), partial(take, body, form))


def _is_small_json(body: bytes) -> bool:
    return len(body) <= _INLINE_JSON_SIZE


def _take_json(body: bytes, form: Form) -> Append:
    """`{"records": …}`, or an array, whose items are values: the two that a first byte tells apart."""
    value = parse_json(body)
    if isinstance(value, list):
        return take_items(body, value, encode_json, form.within or Within(), form.conditions)
    if form.within is not None:
        raise bad_parameter(
            "key" if form.within.key else "event_time",
            "goes with values as they are: NDJSON, an array, or as=value",
        )
    return take_json(body, value, encode_json, form.conditions)


def _take_lines(body: bytes, form: Form) -> Append:
    lines = split_lines(body)
    within = form.within or Within()
    return take_lines(lines, parse_json_lines(lines), body, encode_json, within, form.conditions)


def _take_value(body: bytes, form: Form, key: str | None, filter_value: str | None) -> Append:
    check_headers(key, filter_value)
    assert form.within is not None
    within = replace(form.within, fixed_key=key, filter_value=filter_value)
    return take_value(body, parse_json(body), encode_json, within, form.conditions)
