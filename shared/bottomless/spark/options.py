"""Options of the data source: what a user may set, checked before anything is read. Pure.

Spark passes options as text with lower-cased names and pickles them into every task, so none of
them may hold a secret.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeVar

from bottomless.client.parameters import Parameter
from bottomless.errors import InvalidRequest
from bottomless.model.filter import (
    FILTER_COUNT_MAX,
    Filter,
    filter_of,
    parse_filter_value,
    parse_key,
)
from bottomless.model.limits import MIB, OFFSET_MAX
from bottomless.model.names import StreamName, parse_stream_name
from bottomless.spark.positions import Position, parse_position, parse_time

T = TypeVar("T")

PARTITION_SIZE_DEFAULT: Final = 256 * MIB
"""Bytes of a partition. A Python task costs some 50 ms before its first row, so it should read
for longer than that."""

RANGE_SIZE_DEFAULT: Final = 8 * MIB
"""Bytes of one read: large enough for an object store, small enough for a worker's memory."""
RANGE_SIZE_MAX: Final = 1024 * MIB
PREFETCH_DEFAULT: Final = 4
PREFETCH_MAX: Final = 64
LEASE_SECONDS_DEFAULT: Final = 3600
LEASE_SECONDS_MAX: Final = 31_622_400

COLUMNS: Final = (
    "offset",
    "timestamp",
    "value",
    "key",
    "headers",
    "event_time",
    "content",
    "filter_value",
)
COLUMNS_DEFAULT: Final = ("offset", "timestamp", "value")
PARTITION_COLUMN: Final = "partition"
"""The column that a super stream has besides."""


class Mode(StrEnum):
    """How the bytes of what is in object storage are fetched.

    The tail always comes from the reader.
    """

    AUTO = "auto"
    """The first of the others, in this order, that this worker may use and that answers."""
    DIRECT = "direct"
    """The store itself with the worker's own credentials, or an error."""
    PRESIGNED = "presigned"
    """The store itself with URLs that the reader signs, or an error."""
    READER = "reader"
    """The reader service, over HTTP."""


class OnCorrupt(StrEnum):
    """What a worker does with a chunk that is still damaged when it is read a second time."""

    FAIL = "fail"
    SKIP = "skip"
    """Leave it out, say so in the log and count its records."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a micro-batch takes at most; None means no bound. It takes at least one record."""

    size: int | None = None
    """Bytes."""
    offsets: int | None = None
    """Offsets, that is records and gaps."""
    fragments: int | None = None
    """Fragments, among which the tail counts as one."""


@dataclass(frozen=True, slots=True)
class S3View:
    """How workers see an S3 store where that differs from how the services see it."""

    endpoint: str | None
    region: str | None
    path_style: bool | None
    ca: str | None
    """File of certificates to trust, at the same path on every machine of the workers."""
    credentials: str | None = None
    """File of credentials, at the same path everywhere; None for those of the worker's
    environment."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a worker reads what it has been given."""

    wanted: Filter | None = None
    fail_on_data_loss: bool = True
    verify_checksums: bool = True
    on_corrupt: OnCorrupt = OnCorrupt.FAIL
    prefetch: int = PREFETCH_DEFAULT
    """Ranges of an object that are requested ahead of the one that is being decoded."""
    range_size: int = RANGE_SIZE_DEFAULT
    bad_json_fails: bool = False
    """Whether a value that does not fit the option jsonSchema is an error, and not a row of
    nulls."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one read, checked."""

    url: str
    stream: StreamName
    mode: Mode
    starting: Position | None
    """None if it is not given: a batch read then begins at the beginning, a streaming query at
    the end."""
    ending: Position | None
    include_tail: bool
    columns: tuple[str, ...]
    json_schema: str | None
    """Members of JSON values that become a column, in Spark's notation: `id BIGINT, name
    STRING`."""
    target_partition_bytes: int
    min_partitions: int
    """Partitions to aim for at least; target_partition_bytes is lowered where it gives fewer."""
    reading: Reading
    lease_seconds: int
    limits: Limits
    s3: S3View
    metrics_dir: str | None
    """Where every task leaves a small JSON file with the reads it made."""
    is_super: bool = False
    """Whether `stream` is the name of a super stream."""
    given: Mapping[str, str] = field(default_factory=dict)
    """The options of a super stream as they were given, with lower-cased names."""


OPTION_NAMES: Final = (
    "url",
    "stream",
    "superStream",
    "mode",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "includeTail",
    "columns",
    "jsonSchema",
    "onBadJson",
    "filterValues",
    "matchUnfiltered",
    "keys",
    "targetPartitionBytes",
    "minPartitions",
    "maxBytesPerTrigger",
    "maxOffsetsPerTrigger",
    "maxFragmentsPerTrigger",
    "failOnDataLoss",
    "verifyChecksums",
    "onCorrupt",
    "leaseSeconds",
    "prefetch",
    "rangeBytes",
    "credentials",
    "s3.endpoint",
    "s3.region",
    "s3.pathStyle",
    "s3.ca",
    "metricsDir",
)
_KNOWN: Final = frozenset(name.lower() for name in OPTION_NAMES)


def parse_options(given: Mapping[str, str]) -> Options:
    """Read the options of one `load()`; names may be in upper or lower case.

    Raises:
        InvalidRequest: one is unknown, missing, or not of its form.
    """
    lowered = {name.lower(): text for name, text in given.items()}
    unknown = sorted(set(lowered) - _KNOWN)
    if unknown:
        raise InvalidRequest(
            f"unknown option {', '.join(unknown)}; the options are {', '.join(OPTION_NAMES)}"
        )
    if "url" not in lowered:
        raise InvalidRequest("the option url is missing")
    if "superstream" in lowered:
        return _of_super_stream(lowered)
    if "stream" not in lowered:
        raise InvalidRequest("the option stream is missing")
    stream = parse_stream_name(lowered["stream"])
    return Options(
        url=service_url("url", lowered["url"]),
        stream=stream,
        mode=_mode(lowered.get("mode", Mode.AUTO)),
        starting=_position("starting", lowered, stream),
        ending=_position("ending", lowered, stream),
        include_tail=_boolean("includeTail", lowered.get("includetail", "true")),
        columns=_columns(lowered.get("columns")),
        json_schema=_text("jsonSchema", lowered.get("jsonschema")),
        target_partition_bytes=_positive(
            "targetPartitionBytes",
            lowered.get("targetpartitionbytes", str(PARTITION_SIZE_DEFAULT)),
        ),
        min_partitions=_positive("minPartitions", lowered.get("minpartitions", "1")),
        reading=_reading(lowered),
        lease_seconds=_number(
            "leaseSeconds",
            lowered.get("leaseseconds", str(LEASE_SECONDS_DEFAULT)),
            0,
            LEASE_SECONDS_MAX,
        ),
        limits=Limits(
            size=_limit("maxBytesPerTrigger", lowered),
            offsets=_limit("maxOffsetsPerTrigger", lowered),
            fragments=_limit("maxFragmentsPerTrigger", lowered),
        ),
        s3=_s3(lowered),
        metrics_dir=lowered.get("metricsdir"),
    )


def options_of_partition(options: Options, stream: str, partition_count: int) -> Options:
    """Make the options by which one partition of a super stream is read, as a stream by itself.

    Bounds of a micro-batch and the least number of tasks are divided among the partitions.

    Raises:
        InvalidRequest: a position is a map that does not name this partition.
    """
    given = {**options.given, "stream": stream}
    for name in ("startingoffsets", "endingoffsets"):
        narrowed = _narrowed(name, given.get(name), stream)
        if narrowed is not None:
            given[name] = narrowed
    own = parse_options(given)
    limits = Limits(
        size=_divided(own.limits.size, partition_count),
        offsets=_divided(own.limits.offsets, partition_count),
        fragments=_divided(own.limits.fragments, partition_count),
    )
    least = _divided(own.min_partitions, partition_count) or 1
    return replace(own, limits=limits, min_partitions=least)


def _of_super_stream(lowered: Mapping[str, str]) -> Options:
    if "stream" in lowered:
        raise InvalidRequest("give one of the options stream and superStream")
    given = {name: text for name, text in lowered.items() if name != "superstream"}
    columns = given.pop("columns", None)
    named = None if columns is None else [name.strip() for name in columns.split(",")]
    if named is not None:
        rest = [name for name in named if name != PARTITION_COLUMN]
        if len(named) - len(rest) > 1 or not rest:
            raise InvalidRequest("the option columns names partition once, and others")
        given["columns"] = ",".join(rest)
    # A map of positions is read when it is known which partitions there are; until then there is one.
    plain = {
        name: ("next" if name.endswith("offsets") and text.lstrip().startswith("{") else text)
        for name, text in given.items()
    }
    own = parse_options({**plain, "stream": lowered["superstream"]})
    shown = (PARTITION_COLUMN, *own.columns) if named is None else tuple(named)
    return replace(own, columns=shown, is_super=True, given=given)


def _narrowed(name: str, text: str | None, stream: str) -> str | None:
    """What a position that is a map says of one partition."""
    if text is None or not text.lstrip().startswith("{"):
        return text
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"the option {name} is not JSON") from error
    streams = value["s"] if "v" in value and isinstance(value.get("s"), dict) else value
    if stream not in streams:
        raise InvalidRequest(f"the option {name} names each partition; it does not name {stream}")
    one = {stream: streams[stream]}
    return json.dumps(one if streams is value else {"v": value["v"], "s": one})


def _divided(bound: int | None, count: int) -> int | None:
    return None if bound is None else -(-bound // count)


def check_batch(options: Options) -> None:
    """Refuse options that only streaming queries have: a batch read would silently ignore them.

    Raises:
        InvalidRequest: there is one.
    """
    if options.limits != Limits():
        raise InvalidRequest(
            "maxBytesPerTrigger, maxOffsetsPerTrigger and maxFragmentsPerTrigger are for readStream"
        )


def check_streaming(options: Options) -> None:
    """Refuse options that only batch reads have.

    Raises:
        InvalidRequest: there is one.
    """
    if options.ending is not None:
        raise InvalidRequest("endingOffsets and endingTimestamp are for read: a stream has no end")


def _position(which: str, lowered: Mapping[str, str], stream: StreamName) -> Position | None:
    offsets, time = lowered.get(f"{which}offsets"), lowered.get(f"{which}timestamp")
    if offsets is not None and time is not None:
        raise InvalidRequest(f"{which}Offsets and {which}Timestamp say the same: give one of them")
    if time is not None:
        return parse_time(time)
    return None if offsets is None else parse_position(f"{which}Offsets", offsets, stream)


def _reading(lowered: Mapping[str, str]) -> Reading:
    on_corrupt = lowered.get("oncorrupt", OnCorrupt.FAIL).lower()
    if on_corrupt not in OnCorrupt.__members__.values():
        raise InvalidRequest(f"the option onCorrupt is one of {', '.join(OnCorrupt)}")
    return Reading(
        wanted=_wanted(lowered),
        fail_on_data_loss=_boolean("failOnDataLoss", lowered.get("failondataloss", "true")),
        verify_checksums=_boolean("verifyChecksums", lowered.get("verifychecksums", "true")),
        on_corrupt=OnCorrupt(on_corrupt),
        prefetch=_number(
            "prefetch", lowered.get("prefetch", str(PREFETCH_DEFAULT)), 0, PREFETCH_MAX
        ),
        range_size=_number(
            "rangeBytes", lowered.get("rangebytes", str(RANGE_SIZE_DEFAULT)), 1, RANGE_SIZE_MAX
        ),
        bad_json_fails=_bad_json_fails(lowered),
    )


def _bad_json_fails(lowered: Mapping[str, str]) -> bool:
    text = lowered.get("onbadjson", "null").lower()
    if "onbadjson" in lowered and "jsonschema" not in lowered:
        raise InvalidRequest("the option onBadJson goes with jsonSchema")
    if text not in {"null", "fail"}:
        raise InvalidRequest("the option onBadJson is null or fail")
    return text == "fail"


def _wanted(lowered: Mapping[str, str]) -> Filter | None:
    values = _texts("filterValues", lowered.get("filtervalues"), parse_filter_value)
    keys = _texts("keys", lowered.get("keys"), parse_key)
    if values is None and "matchunfiltered" in lowered:
        raise InvalidRequest("the option matchUnfiltered goes with filterValues")
    unfiltered = _boolean("matchUnfiltered", lowered.get("matchunfiltered", "false"))
    return filter_of(values, unfiltered, keys)


def parameters_of(wanted: Filter) -> dict[str, Parameter]:
    """Make the parameters by which the API is asked for what a filter asks for."""
    given: dict[str, Parameter] = {}
    if wanted.values is not None:
        given["filter"] = wanted.values
    if wanted.match_unfiltered:
        given["match_unfiltered"] = True
    if wanted.keys is not None:
        given["key"] = wanted.keys
    return given


def _texts(name: str, text: str | None, parse: Callable[[str], T]) -> list[T] | None:
    """The members of an option that is a list: with commas, or of JSON."""
    if text is None:
        return None
    if not text.lstrip().startswith("["):
        given = [part.strip() for part in text.split(",")]
    else:
        try:
            given = json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidRequest(f"the option {name} is not a JSON list") from error
        if not all(isinstance(value, str) for value in given):
            raise InvalidRequest(f"the option {name} is a list of texts")
    if not 0 < len(given) <= FILTER_COUNT_MAX:
        raise InvalidRequest(f"the option {name} names 1 to {FILTER_COUNT_MAX} texts")
    try:
        return [parse(value) for value in given]
    except InvalidRequest as error:
        raise InvalidRequest(f"the option {name}: each {error.message}") from None


def service_url(name: str, text: str) -> str:
    """Check the url of a service in the option `name`, and remove slashes at its end.

    Raises:
        InvalidRequest: it is not one of HTTP, or contains a password.
    """
    if not text.startswith(("http://", "https://")) or "@" in text:
        raise InvalidRequest(
            f"the option {name} starts with http:// or https:// and names nobody's password"
        )
    return text.rstrip("/")


def _s3(lowered: Mapping[str, str]) -> S3View:
    endpoint, style = lowered.get("s3.endpoint"), lowered.get("s3.pathstyle")
    return S3View(
        endpoint=None if endpoint is None else service_url("s3.endpoint", endpoint),
        region=_text("s3.region", lowered.get("s3.region")),
        path_style=None if style is None else _boolean("s3.pathStyle", style),
        ca=_text("s3.ca", lowered.get("s3.ca")),
        credentials=_credentials(lowered.get("credentials", "env")),
    )


def _credentials(text: str) -> str | None:
    if text == "env":
        return None
    if not text.startswith("file:/"):
        raise InvalidRequest("the option credentials is env, or file: and a path from the root")
    return "/" + text.removeprefix("file:").lstrip("/")


def _text(name: str, text: str | None) -> str | None:
    if text == "":
        raise InvalidRequest(f"the option {name} is empty")
    return text


def _mode(text: str) -> Mode:
    if text.lower() not in Mode.__members__.values():
        raise InvalidRequest(f"the option mode is one of {', '.join(Mode)}")
    return Mode(text.lower())


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise InvalidRequest(f"the option {name} is true or false")
    return text.lower() == "true"


def _columns(text: str | None) -> tuple[str, ...]:
    names = COLUMNS_DEFAULT if text is None else tuple(name.strip() for name in text.split(","))
    if not names or not set(names) <= set(COLUMNS) or len(set(names)) < len(names):
        raise InvalidRequest(f"the option columns names some of {', '.join(COLUMNS)}, each once")
    return names


def _positive(name: str, text: str) -> int:
    return _number(name, text, 1, OFFSET_MAX)


def _limit(name: str, lowered: Mapping[str, str]) -> int | None:
    text = lowered.get(name.lower())
    return None if text is None else _positive(name, text)


def _number(name: str, text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit()) or not low <= int(text) <= high:
        raise InvalidRequest(f"the option {name} is a number from {low} to {high}")
    return int(text)
