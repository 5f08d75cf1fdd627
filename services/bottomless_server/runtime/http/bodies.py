"""Read what a request carries: media types, bodies within a bound, strict JSON.

FastAPI would answer an oversized body in two shapes, read JSON that says a key twice,
and ignore Content-Encoding; so bodies are read here, from raw ASGI messages.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn

import orjson
from starlette.types import Receive, Scope

from bottomless.errors import Code, Fault, InvalidRequest, StoreError

JSON: Final = "application/json"

_WORD: Final = r"[!#$%&'*+.^_`|~0-9a-z-]{1,127}"
_MEDIA_TYPE: Final = re.compile(f"{_WORD}/{_WORD}", re.ASCII)
_UTF8_BOM: Final = b"\xef\xbb\xbf"
_FOLD_DIGITS: Final = bytes.maketrans(b"123456789E", b"000000000e")
_DIGITS_MAX: Final = 200
"""A number of fewer digits and an exponent of at most two cannot leave the range of a double."""
_BYTES_OF_FLOAT: Final = 128
"""So many bytes are looked at in the time of a hook on one float."""


class ClientGone(Exception):
    """The client left before its request was read whole; there is nobody to answer."""


def header(scope: Scope, name: bytes) -> str | None:
    """The one value of a header, None if it is absent.

    Raises:
        InvalidRequest: it is there more than once, or is not ASCII.
    """
    values = [value for key, value in scope["headers"] if key == name]
    if not values:
        return None
    shown = name.decode("ascii")
    if len(values) > 1:
        raise _bad_header(shown, "the header must not be given more than once")
    try:
        return str(values[0].decode("ascii"))
    except UnicodeDecodeError:
        raise _bad_header(shown, "the header must be ASCII") from None


def any_content_type(scope: Scope) -> str:
    """The media type of a body that may have any, in lowercase, without its parameters.

    Raises:
        InvalidRequest: `unsupported-media-type`: none, or what is no media type.
    """
    media_type = (header(scope, b"content-type") or "").lower().partition(";")[0].strip()
    if not _MEDIA_TYPE.fullmatch(media_type):
        raise _unsupported("the request needs the header Content-Type with a media type", ())
    return media_type


def content_type(scope: Scope, accepted: Sequence[str] = ()) -> str:
    """The media type of the request's body, in lowercase; with `accepted`, one of those.

    Raises:
        InvalidRequest: `unsupported-media-type`: none, another one, or a parameter that would
            change how the body reads.
    """
    media_type, *parameters = (header(scope, b"content-type") or "").lower().split(";")
    media_type = media_type.strip()
    if not media_type or (accepted and media_type not in accepted):
        # curl -d says application/x-www-form-urlencoded where nobody says anything.
        known = f" that is accepted here: {', '.join(accepted)}" if accepted else ""
        raise _unsupported(f"the request needs a Content-Type{known}", accepted)
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        if name and (name, value.strip('"')) != ("charset", "utf-8"):
            raise _unsupported(
                "the only parameter that a Content-Type may have here is charset=utf-8", accepted
            )
    return media_type


def content_encoding(scope: Scope, accepted: Sequence[str] = ()) -> str | None:
    """How the body is encoded, one of `accepted`; None for not at all.

    Raises:
        InvalidRequest: `unsupported-media-type`: never ignored, since the body would be
            stored compressed.
    """
    encoding = (header(scope, b"content-encoding") or "identity").strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding not in accepted:
        sentence = (
            "this Content-Encoding is not accepted here; accepted_encodings lists those that are"
        )
        raise InvalidRequest(
            sentence,
            code=Code.UNSUPPORTED_MEDIA_TYPE,
            faults=[Fault(Code.UNSUPPORTED_MEDIA_TYPE, sentence, header="content-encoding")],
            facts={"accepted_encodings": [*accepted, "identity"]},
        )
    return encoding


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body, at most `limit` bytes; no more than that is ever held.

    Raises:
        InvalidRequest: `body-too-large`, the same for a declared and for a chunked body.
        ClientGone
    """
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def negotiate(accept: str | None, offered: Sequence[str]) -> str:
    """The media type to answer with: highest quality first, then as offered.

    Raises:
        InvalidRequest: `not-acceptable`.
    """
    if accept is None or not accept.strip():
        return offered[0]
    ranges = [_media_range(text) for text in accept.split(",")]
    best, best_quality = None, 0.0
    for media_type in offered:
        quality = _quality(media_type, ranges)
        if quality > best_quality:
            best, best_quality = media_type, quality
    if best is None:
        raise InvalidRequest(
            "none of the media types in Accept is offered here; offered lists those that are",
            code=Code.NOT_ACCEPTABLE,
            facts={"offered": list(offered)},
        )
    return best


def parse_json(body: bytes, line: int | None = None) -> Any:
    """Read JSON strictly: one meaning for one text; `line`: the body's line that it is.

    Integers come back whole, however large: whoever stores a value as JSON again uses
    `encode_json`, which refuses what would be rounded, and what is too deep to be written.

    Raises:
        InvalidRequest: `malformed-json` for text that is not UTF-8 or not JSON, a byte order
            mark, a key twice in one object, NaN and Infinity, nesting that no parser bears;
            `number-out-of-range` for a number that reads as infinity.
    """
    what = "the body" if line is None else f"line {line}"
    if body.startswith(_UTF8_BOM):
        raise malformed_json(f"{what} starts with a byte order mark")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise malformed_json(f"{what} is not UTF-8: position={error.start}") from None
    try:
        return (_CAREFUL if _has_few_floats(body) or _may_overflow(body) else _QUICK).decode(text)
    except json.JSONDecodeError as error:
        place = f"line={error.lineno if line is None else line} column={error.colno}"
        raise malformed_json(f"{what} is not JSON: {place}") from None
    except RecursionError:
        raise malformed_json(f"{what} is nested too deeply") from None
    except ValueError:
        # What remains is Python's own bound on the digits of an integer.
        raise number_out_of_range() from None


def parse_json_lines(lines: Sequence[bytes]) -> Iterator[Any]:
    """The value of each line, as strictly as `parse_json`; a carriage return at its end is blank.

    Raises:
        InvalidRequest: as `parse_json`, with the number of the line; `malformed-json` also for
            an empty line, which is never left out in silence.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise malformed_json(f"line {number} is empty")
        try:
            value = parse_json(line, number)
        except InvalidRequest as error:
            place = f"line {number}"
            sentence = error.message if place in error.message else f"{place}: {error.message}"
            faults = [replace(fault, pointer=f"/{number - 1}") for fault in error.faults]
            raise InvalidRequest(sentence, code=error.code, faults=faults) from None
        yield value


def encode_json(value: Any, pointer: str | None = None) -> bytes:
    """Write a value that `parse_json` read as compact JSON, or refuse what would change by it.

    Raises:
        InvalidRequest: `number-out-of-range` for an integer beyond 64 bits, `validation-failed`
            for a lone surrogate and for nesting beyond 254, at `pointer`.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        cause = str(error)
    if "64-bit" in cause:
        raise number_out_of_range(pointer)
    sentence = (
        "text holds a lone surrogate, which is not Unicode"
        if "surrogate" in cause
        else "the value is nested too deeply"
    )
    raise InvalidRequest(
        sentence,
        code=Code.VALIDATION_FAILED,
        faults=[Fault(Code.VALIDATION_FAILED, sentence, pointer=pointer)],
    )


def malformed_json(sentence: str) -> InvalidRequest:
    return InvalidRequest(sentence, code=Code.MALFORMED_JSON)


def number_out_of_range(pointer: str | None = None) -> InvalidRequest:
    sentence = "a number is beyond 64 bits or beyond the range of a double"
    code = Code.NUMBER_OUT_OF_RANGE
    return InvalidRequest(sentence, code=code, faults=[Fault(code, sentence, pointer=pointer)])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise malformed_json("an object holds the same key twice")
    return members


def _refuse_constant(_: str) -> NoReturn:
    raise malformed_json("NaN and Infinity are not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise number_out_of_range()
    return number


_QUICK: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
_CAREFUL: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite
)


def _has_few_floats(body: bytes) -> bool:
    # Then a hook on each of them costs less than to look at every byte, as the next function does.
    # Nearly all floats have a point; for those without one the hook is right too, only slower.
    return body.count(b".") * _BYTES_OF_FLOAT < len(body)


def _may_overflow(body: bytes) -> bool:
    # A hook on every float halves the speed of the parser, so where there are many it is set only if
    # the text has a long exponent or very many digits. Digits within strings cost time, nothing else.
    folded = body.translate(_FOLD_DIGITS)
    return b"e000" in folded or b"e+000" in folded or b"0" * _DIGITS_MAX in folded


def _media_range(text: str) -> tuple[str, float]:
    media_range, *parameters = text.lower().split(";")
    quality = 1.0
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        if name == "q":
            try:
                quality = min(max(float(value), 0.0), 1.0)
            except ValueError:
                quality = 0.0
    return media_range.strip(), quality


def _quality(media_type: str, ranges: Sequence[tuple[str, float]]) -> float:
    # The most specific range decides, so that `a/b;q=0, */*` excludes a/b.
    for wanted in (media_type, media_type.partition("/")[0] + "/*", "*/*"):
        qualities = [quality for media_range, quality in ranges if media_range == wanted]
        if qualities:
            return max(qualities)
    return 0.0


def _bad_header(name: str, sentence: str) -> InvalidRequest:
    return InvalidRequest(
        sentence, code=Code.BAD_HEADER, faults=[Fault(Code.BAD_HEADER, sentence, header=name)]
    )


def _unsupported(sentence: str, accepted: Sequence[str]) -> InvalidRequest:
    code = Code.UNSUPPORTED_MEDIA_TYPE
    return InvalidRequest(
        sentence,
        code=code,
        faults=[Fault(code, sentence, header="content-type")],
        facts={"accepted": list(accepted)} if accepted else {},
    )


def _too_large(limit: int) -> StoreError:
    return InvalidRequest(
        "the body is larger than this service takes",
        code=Code.BODY_TOO_LARGE,
        facts={"limit_bytes": limit},
    )
