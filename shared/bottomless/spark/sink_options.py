"""Options of the sink: what a user may set, checked before anything is written. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bottomless.errors import InvalidRequest
from bottomless.model.names import StreamName, parse_reference, parse_stream_name
from bottomless.spark.options import service_url

_NAMES: Final = ("url", "stream", "txnAppId", "txnId")
_KNOWN: Final = frozenset(name.lower() for name in _NAMES)
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "path"})
"""What Spark keeps among the options of a stream for itself."""
NO_SUPER_STREAM: Final = (
    "the sink writes to a stream, and this is a super stream: write each partition of the DataFrame"
    " with client.super_producer, as docs/spark.md shows under Super streams"
)
TXN_SIZE_MAX: Final = 100
"""Characters. Two of them, or one and the id of a query, are the name of a producer."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one write, checked."""

    url: str
    stream: StreamName
    txn_app_id: str | None
    """The name of the program that writes: the same in every run."""
    txn_id: str | None
    """The id of what is written: a second write with the same id does nothing."""


def parse_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Read the options of one write; names may be in upper or lower case.

    Raises:
        InvalidRequest: one is unknown, missing, or not of its form.
    """
    lowered = {name.lower(): text for name, text in given.items()}
    if streaming:
        lowered = {name: text for name, text in lowered.items() if name not in _SPARKS_OWN}
    if "superstream" in lowered:
        raise InvalidRequest(NO_SUPER_STREAM)
    unknown = sorted(set(lowered) - _KNOWN)
    if unknown:
        raise InvalidRequest(
            f"unknown option {', '.join(unknown)}; the options are {', '.join(_NAMES)}"
        )
    for name in ("url", "stream"):
        if name not in lowered:
            raise InvalidRequest(f"the option {name} is missing")
    if streaming and "txnappid" not in lowered:
        raise InvalidRequest(
            "the option txnAppId is missing: a name for this query, the same in every run"
        )
    if streaming and "txnid" in lowered:
        raise InvalidRequest("the option txnId is for batches: a query numbers its own")
    return SinkOptions(
        url=service_url("url", lowered["url"]),
        stream=parse_stream_name(lowered["stream"]),
        txn_app_id=_name("txnAppId", lowered.get("txnappid")),
        txn_id=_name("txnId", lowered.get("txnid")),
    )


def _name(name: str, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        reference = parse_reference(text)
    except InvalidRequest:
        reference = None
    if reference is None or len(text) > TXN_SIZE_MAX:
        raise InvalidRequest(
            f"the option {name} has at most {TXN_SIZE_MAX} characters, starts with an ASCII letter "
            "or digit, goes on with letters, digits, '.', '_' and '-', and does not contain '..'"
        )
    return reference
