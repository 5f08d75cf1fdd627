"""Options of the data source: what a user may say, checked before anything is read. Pure.

Spark hands options over as text with lower-cased names and pickles them into every
task, so none of them may hold a secret.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bottomless.errors import InvalidRequest
from bottomless.model.limits import MIB
from bottomless.model.names import StreamName, parse_stream_name
from bottomless.model.offset_spec import At, First, Next, parse_offset

PARTITION_SIZE_DEFAULT: Final = 256 * MIB
"""A Python task costs some 50 ms before its first row, so it should read for longer than that."""

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


class Mode(StrEnum):
    """Who brings the bytes of what is in object storage; the tail always comes from the reader."""

    AUTO = "auto"
    """The first of the others that this worker may use and that answers, in this order."""
    DIRECT = "direct"
    """The store itself with the worker's own credentials, or an error."""
    PRESIGNED = "presigned"
    """The store itself with URLs that the reader signs, or an error."""
    READER = "reader"
    """The reader service, over HTTP."""


@dataclass(frozen=True, slots=True)
class S3View:
    """How workers see an S3 store where that differs from how the services see it."""

    endpoint: str | None
    region: str | None
    path_style: bool | None
    ca: str | None
    """File of certificates to trust, at the same path on every machine of the workers."""


@dataclass(frozen=True, slots=True)
class Options:
    url: str
    stream: StreamName
    mode: Mode
    starting: At | First
    ending: At | Next
    include_tail: bool
    columns: tuple[str, ...]
    target_partition_bytes: int
    min_partitions: int
    verify_checksums: bool
    s3: S3View
    metrics_dir: str | None
    """Where every task leaves a small JSON file with the reads it made."""


_NAMES: Final = (
    "url",
    "stream",
    "mode",
    "startingOffsets",
    "endingOffsets",
    "includeTail",
    "columns",
    "targetPartitionBytes",
    "minPartitions",
    "verifyChecksums",
    "s3.endpoint",
    "s3.region",
    "s3.pathStyle",
    "s3.ca",
    "metricsDir",
)
_KNOWN: Final = frozenset(name.lower() for name in _NAMES)


def parse_options(given: Mapping[str, str]) -> Options:
    """Read the options of one `load()`; names count in any case.

    Raises:
        InvalidRequest: one is unknown, missing, or not of its form.
    """
    lowered = {name.lower(): text for name, text in given.items()}
    unknown = sorted(set(lowered) - _KNOWN)
    if unknown:
        raise InvalidRequest(
            f"unknown option {', '.join(unknown)}; the options are {', '.join(_NAMES)}"
        )
    for name in ("url", "stream"):
        if name not in lowered:
            raise InvalidRequest(f"the option {name} is missing")
    return Options(
        url=service_url("url", lowered["url"]),
        stream=parse_stream_name(lowered["stream"]),
        mode=_mode(lowered.get("mode", Mode.AUTO)),
        starting=_starting(lowered.get("startingoffsets", "earliest")),
        ending=_ending(lowered.get("endingoffsets", "latest")),
        include_tail=_boolean("includeTail", lowered.get("includetail", "true")),
        columns=_columns(lowered.get("columns")),
        target_partition_bytes=_positive(
            "targetPartitionBytes",
            lowered.get("targetpartitionbytes", str(PARTITION_SIZE_DEFAULT)),
        ),
        min_partitions=_positive("minPartitions", lowered.get("minpartitions", "1")),
        verify_checksums=_boolean("verifyChecksums", lowered.get("verifychecksums", "true")),
        s3=_s3(lowered),
        metrics_dir=lowered.get("metricsdir"),
    )


def service_url(name: str, text: str) -> str:
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
    )


def _text(name: str, text: str | None) -> str | None:
    if text == "":
        raise InvalidRequest(f"the option {name} is empty")
    return text


def _mode(text: str) -> Mode:
    if text.lower() not in Mode.__members__.values():
        raise InvalidRequest(f"the option mode is one of {', '.join(Mode)}")
    return Mode(text.lower())


def _starting(text: str) -> At | First:
    return First() if text.lower() == "earliest" else At(parse_offset(text))


def _ending(text: str) -> At | Next:
    return Next() if text.lower() == "latest" else At(parse_offset(text))


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
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise InvalidRequest(f"the option {name} is a number above 0")
    return int(text)
