"""Settings as a whole, before anything starts: names that nobody knows, values that exclude each other.

A name that is nearly right would leave the default in force without a word, so it is refused. All
services may share one environment, with those of clients, of tests and of the composition in it,
so what belongs to any of these is known.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from bottomless.model.variables import OF_CLIENTS, PREFIX, nearest_variable, shown_variable
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.queues.operator_settings import QueuesSettings
from bottomless_server.reader.settings import ReaderSettings
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.base.units import Unit, number_of, unit_of
from bottomless_server.uploader.settings import UploaderSettings

SETTINGS: Final[dict[str, type[CommonSettings]]] = {
    "manifest": ManifestSettings,
    "ingest": IngestSettings,
    "uploader": UploaderSettings,
    "reader": ReaderSettings,
    "queues": QueuesSettings,
}
_OF_THE_COMPOSITION: Final = ("VALKEY_PASSWORD", "S3_ACCESS_KEY", "S3_SECRET_KEY", "VERSION")
_OF_TESTS: Final = ("TEST_", "MODEL_", "FUZZ_")
"""How they begin."""
_OF_WORK: Final = re.compile(
    r"QUEUE|MESSAGE_(?:ID|SEQUENCE|DELIVERIES|PRIORITY|PUBLISHED_AT)|HEADER_.+"
)
"""What `bottomless queue work` tells its command, which may well start a server."""
_OF_KUBERNETES: Final = re.compile(
    r"(?:.*_)?(?:SERVICE_HOST|SERVICE_PORT(?:_.+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_.+)?)"
)
"""What Kubernetes tells a container of a service that is called bottomless-… ."""
_RENAMED: Final = {
    "INGEST_QUEUE_BYTES_MAX": "INGEST_IN_FLIGHT_BYTES_MAX",
    "INGEST_STREAM_QUEUE_BYTES_MAX": "INGEST_STREAM_IN_FLIGHT_BYTES_MAX",
    "INGEST_QUEUE_WAIT_MS": "INGEST_IN_FLIGHT_WAIT_MS",
}
"""What settings of earlier builds are called now."""
_KUBERNETES_ADDRESS: Final = re.compile(r"(?:tcp|udp|sctp)://.*")


class _Order(NamedTuple):
    """One setting may be at most another; `below` that it must be less."""

    lesser: str
    greater: str
    reason: str
    below: bool = False


ORDERS: Final = (
    _Order(
        "ingest_lease_margin_ms",
        "ingest_lease_ms",
        "else the lease is never believed, and nothing is appended",
        below=True,
    ),
    _Order(
        "queues_lease_margin_ms",
        "queues_lease_ms",
        "else the lease is never believed, and no queue is served",
        below=True,
    ),
    _Order(
        "ingest_group_bytes_max",
        "ingest_stream_in_flight_bytes_max",
        "else no staged commit of that size ever finds room",
    ),
    _Order(
        "ingest_stream_in_flight_bytes_max",
        "ingest_in_flight_bytes_max",
        "else one stream may take more than there is for all",
    ),
    _Order(
        "ingest_local_bytes_keep",
        "ingest_disk_bytes_max",
        "else what is kept alone stops appends",
        below=True,
    ),
    _Order("store_connect_seconds", "store_call_seconds", "a connection is a part of a call"),
    _Order("store_read_seconds", "store_call_seconds", "else silence is never noticed"),
    _Order(
        "uploader_retry_initial_seconds",
        "uploader_retry_max_seconds",
        "waits grow from the one to the other",
    ),
    _Order(
        "reader_blocked_seconds",
        "http_send_stall_seconds",
        "else who takes nothing is cut off before it is told why",
        below=True,
    ),
)
"""Within one service, whose defaults keep to them."""

ORDERS_BETWEEN: Final = (
    _Order(
        "uploader_upload_deadline_seconds",
        "manifest_upload_deadline_ms",
        "else an upload goes on when its object has been deleted for the last time",
        below=True,
    ),
    _Order(
        "reader_root_ttl_ms",
        "manifest_root_grace_ms",
        "else a reader uses a root that is deleted",
    ),
    _Order(
        "reader_root_ttl_ms",
        "ingest_local_keep_ms",
        "else a reader asks for a segment that is freed",
    ),
    _Order("reader_name_ttl_ms", "ingest_lease_ms", "else a reader asks an owner of the past"),
    _Order(
        "ingest_lease_ms",
        "manifest_close_ms",
        "else a deletion does not wait for an owner that is cut off",
    ),
    _Order(
        "ingest_lease_ms",
        "ingest_forward_ms",
        "else a request is given up while its owner may still acknowledge it",
    ),
)
"""Between settings that are both said: of those of another process only what the environment
says is known here."""


def check_settings(services: Sequence[str], environment: Mapping[str, str]) -> None:
    """Refuse what these services cannot mean.

    Raises:
        CannotStart: by the names of the variables.
        ValidationError: a value is wrong by itself.
    """
    _refuse_unknown(environment)
    for name in services:
        given = SETTINGS[name]()
        refuse_contradictions(given.model_dump())
    _refuse_contradictions_between(environment)


def known_variables() -> frozenset[str]:
    """The name of every variable that somebody of ours reads."""
    fields = {field for settings in SETTINGS.values() for field in settings.model_fields}
    names = {field.upper() for field in fields}
    names |= {f"{name.upper()}_INTERNAL_LISTEN" for name in SETTINGS}
    return OF_CLIENTS.union(PREFIX + name for name in names.union(_OF_THE_COMPOSITION))


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    known = known_variables()
    for variable, value in sorted(environment.items()):
        name = variable.upper()
        if not name.startswith(PREFIX) or name in known or not value:
            continue
        rest = name.removeprefix(PREFIX)
        if rest.startswith(_OF_TESTS) or _OF_WORK.fullmatch(rest):
            continue
        if _is_of_kubernetes(rest, value):
            continue
        if rest in _RENAMED:
            raise CannotStart(
                f"the setting {shown_variable(variable)} is now called {PREFIX}{_RENAMED[rest]}"
            )
        meant = nearest_variable(name, known)
        hint = f"did you mean {meant}?" if meant else "docs/settings.md lists all settings"
        raise CannotStart(f"there is no setting {shown_variable(variable)}; {hint}")


def _is_of_kubernetes(rest: str, value: str) -> bool:
    if _OF_KUBERNETES.fullmatch(rest):
        return True
    return rest.endswith("_PORT") and _KUBERNETES_ADDRESS.fullmatch(value) is not None


def refuse_contradictions(values: Mapping[str, Any]) -> None:
    for order in ORDERS:
        if order.lesser in values and order.greater in values:
            _hold(order, float(values[order.lesser]), float(values[order.greater]))
    for service in ("ingest", "queues"):
        if f"{service}_renew_ms" not in values:
            continue
        believed = values[f"{service}_lease_ms"] - values[f"{service}_lease_margin_ms"]
        if 2 * values[f"{service}_renew_ms"] > believed:
            name = f"BOTTOMLESS_{service.upper()}"
            raise CannotStart(
                f"{name}_RENEW_MS must be at most half of what is left of "
                f"{name}_LEASE_MS without {name}_LEASE_MARGIN_MS: "
                "else one lost call costs the lease"
            )


def _refuse_contradictions_between(environment: Mapping[str, str]) -> None:
    said = {name.upper(): value for name, value in environment.items() if value}
    for order in ORDERS_BETWEEN:
        texts = [said.get(PREFIX + name.upper()) for name in (order.lesser, order.greater)]
        if None in texts:
            continue
        try:
            lesser = float(number_of(order.lesser, texts[0] or ""))
            greater = float(number_of(order.greater, texts[1] or ""))
        except ValueError:
            # Whoever it belongs to refuses it.
            continue
        _hold(order, lesser, greater)


def _hold(order: _Order, lesser: float, greater: float) -> None:
    lesser, greater = _in_base(order.lesser, lesser), _in_base(order.greater, greater)
    if lesser > greater or (order.below and lesser == greater):
        relation = "less than" if order.below else "at most"
        raise CannotStart(
            f"{PREFIX}{order.lesser.upper()} must be {relation} "
            f"{PREFIX}{order.greater.upper()}: {order.reason}"
        )


def _in_base(name: str, value: float) -> float:
    return value * 1_000 if unit_of(name) is Unit.SECONDS else value
