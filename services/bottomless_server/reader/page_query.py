"""What a request for records says: its parameters, checked, as a PageQuery.

Contract: openapi/reader.yaml. Parameters that mean nothing together are refused, so that
nobody waits for what will not happen.
"""

from collections.abc import Mapping
from typing import Any, Final

from bottomless.errors import Fault, InvalidRequest
from bottomless.model.filter import (
    FILTER_COUNT_MAX,
    Filter,
    filter_of,
    parse_filter_value,
    parse_key,
    parse_key_base64,
)
from bottomless.model.limits import (
    LONG_POLL_MS_MAX,
    OFFSET_MAX,
    PAGE_RECORD_COUNT_ARROW_MAX,
    PAGE_RECORD_COUNT_DEFAULT,
    PAGE_RECORD_COUNT_MAX,
    PAGE_SIZE_DEFAULT,
    PAGE_SIZE_MAX,
)
from bottomless.model.names import parse_reference, parse_stream_id
from bottomless.model.offset_spec import OffsetSpec, Stored, parse_offset_spec
from bottomless_server.core.shown_values import ValueEncoding
from bottomless_server.reader.core.arrow_schema import COLUMNS
from bottomless_server.reader.core.framing import NDJSON, SSE
from bottomless_server.reader.pages import PASS_MS, PageQuery
from bottomless_server.runtime.http.app import Parser, Repeated, boolean, choice, integer

JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"
CHUNKS: Final = "application/vnd.bottomless.chunks"
OCTETS: Final = "application/octet-stream"

_BINARY: Final = (ARROW, CHUNKS)


def _with_text(value: str) -> tuple[str, OffsetSpec]:
    return value, parse_offset_spec(value)


def _columns(value: str) -> tuple[str, ...]:
    names = value.split(",")
    if not set(names) <= set(COLUMNS):
        raise InvalidRequest(f"must be names of columns with commas: {', '.join(COLUMNS)}")
    if len(set(names)) != len(names):
        raise InvalidRequest("must name each column once")
    return tuple(name for name in COLUMNS if name in names)


_START: Final[Mapping[str, Parser]] = {
    "consumer": parse_reference,
    "default": parse_offset_spec,
    "on_out_of_range": choice("clamp", "error"),
    "expect_stream_id": parse_stream_id,
}
RESOLVE_PARAMETERS: Final[Mapping[str, Parser]] = {"spec": _with_text, **_START}
RECORD_PARAMETERS: Final[Mapping[str, Parser]] = {
    "expect_stream_id": parse_stream_id,
    "value_encoding": choice(*ValueEncoding),
}
FILTER_PARAMETERS: Final[Mapping[str, Parser | Repeated]] = {
    "filter": Repeated(parse_filter_value, FILTER_COUNT_MAX),
    "match_unfiltered": boolean,
    "key": Repeated(parse_key, FILTER_COUNT_MAX),
    "key_base64": Repeated(parse_key_base64, FILTER_COUNT_MAX),
}
PAGE_PARAMETERS: Final[Mapping[str, Parser | Repeated]] = {
    "offset": _with_text,
    **_START,
    **FILTER_PARAMETERS,
    "filter_mode": choice("exact", "chunk"),
    "until_offset": integer(0, OFFSET_MAX + 1),
    "limit": integer(1, PAGE_RECORD_COUNT_ARROW_MAX),
    "max_bytes": integer(1, PAGE_SIZE_MAX),
    "max_wait_ms": integer(0, LONG_POLL_MS_MAX),
    "min_records": integer(1, PAGE_RECORD_COUNT_ARROW_MAX),
    "min_bytes": integer(1, PAGE_SIZE_MAX),
    "follow": boolean,
    "value_encoding": choice(*ValueEncoding),
    "columns": _columns,
}


def offered(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The media types of an answer to these parameters, best first."""
    return (NDJSON, SSE) if values.get("follow") else (JSON, ARROW, NDJSON, SSE, CHUNKS)


def page_query(values: Mapping[str, Any], media_type: str) -> PageQuery:
    """The query of a page, or of the first page of an answer that stays open.

    Raises:
        InvalidRequest: parameters do not go together, or one that is needed is missing.
    """
    if media_type != ARROW:
        refuse(values, ("columns",), f"goes with the media type {ARROW}")
    stays = media_type == SSE or values.get("follow", False)
    if stays:
        refuse(
            values,
            ("max_wait_ms", "min_records", "min_bytes"),
            "must not stand here: this answer stays open",
        )
    if "max_wait_ms" not in values:
        refuse(values, ("min_records", "min_bytes"), "goes with max_wait_ms")
    wanted = filter_query(values)
    _check_filter_mode(values, media_type, wanted)
    # An answer of events may leave its start out: it is the next record then.
    given = {"offset": _with_text("next"), **values} if media_type == SSE else values
    return PageQuery(
        **start_of(given, "offset"),
        limit=_limit(values.get("limit"), media_type),
        size_max=values.get("max_bytes", PAGE_SIZE_DEFAULT),
        until=values.get("until_offset"),
        wait_ms=values.get("max_wait_ms", 0),
        count_min=values.get("min_records", 1),
        size_min=values.get("min_bytes", 0),
        columns=values.get("columns", COLUMNS),
        whole_chunks=media_type == CHUNKS,
        wanted=wanted,
        pass_ms=PASS_MS if stays and wanted is not None else None,
    )


def filter_query(values: Mapping[str, Any]) -> Filter | None:
    """Make the filter of a request; None where it asks for all records.

    Raises:
        InvalidRequest: `match_unfiltered=true` stands alone.
    """
    if "filter" not in values and values.get("match_unfiltered"):
        refuse(
            values, ("match_unfiltered",), "goes with filter: it adds records that have no value"
        )
    keys = (*values.get("key", ()), *values.get("key_base64", ()))
    return filter_of(values.get("filter"), values.get("match_unfiltered", False), keys)


def _check_filter_mode(values: Mapping[str, Any], media_type: str, wanted: Filter | None) -> None:
    mode = values.get("filter_mode")
    if wanted is None:
        if mode == "chunk":
            refuse(values, ("filter_mode",), "goes with filter or key")
    elif media_type == CHUNKS and mode != "chunk":
        raise _fault(
            "filter_mode",
            "missing" if mode is None else "bad-parameter",
            "must be chunk for this media type: chunks are given whole, with other records in them",
        )
    elif media_type != CHUNKS and mode == "chunk":
        raise _fault("filter_mode", "bad-parameter", f"goes with the media type {CHUNKS}")


def start_of(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What says where to start, as members of a PageQuery; `name` is the parameter of the spec.

    Raises:
        InvalidRequest
    """
    if name not in values:
        raise _fault(
            name,
            "missing",
            "must say where to start; offset=first reads all, offset=next only what comes from now on",
        )
    spec = values[name][1]
    if isinstance(spec, Stored):
        if "consumer" not in values:
            raise _fault("consumer", "missing", "must say whose stored offset is meant")
        if isinstance(values.get("default"), Stored):
            raise _fault(
                "default",
                "bad-parameter",
                "must not be stored itself: it is where to start if nothing is stored",
            )
    else:
        refuse(values, ("consumer", "default"), "goes with the start stored")
    return {
        "spec": spec,
        "consumer": values.get("consumer"),
        "default": values.get("default"),
        "strict": values.get("on_out_of_range") == "error",
        "stream_id": values.get("expect_stream_id"),
    }


def _limit(limit: int | None, media_type: str) -> int:
    if media_type in _BINARY:
        return PAGE_RECORD_COUNT_ARROW_MAX if limit is None else limit
    if limit is None:
        return PAGE_RECORD_COUNT_DEFAULT
    if limit > PAGE_RECORD_COUNT_MAX and media_type != SSE:
        raise _fault(
            "limit", "bad-parameter", f"must be at most {PAGE_RECORD_COUNT_MAX} for this media type"
        )
    return limit


def refuse(values: Mapping[str, Any], names: tuple[str, ...], why: str) -> None:
    for name in names:
        if name in values:
            raise _fault(name, "bad-parameter", why)


def _fault(name: str, code: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{name}: {why}", faults=[Fault(code, why, parameter=name)])
