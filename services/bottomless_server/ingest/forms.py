"""The forms that an append comes in: what its headers say, and how its body is read.

On the record's path: after routes.py, before core/intake.py.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from starlette.types import Scope

from bottomless.model.limits import (
    BINARY_BODY_SIZE_MAX,
    DECOMPRESSED_SIZE_MAX,
    JSON_BODY_SIZE_MAX,
    KIB,
)
from bottomless_server.ingest.core.frames import is_plain
from bottomless_server.ingest.core.intake import (
    Append,
    take_arrow,
    take_frames,
    take_json,
    take_raw,
)
from bottomless_server.ingest.core.promises import NOTHING, Promise, bad_header, read_promise
from bottomless_server.runtime.encodings import ENCODINGS
from bottomless_server.runtime.http import (
    content_encoding,
    content_type,
    encode_json,
    header,
    negotiate,
    parse_json,
    parse_query,
)
from bottomless_server.runtime.identity.principal import principal_of

_T = TypeVar("_T")

JSON: Final = "application/json"
RAW: Final = "application/octet-stream"
ARROW: Final = "application/vnd.apache.arrow.stream"
FRAMES: Final = "application/vnd.bottomless.batches"
STAGED: Final = "application/vnd.bottomless.staged+json"
"""Not records but the ids of batches that were staged before."""
ACCEPTED: Final = (JSON, RAW, ARROW, FRAMES, STAGED)
_JSON_FORMS: Final = (JSON, STAGED)

_INLINE_JSON_SIZE: Final = 64 * KIB
_INLINE_SIZE: Final = 128 * KIB
"""Bodies above are read in a thread, since the loop serves everybody: some tenths of a
millisecond each. Below, to go there and back would cost more."""

_OF_RAW: Final = frozenset({b"stream-key", b"stream-filter-value"})
_PROMISES: Final = frozenset(
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
    promise: Promise
    declared_size: int | None

    @property
    def body_size_max(self) -> int:
        """Bytes of the body as it is sent."""
        return JSON_BODY_SIZE_MAX if self.media_type in _JSON_FORMS else BINARY_BODY_SIZE_MAX

    @property
    def decoded_size_max(self) -> int:
        """Bytes of it once its encoding is undone. JSON grows tenfold when it is read."""
        return JSON_BODY_SIZE_MAX if self.media_type in _JSON_FORMS else DECOMPRESSED_SIZE_MAX

    @property
    def size_to_hold(self) -> int:
        """Bytes to hold for the body: what it says, or what it may have at most."""
        if self.declared_size is None:
            return self.body_size_max
        return min(self.declared_size, self.body_size_max)


def read_form(scope: Scope) -> Form:
    """What can be known, and refused, without the stream or the body.

    Raises:
        InvalidRequest: 400, 406 or 415.
    """
    parse_query(scope, {})
    negotiate(header(scope, b"accept"), [JSON])
    media_type = content_type(scope, ACCEPTED)
    promise = NOTHING
    named = {name for name, _ in scope["headers"]}
    if media_type != RAW:
        _refuse(_OF_RAW & named, f"it goes with {RAW}; other records bring their own")
    if not _PROMISES.isdisjoint(named):
        principal = principal_of(scope)
        sender = principal.actor if principal.authenticated else ""
        promise = read_promise(lambda name: header(scope, name.encode()), sender)
    declared = header(scope, b"content-length")
    return Form(
        media_type=media_type,
        encoding=content_encoding(scope, ENCODINGS),
        promise=promise,
        declared_size=int(declared) if declared is not None and declared.isdigit() else None,
    )


def refuse_promises(scope: Scope) -> None:
    """Refuse what only an append can be asked for, where nothing is appended.

    Raises:
        InvalidRequest: 400.
    """
    named = {name for name, _ in scope["headers"]}
    _refuse((_PROMISES | _OF_RAW) & named, "it says nothing here: it is for an append")


def _refuse(names: set[bytes] | frozenset[bytes], sentence: str) -> None:
    for name in sorted(names):
        raise bad_header(name.decode(), sentence)


async def read_append(scope: Scope, form: Form, body: bytes, frame_size_max: int) -> Append:
    """The records of a whole body, its encoding undone.

    Raises:
        InvalidRequest: 400, 413 or 422.
    """
    if form.media_type == RAW:
        key, filter_value = header(scope, b"stream-key"), header(scope, b"stream-filter-value")
        return take_raw(body, key, filter_value, form.promise)
    if form.media_type == ARROW:
        inline = len(body) <= _INLINE_SIZE
        return await _run(inline, take_arrow, body, frame_size_max, form.promise)
    if form.media_type == FRAMES:
        inline = len(body) <= _INLINE_SIZE and is_plain(body)
        return await _run(inline, take_frames, body, frame_size_max, form.promise)
    return await _run(len(body) <= _INLINE_JSON_SIZE, _take_json, body, form.promise)


def _take_json(body: bytes, promise: Promise) -> Append:
    return take_json(body, parse_json(body), encode_json, promise)


async def _run(inline: bool, call: Callable[..., _T], *arguments: object) -> _T:
    if inline:
        return call(*arguments)
    return await asyncio.to_thread(call, *arguments)
